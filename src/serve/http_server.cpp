#include "serve/http_server.h"

#include "base/error.h"
#include "base/host.h"
#include "serve/cors.h"
#include "serve/exchange.h"
#include "serve/request_log.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <iterator>
#include <list>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace calandra {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kNever = Clock::time_point::max();
/// Time-outs are looked after this often, for all connections at once: a timer for each would cost more than it tells.
constexpr auto kTick = 100ms;
/// How long we read on after the last answer of a connection. Closing with unread bytes sends a reset, which can overtake that answer.
constexpr auto kLinger = 2s;
constexpr std::size_t kReadBytes = std::size_t{64} << 10;
/// Requests that come before the answer to the one before them are read so far ahead.
constexpr std::size_t kReadAheadBytes = std::size_t{64} << 10;
/// Above max_connections this many are told so; further ones are just closed.
constexpr std::size_t kToldOfOverload = 256;

void set_option(int socket, int level, int name, int value) { ::setsockopt(socket, level, name, &value, sizeof(value)); }

/// A peer that vanished without a word is noticed: by unanswered bytes after `patience`, in silence after a minute. The system counts
/// slow readers among the vanished, so it gets twice the time after which watch_progress() gives them up.
void tune(tcp::socket& socket, std::chrono::milliseconds patience) {
  const int handle = socket.native_handle();
  set_option(handle, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(handle, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(patience.count()));
  set_option(handle, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(handle, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(handle, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(handle, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

/// The peer has closed its side or reset the connection, which reading would tell only after all that was sent before.
bool peer_has_closed(tcp::socket& socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  return ::getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state != TCP_ESTABLISHED;
}

/// Bytes that the socket has taken from us and the peer not from it.
int num_unsent_bytes(tcp::socket& socket) {
  int count = 0;
  return ::ioctl(socket.native_handle(), SIOCOUTQ, &count) == 0 ? count : 0;
}

std::string to_text(const tcp::endpoint& endpoint) {
  return fmt::format("{}:{}", bracketed(endpoint.address().to_string()), endpoint.port());
}

/// A thread that no signal interrupts: they are for whoever started the server.
template <class Body>
std::thread start_without_signals(Body body) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

/// What all connections share. Everything but stop() and wait() runs in the server's thread.
struct HttpServer::Core {
  using Connections = std::list<std::shared_ptr<Connection>>;

  Core(HttpOptions the_options, HttpService the_service);

  void listen();
  void accept();
  void add(tcp::socket socket);
  void remove(Connections::iterator connection);
  void tick();
  void end_if_done();
  void drain(std::chrono::milliseconds grace);
  void run();
  void log(std::string_view line) const {
    if (service.log) service.log(line);
  }
  std::string next_id() { return fmt::format("req-{:08x}-{}", id_prefix, ++num_requests); }

  /// Whatever goes wrong inside ends one connection, never the server.
  template <class Body>
  void guard(Connection& connection, Body&& body);

  const HttpOptions options;
  const HttpService service;
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer ticker{io};
  Connections connections;
  std::vector<char> scratch = std::vector<char>(kReadBytes);  // what one connection has just read
  bool is_accepting = false;
  bool accepts_well = true;  // the last attempt was no failure
  Clock::time_point drain_deadline = kNever;
  bool is_draining = false;
  bool is_over = false;  // nobody is taken in any more
  std::uint32_t id_prefix = std::random_device()();
  std::uint64_t num_requests = 0;
  std::atomic<int> num_connections = 0;
  int port = 0;
  std::mutex thread_mutex;
  std::thread thread;
  std::mutex end_mutex;
  std::condition_variable ends;
  bool has_ended = false;  // run() has returned
};

/// A socket that is read and written in turn with its requests, one of which is answered at a time. It is always in one phase; at most one
/// read and one write are under way. It lives while the list of connections or one of these holds it.
class HttpServer::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Core& core, tcp::socket socket, std::string peer)
      : core_(core), socket_(std::move(socket)), peer_(std::move(peer)), reader_(core.options.limits) {}

  void start(Core::Connections::iterator self, bool is_welcome);
  void tick(Clock::time_point now);
  void drain();
  bool is_idle() const { return phase_ == Phase::Idle; }
  /// At once; an answer that is not finished is broken off so that the client notices.
  void close();

 private:
  enum class Phase { Idle, Header, Body, Answering, Lingering };

  void read();
  void on_readable(const error_code& ec);
  void on_peer_closed();
  void advance();
  void enter_reading_phase();
  void on_header();
  void on_request();
  void refuse(int status, std::string_view message, const std::string& path);
  std::shared_ptr<RequestRecord> begin_exchange(const HttpRequest& request, bool keep_alive);
  void flush();
  void write();
  void on_written(const error_code& ec, std::size_t count);
  void finish_exchange();
  void linger();
  void watch_progress(Clock::time_point now);
  void enter(Phase phase, Clock::time_point deadline) {
    phase_ = phase;
    deadline_ = deadline;
  }

  Core& core_;
  tcp::socket socket_;
  std::string peer_;
  RequestReader reader_;
  Core::Connections::iterator self_;
  Phase phase_ = Phase::Idle;
  Clock::time_point deadline_ = kNever;  // of the phase; while answering, of a write that makes no progress
  Clock::time_point last_written_ = {};
  std::shared_ptr<Exchange> exchange_;  // while answering
  std::string path_;                    // of the request that is answered
  std::string outgoing_;
  std::size_t sent_ = 0;  // of outgoing_
  int num_unsent_ = 0;    // in the socket at the last tick
  bool is_reading_ = false;
  bool is_writing_ = false;
  bool peer_closed_ = false;
  bool is_closed_ = false;
};

// ---------------------------------------------------------------- one connection

void HttpServer::Connection::start(Core::Connections::iterator self, bool is_welcome) {
  self_ = self;
  if (is_welcome) {
    enter_reading_phase();
  } else {
    refuse(503, fmt::format("connections: all {} are in use", core_.options.max_connections), {});
  }
  read();
}

/// Waits until there is something to read without holding a buffer for it.
void HttpServer::Connection::read() {
  if (is_closed_ || is_reading_ || peer_closed_) return;
  if (exchange_ && reader_.buffered_bytes() >= kReadAheadBytes) return;  // tick() looks whether the peer is still there
  is_reading_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code& ec) {
    self->core_.guard(*self, [&] { self->on_readable(ec); });
  });
}

void HttpServer::Connection::on_readable(const error_code& ec) {
  is_reading_ = false;
  if (is_closed_) return;
  if (ec) return close();
  error_code failure;
  const std::size_t count = socket_.read_some(asio::buffer(core_.scratch), failure);
  if (failure == asio::error::eof) return on_peer_closed();
  if (failure && failure != asio::error::would_block && failure != asio::error::try_again) return close();
  if (phase_ != Phase::Lingering && count > 0) {
    reader_.append({core_.scratch.data(), count});
    advance();
  }
  read();
}

void HttpServer::Connection::on_peer_closed() {
  peer_closed_ = true;
  // An answer that is complete is still delivered: the client may have closed its sending side alone.
  if (!exchange_ || !exchange_->is_finished()) close();
}

/// Goes through what has been read, up to the next request that is not answered at once.
void HttpServer::Connection::advance() {
  while (!is_closed_ && !exchange_ && phase_ != Phase::Lingering) {
    switch (reader_.next()) {
      case RequestReader::Event::NeedMore:
        if (peer_closed_ || (core_.is_draining && reader_.idle())) return close();
        return enter_reading_phase();
      case RequestReader::Event::Header: on_header(); break;
      case RequestReader::Event::Request: on_request(); break;
      case RequestReader::Event::Refusal: {
        const RequestReader::Refusal& refusal = reader_.refusal();
        refuse(refusal.status, refusal.message, refusal.path);
        break;
      }
    }
  }
}

/// A deadline belongs to the phase: more bytes do not move it.
void HttpServer::Connection::enter_reading_phase() {
  const HttpOptions& options = core_.options;
  const Phase phase = reader_.in_body() ? Phase::Body : reader_.idle() ? Phase::Idle : Phase::Header;
  if (phase == phase_ && deadline_ != kNever) return;
  const auto timeout = phase == Phase::Body   ? options.body_timeout
                       : phase == Phase::Idle ? options.idle_timeout
                                              : options.header_timeout;
  enter(phase, Clock::now() + timeout);
}

void HttpServer::Connection::on_header() {
  HttpRequest& request = reader_.request();
  request.peer = peer_;
  request.id = core_.next_id();
  std::optional<HttpResponse> response = cors_preflight(request, core_.options.cors_origins);
  if (!response && core_.service.check) response = core_.service.check(request);
  if (response) {
    // A body that is still to come is not waited for: the connection ends with this answer.
    const bool is_whole = !reader_.awaits_body();
    const auto record = begin_exchange(request, is_whole && reader_.keep_alive());
    if (record && response->status >= 400) record->failed(reason_phrase(response->status));
    if (is_whole) reader_.next();
    exchange_->reply(*response);
    flush();
  } else if (reader_.expects_continue()) {
    outgoing_ = "HTTP/1.1 100 Continue\r\n\r\n";
    write();
  }
}

void HttpServer::Connection::on_request() {
  const bool keep_alive = reader_.keep_alive();
  HttpRequest request = reader_.take_request();
  request.record = begin_exchange(request, keep_alive);
  try {
    core_.service.handle(std::move(request), HttpResponder(exchange_));
  } catch (const std::exception& error) {
    core_.log(fmt::format("{}: {}", printable(path_), error.what()));
    exchange_->reply(core_.service.error(500, "the server could not handle the request", path_));
  }
  if (peer_closed_ && !exchange_->is_finished()) return close();
  flush();
}

void HttpServer::Connection::refuse(int status, std::string_view message, const std::string& path) {
  HttpRequest unread;
  unread.path = path;
  unread.peer = peer_;
  unread.id = core_.next_id();
  if (const auto record = begin_exchange(unread, false)) record->failed(message);
  HttpResponse response = core_.service.error(status, message, path);
  if (status == 503) response.headers.add("Retry-After", "1");
  exchange_->reply(response);
  flush();
}

std::shared_ptr<RequestRecord> HttpServer::Connection::begin_exchange(const HttpRequest& request, bool keep_alive) {
  ReplyForm form = {.is_head = request.method == "HEAD",
                    .minor_version = request.minor_version,
                    .keep_alive = keep_alive && !core_.is_draining,
                    .headers = {{"x-request-id", request.id}, {"request-id", request.id}},
                    .record = core_.service.record ? core_.service.record(request) : nullptr};
  if (core_.service.replied) {
    form.replied = [&core = core_, path = request.path](int status) { core.service.replied(path, status); };
  }
  form.headers.add(cors_headers(request, core_.options.cors_origins));
  path_ = request.path;
  auto record = form.record;
  // Whoever answers may be in another thread and outlive the connection, but not the server: see lose().
  exchange_ = std::make_shared<Exchange>(std::move(form), core_.options.backlog_limit_bytes,
                                         [&core = core_, connection = weak_from_this()] {
                                           asio::post(core.io, [&core, connection] {
                                             const auto self = connection.lock();
                                             if (self) core.guard(*self, [&] { self->flush(); });
                                           });
                                         });
  last_written_ = Clock::now();
  enter(Phase::Answering, is_writing_ ? last_written_ + core_.options.write_timeout : kNever);
  return record;
}

/// Writes what the answer has to say by now.
void HttpServer::Connection::flush() {
  if (is_closed_ || !exchange_) return;
  Exchange::Work work = exchange_->take(!is_writing_);
  if (work.is_broken) return close();
  if (is_writing_) return;  // and come back when that is done
  if (work.needs_reply) {
    exchange_->reply(core_.service.error(500, "the server dropped the request", path_));
    work = exchange_->take();
  }
  if (!work.bytes.empty()) {
    outgoing_ = std::move(work.bytes);
    write();
  } else if (work.is_finished) {
    finish_exchange();
  }
}

void HttpServer::Connection::write() {
  is_writing_ = true;
  last_written_ = Clock::now();
  if (exchange_) deadline_ = last_written_ + core_.options.write_timeout;
  socket_.async_write_some(asio::buffer(outgoing_) + sent_, [self = shared_from_this()](const error_code& ec, std::size_t count) {
    self->core_.guard(*self, [&] { self->on_written(ec, count); });
  });
}

void HttpServer::Connection::on_written(const error_code& ec, std::size_t count) {
  is_writing_ = false;
  if (is_closed_) return;
  if (ec) return close();
  sent_ += count;
  if (exchange_) exchange_->wrote(count);
  if (sent_ < outgoing_.size()) return write();
  std::string().swap(outgoing_);
  sent_ = 0;
  if (!exchange_) return;  // it was "100 Continue"
  deadline_ = kNever;
  flush();
}

void HttpServer::Connection::finish_exchange() {
  const bool keep_alive = exchange_->keeps_connection() && !core_.is_draining;
  exchange_->lose();
  exchange_.reset();
  if (!keep_alive) return linger();
  advance();
  read();
}

void HttpServer::Connection::linger() {
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  if (peer_closed_) return close();
  enter(Phase::Lingering, Clock::now() + kLinger);
  read();
}

void HttpServer::Connection::tick(Clock::time_point now) {
  if (exchange_ && is_writing_) watch_progress(now);
  if (now >= deadline_) {
    if (phase_ == Phase::Header) return refuse(408, "header: it took too long to come", {});
    if (phase_ == Phase::Body) return refuse(408, "body: it took too long to come", reader_.request().path);
    return close();
  }
  if (!exchange_) return;
  if (!is_writing_ && now - last_written_ >= core_.options.comment_interval) {
    exchange_->keep_alive();
    flush();
  }
  // Read so far ahead that we no longer read: see read().
  if (exchange_ && !exchange_->is_finished() && !is_reading_ && peer_has_closed(socket_)) close();
}

/// The socket takes more bytes only when a good part of its own buffer is empty. Long before that the peer may have taken some.
void HttpServer::Connection::watch_progress(Clock::time_point now) {
  const int unsent = num_unsent_bytes(socket_);
  if (unsent < num_unsent_) deadline_ = now + core_.options.write_timeout;
  num_unsent_ = unsent;
}

void HttpServer::Connection::drain() {
  if (is_idle()) close();
}

void HttpServer::Connection::close() {
  if (std::exchange(is_closed_, true)) return;
  error_code ignored;
  if (exchange_) {
    socket_.set_option(tcp::socket::linger(true, 0), ignored);  // a reset: not to be mistaken for the end of an answer
    exchange_->lose();
  }
  socket_.close(ignored);
  core_.remove(self_);
}

// ---------------------------------------------------------------- all connections

HttpServer::Core::Core(HttpOptions the_options, HttpService the_service)
    : options(std::move(the_options)), service(std::move(the_service)) {}

void HttpServer::Core::listen() {
  const std::string address = fmt::format("{}:{}", bracketed(options.host), options.port);
  if (options.port < 0 || options.port > 65535) fail("{}: expected a port from 0 to 65535, found {}", address, options.port);
  const auto check = [&](const error_code& ec) {
    if (ec) fail("cannot listen on {}: {}", address, ec.message());
  };
  error_code ec;
  const auto found = tcp::resolver(io).resolve(options.host, std::to_string(options.port), tcp::resolver::passive, ec);
  check(ec);
  const tcp::endpoint endpoint = found.begin()->endpoint();
  check(acceptor.open(endpoint.protocol(), ec));
  acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  check(acceptor.bind(endpoint, ec));
  check(acceptor.listen(tcp::acceptor::max_listen_connections, ec));
  port = acceptor.local_endpoint().port();
}

void HttpServer::Core::accept() {
  is_accepting = true;
  acceptor.async_accept([this](const error_code& ec, tcp::socket socket) {
    is_accepting = false;
    if (is_over) return;
    if (!ec) {
      accepts_well = true;
      add(std::move(socket));
    } else if (ec != asio::error::connection_aborted) {
      // Out of file descriptors, most likely: tick() tries again.
      if (std::exchange(accepts_well, false)) log(fmt::format("cannot accept connections: {}", ec.message()));
      return;
    }
    accept();
  });
}

void HttpServer::Core::add(tcp::socket socket) {
  error_code ec;
  const tcp::endpoint peer = socket.remote_endpoint(ec);
  if (ec) return;
  const auto limit = static_cast<std::size_t>(options.max_connections);
  if (connections.size() >= limit + kToldOfOverload) return;
  socket.non_blocking(true, ec);
  tune(socket, 2 * options.write_timeout);
  const bool is_welcome = connections.size() < limit;
  const auto connection = std::make_shared<Connection>(*this, std::move(socket), to_text(peer));
  connections.push_back(connection);
  num_connections = static_cast<int>(connections.size());
  guard(*connection, [&] { connection->start(std::prev(connections.end()), is_welcome); });
}

void HttpServer::Core::remove(Connections::iterator connection) {
  connections.erase(connection);
  num_connections = static_cast<int>(connections.size());
  if (connections.empty()) end_if_done();
}

void HttpServer::Core::tick() {
  if (is_over) return;
  // First: whatever happens below, there is a next time.
  ticker.expires_after(kTick);
  ticker.async_wait([this](const error_code& ec) {
    if (!ec) tick();
  });
  if (!is_accepting && !is_over) accept();
  const auto now = Clock::now();
  const bool is_late = now >= drain_deadline;
  for (auto next = connections.begin(); next != connections.end();) {
    const std::shared_ptr<Connection> connection = *next++;  // which may leave the list
    guard(*connection, [&] { is_late ? connection->close() : connection->tick(now); });
  }
  end_if_done();
}

/// After the last answer nobody waits for those who have come and not asked. Without anything to wait for run() returns.
void HttpServer::Core::end_if_done() {
  const auto is_idle = [](const std::shared_ptr<Connection>& connection) { return connection->is_idle(); };
  if (!is_draining || is_over || !std::all_of(connections.begin(), connections.end(), is_idle)) return;
  is_over = true;
  error_code ignored;
  acceptor.close(ignored);
  while (!connections.empty()) std::shared_ptr<Connection>(connections.front())->close();
  ticker.cancel();
}

void HttpServer::Core::drain(std::chrono::milliseconds grace) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);  // "for ever" would overflow
  drain_deadline = std::min(drain_deadline, Clock::now() + std::min(grace, kLongest));
  if (!std::exchange(is_draining, true)) {
    for (auto next = connections.begin(); next != connections.end();) {
      const std::shared_ptr<Connection> connection = *next++;
      connection->drain();
    }
  }
  tick();
}

template <class Body>
void HttpServer::Core::guard(Connection& connection, Body&& body) {
  try {
    body();
  } catch (const std::exception& error) {
    log(fmt::format("a connection was closed: {}", error.what()));
    connection.close();
  }
}

void HttpServer::Core::run() {
  for (bool is_done = false; !is_done;) {
    try {
      io.run();
      is_done = true;
    } catch (const std::exception& error) {
      log(fmt::format("server: {}", error.what()));
    }
  }
  const std::lock_guard lock(end_mutex);
  has_ended = true;
  ends.notify_all();
}

// ---------------------------------------------------------------- the server

HttpServer::HttpServer(HttpOptions options, HttpService service)
    : core_(std::make_unique<Core>(std::move(options), std::move(service))) {
  core_->listen();
  core_->accept();
  core_->tick();
  core_->thread = start_without_signals([core = core_.get()] { core->run(); });
}

HttpServer::~HttpServer() {
  stop(0ms);
  wait();
}

int HttpServer::port() const { return core_->port; }
int HttpServer::num_connections() const { return core_->num_connections; }

void HttpServer::stop(std::chrono::milliseconds grace) {
  asio::post(core_->io, [core = core_.get(), grace] { core->drain(grace); });
}

void HttpServer::wait() {
  const std::lock_guard lock(core_->thread_mutex);
  if (core_->thread.joinable()) core_->thread.join();
}

bool HttpServer::wait_for(std::chrono::milliseconds time) {
  std::unique_lock lock(core_->end_mutex);
  return core_->ends.wait_for(lock, time, [this] { return core_->has_ended; });
}

}  // namespace calandra
