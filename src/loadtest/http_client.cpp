#include "loadtest/http_client.h"

#include "base/error.h"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

#include <cerrno>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace calandra {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using namespace std::chrono_literals;

constexpr auto kTick = 100ms;
constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::uint32_t kMostHeaderBytes = 64 << 10;
constexpr int kSwitchingProtocols = 101;

/// Beast's parser of one answer, which hands the body on as it comes.
class AnswerParser final : public http::basic_parser<false> {
 public:
  explicit AnswerParser(HttpListener& listener) : listener_(listener) {
    header_limit(kMostHeaderBytes);
    body_limit(boost::none);
    eager(true);
  }

  /// What is wrong with an answer that is HTTP: what the listener has thrown, or what nobody has asked for.
  const std::string& objection() const { return objection_; }
  /// "100 Continue" and its like: the answer is still to come.
  bool is_interim() const { return status_ / 100 == 1; }

 private:
  using View = boost::beast::string_view;

  void on_response_impl(int status, View /*reason*/, int /*version*/, error_code& /*ec*/) override { status_ = status; }
  void on_field_impl(http::field field, View /*name*/, View value, error_code& /*ec*/) override {
    const std::string_view text(value.data(), value.size());
    if (field == http::field::content_type) content_type_ = text;
    if (field == http::field::location) location_ = text;
    if (field == http::field::content_encoding) encoding_ = text;
  }
  void on_header_impl(error_code& ec) override {
    if (status_ == kSwitchingProtocols) {
      objection_ = "found 101, another protocol, which nothing asked for";
    } else if (status_ / 100 == 3 && !location_.empty()) {
      objection_ =
          fmt::format("found {}, to {}: redirects are not followed, expected the server itself", status_, printable(location_));
    } else if (!encoding_.empty() && encoding_ != "identity") {
      objection_ = fmt::format("found an answer coded as {}, expected none: the request says so", printable(encoding_));
    } else if (!is_interim()) {
      listener_.on_head(status_, content_type_);
    }
    if (!objection_.empty()) ec = http::error::bad_value;
  }
  std::size_t on_body_impl(View bytes, error_code& ec) override {
    try {
      listener_.on_bytes({bytes.data(), bytes.size()});
    } catch (const Error& error) {
      objection_ = error.what();
      ec = http::error::bad_value;
    }
    return bytes.size();
  }
  std::size_t on_chunk_body_impl(std::uint64_t /*rest*/, View bytes, error_code& ec) override { return on_body_impl(bytes, ec); }
  void on_request_impl(http::verb /*verb*/, View /*method*/, View /*target*/, int /*version*/, error_code& /*ec*/) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>& /*length*/, error_code& /*ec*/) override {}
  void on_chunk_header_impl(std::uint64_t /*size*/, View /*extension*/, error_code& /*ec*/) override {}
  void on_finish_impl(error_code& /*ec*/) override {}

  HttpListener& listener_;
  int status_ = 0;
  std::string content_type_, location_, encoding_;
  std::string objection_;
};

bool is_only_delayed(const error_code& ec) { return ec == asio::error::would_block || ec == asio::error::try_again; }

}  // namespace

struct HttpClient::Core {
  asio::io_context io{1};
  std::string name;  // of the server, to be named
  std::vector<tcp::endpoint> endpoints;
  std::size_t endpoint = 0;  // the one that the last connection was made to
  std::string fields;        // of every header
  LoadClock::duration timeout{};
  std::set<std::shared_ptr<Connection>> active;
  std::vector<std::shared_ptr<Connection>> idle;
  std::size_t num_timers = 0;
  std::vector<char> scratch = std::vector<char>(kReadBytes);  // what one connection has just read
};

/// A socket and the one request that it is used for, if any.
class HttpClient::Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(Core& core) : core_(core), socket_(core.io) {}

  void begin(std::string request, std::shared_ptr<HttpListener> listener) {
    request_ = std::move(request);
    listener_ = std::move(listener);
    sent_ = 0;
    deadline_ = LoadClock::now() + core_.timeout;
    prepare();
    if (socket_.is_open()) {
      start();
    } else {
      connect();
    }
  }

  /// Nothing has come since the last answer: not even the end of the connection.
  bool is_usable() {
    char byte = 0;
    return ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }

  void tick(LoadClock::time_point now) {
    if (listener_ && now >= deadline_) {
      end(HttpEnd::TimedOut,
          fmt::format("no end after {:g} s (--timeout)", std::chrono::duration<double>(core_.timeout).count()));
    }
  }

 private:
  void prepare() {
    parser_.emplace(*listener_);
    input_.clear();
    has_read_ = false;
  }

  void connect() {
    num_tried_ = 0;
    try_endpoint();
  }

  void try_endpoint() {
    const tcp::endpoint& endpoint = core_.endpoints[core_.endpoint];
    error_code ignored;
    socket_.close(ignored);
    socket_.async_connect(endpoint, [self = shared_from_this(), call = ++num_calls_](const error_code& ec) {
      if (self->is_current(call)) self->on_connected(ec);
    });
  }

  void on_connected(const error_code& ec) {
    if (!ec) {
      error_code ignored;
      socket_.set_option(tcp::no_delay(true), ignored);
      socket_.non_blocking(true, ignored);
      is_new_ = true;
      return start();
    }
    if (++num_tried_ == core_.endpoints.size()) {
      return end(HttpEnd::Unreachable, fmt::format("{}: {}", core_.name, ec.message()));
    }
    core_.endpoint = (core_.endpoint + 1) % core_.endpoints.size();
    try_endpoint();
  }

  void start() {
    const std::uint64_t call = ++num_calls_;
    write(call);
    if (is_current(call)) read(call);
  }

  void write(std::uint64_t call) {
    if (sent_ == request_.size()) return;
    socket_.async_write_some(asio::buffer(request_.data() + sent_, request_.size() - sent_),
                             [self = shared_from_this(), call](const error_code& ec, std::size_t count) {
                               if (!self->is_current(call)) return;
                               // What the server has said before it stopped to listen is read: it may say why.
                               if (ec) return;
                               self->sent_ += count;
                               self->write(call);
                             });
  }

  void read(std::uint64_t call) {
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this(), call](const error_code& ec) {
      if (self->is_current(call)) self->on_readable(ec, call);
    });
  }

  void on_readable(const error_code& waited, std::uint64_t call) {
    error_code ec = waited;
    std::size_t count = 0;
    if (!ec) count = socket_.read_some(asio::buffer(core_.scratch), ec);
    if (is_only_delayed(ec)) return read(call);
    if (ec) return on_closed(ec);
    has_read_ = true;
    input_.append(core_.scratch.data(), count);
    parse();
    if (is_current(call)) read(call);
  }

  void parse() {
    std::size_t used = 0;
    for (;;) {
      if (parser_->is_done()) {
        if (!parser_->is_interim()) break;
        parser_.emplace(*listener_);
      }
      error_code ec;
      const std::size_t count = parser_->put(asio::const_buffer(input_.data() + used, input_.size() - used), ec);
      used += count;
      if (ec == http::error::need_more || (!ec && count == 0)) break;
      if (ec) {
        return end(HttpEnd::Malformed, parser_->objection().empty() ? "HTTP: " + ec.message() : parser_->objection());
      }
    }
    input_.erase(0, used);
    if (parser_->is_done()) end(HttpEnd::Whole, {});
  }

  void on_closed(const error_code& ec) {
    if (!has_read_ && !is_new_) {  // it was idle for too long
      prepare();
      sent_ = 0;
      return connect();
    }
    error_code incomplete;
    if (ec == asio::error::eof && parser_->got_some()) parser_->put_eof(incomplete);
    if (parser_->is_done()) return end(HttpEnd::Whole, {});
    end(HttpEnd::Unreachable, fmt::format("{}: the connection ended before the answer did{}", core_.name,
                                          ec == asio::error::eof ? "" : ": " + ec.message()));
  }

  bool is_current(std::uint64_t call) const { return call == num_calls_; }

  void end(HttpEnd how, const std::string& why) {
    ++num_calls_;
    const auto self = shared_from_this();
    core_.active.erase(self);
    if (how == HttpEnd::Whole && parser_->keep_alive() && sent_ == request_.size() && input_.empty()) {
      is_new_ = false;
      core_.idle.push_back(self);
    } else {
      error_code ignored;
      socket_.close(ignored);
    }
    std::exchange(listener_, nullptr)->on_end(how, why);
  }

  Core& core_;
  tcp::socket socket_;
  std::shared_ptr<HttpListener> listener_;  // of the request; none: idle
  std::optional<AnswerParser> parser_;
  std::string request_;
  std::size_t sent_ = 0;  // of request_
  std::string input_;     // read and not parsed
  LoadClock::time_point deadline_;
  std::size_t num_tried_ = 0;    // endpoints
  std::uint64_t num_calls_ = 0;  // operations of an earlier request find another number and do nothing
  bool is_new_ = true;           // never used for a request before this one
  bool has_read_ = false;        // anything of the answer
};

HttpClient::HttpClient(const ServerUrl& url, const Fields& fields, std::chrono::milliseconds timeout)
    : core_(std::make_unique<Core>()) {
  core_->name = url.authority();
  core_->timeout = timeout;
  core_->fields = fmt::format("Host: {}\r\nAccept-Encoding: identity\r\n", url.authority());
  for (const auto& [name, value] : fields) core_->fields += fmt::format("{}: {}\r\n", name, value);
  error_code ec;
  const auto found = tcp::resolver(core_->io).resolve(url.host, std::to_string(url.port), ec);
  if (ec) fail("{}: {}", url.host, ec.message());
  for (const auto& entry : found) core_->endpoints.push_back(entry.endpoint());
}

HttpClient::~HttpClient() = default;

void HttpClient::send(const HttpCall& call, std::shared_ptr<HttpListener> listener) {
  std::string request = fmt::format("{} {} HTTP/1.1\r\n{}", call.method, call.target, core_->fields);
  if (!call.body.empty()) request += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", call.body.size());
  request += "\r\n";
  request += call.body;
  std::shared_ptr<Connection> connection;
  while (!connection && !core_->idle.empty()) {
    if (core_->idle.back()->is_usable()) connection = core_->idle.back();
    core_->idle.pop_back();
  }
  if (!connection) connection = std::make_shared<Connection>(*core_);
  core_->active.insert(connection);
  connection->begin(std::move(request), std::move(listener));
}

void HttpClient::call_at(LoadClock::time_point time, std::function<void()> then) {
  auto timer = std::make_shared<asio::steady_timer>(core_->io, time);
  ++core_->num_timers;
  timer->async_wait([core = core_.get(), timer, then = std::move(then)](const error_code& ec) {
    --core->num_timers;
    if (!ec) then();
  });
}

bool HttpClient::run(const std::function<bool()>& tick) {
  auto next_tick = LoadClock::now();
  while (!core_->active.empty() || core_->num_timers > 0) {
    const auto now = LoadClock::now();
    if (now >= next_tick) {
      next_tick = now + kTick;
      if (!tick()) return false;
      for (const auto& connection : std::vector(core_->active.begin(), core_->active.end())) connection->tick(now);
    }
    core_->io.restart();
    core_->io.run_one_until(next_tick);
  }
  return true;
}

}  // namespace calandra
