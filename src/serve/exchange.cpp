#include "serve/exchange.h"

#include "serve/dates.h"
#include "serve/events.h"
#include "serve/http_responder.h"
#include "serve/request_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <utility>

namespace calandra {
namespace {

bool allows_body(int status) { return status != 204 && status != 304 && status >= 200; }

/// Control characters of a header would begin another one: they become blanks.
void append_field_text(std::string& out, std::string_view text) {
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    out += code < 0x20 || code == 0x7F ? ' ' : c;
  }
}

}  // namespace

Exchange::Exchange(ReplyForm form, std::size_t backlog_limit_bytes, std::function<void()> wake)
    : form_(std::move(form)), backlog_limit_bytes_(backlog_limit_bytes), wake_(std::move(wake)) {}

bool Exchange::reply(const HttpResponse& response) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::Waiting) return false;
  const bool has_body = allows_body(response.status);
  append_head(response.status, response.headers, has_body ? fmt::format("Content-Length: {}\r\n", response.body.size()) : "");
  if (has_body && !form_.is_head) queue_ += response.body;
  state_ = State::Finished;
  tell();
  return true;
}

bool Exchange::start(int status, const HttpHeaders& headers) {
  const std::lock_guard lock(mutex_);
  return begin_stream(status, headers);
}

bool Exchange::start_events(const HttpHeaders& headers) {
  // The last one asks nginx not to collect the stream before it passes it on.
  HttpHeaders all = {
      {"Content-Type", "text/event-stream; charset=utf-8"}, {"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}};
  all.add(headers);
  const std::lock_guard lock(mutex_);
  is_events_ = state_ == State::Waiting;
  return begin_stream(200, all);
}

bool Exchange::begin_stream(int status, const HttpHeaders& headers) {
  if (state_ != State::Waiting) return false;
  has_body_ = allows_body(status) && !form_.is_head;
  is_chunked_ = form_.minor_version > 0;
  // HTTP/1.0 knows no end of a stream but that of the connection.
  if (!is_chunked_) form_.keep_alive = false;
  append_head(status, headers, is_chunked_ && allows_body(status) ? "Transfer-Encoding: chunked\r\n" : "");
  state_ = State::Streaming;
  tell();
  return true;
}

bool Exchange::send(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::Streaming || is_too_slow_) return false;
  if (queue_.size() + in_flight_ > backlog_limit_bytes_) {
    is_too_slow_ = true;
    tell();
    return false;
  }
  append_chunk(bytes);
  return true;
}

bool Exchange::finish() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::Streaming || is_too_slow_) return false;
  if (is_chunked_ && has_body_) queue_ += "0\r\n\r\n";
  state_ = State::Finished;
  tell();
  return true;
}

void Exchange::abandon() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::Waiting && state_ != State::Streaming) return;
  is_abandoned_ = true;
  tell();
}

std::size_t Exchange::pending_bytes() const {
  const std::lock_guard lock(mutex_);
  return queue_.size() + in_flight_;
}

Exchange::Work Exchange::take(bool has_room) {
  const std::lock_guard lock(mutex_);
  is_told_ = false;
  Work work;
  work.needs_reply = is_abandoned_ && state_ == State::Waiting;
  work.is_broken = is_too_slow_ || (is_abandoned_ && state_ == State::Streaming);
  work.is_finished = state_ == State::Finished;
  if (!has_room) return work;
  work.bytes = std::exchange(queue_, {});
  in_flight_ += work.bytes.size();
  return work;
}

void Exchange::wrote(std::size_t count) {
  const std::lock_guard lock(mutex_);
  in_flight_ -= std::min(count, in_flight_);
}

void Exchange::keep_alive() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::Streaming && is_events_ && queue_.empty() && in_flight_ == 0) append_chunk(kEventComment);
}

bool Exchange::is_finished() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::Finished;
}

bool Exchange::keeps_connection() const {
  const std::lock_guard lock(mutex_);
  return form_.keep_alive;
}

void Exchange::lose() {
  bool was_open = false;
  {
    const std::lock_guard lock(mutex_);
    was_open = state_ == State::Waiting || state_ == State::Streaming;
    state_ = State::Lost;
    wake_ = nullptr;
    queue_ = {};
    in_flight_ = 0;
    if (form_.record) form_.record->reply_ended(!was_open);
    form_.record.reset();
    form_.replied = nullptr;
  }
  if (was_open) gone_.request_stop();  // without the lock: callbacks may ask this exchange
}

void Exchange::append_head(int status, const HttpHeaders& headers, std::string_view framing) {
  if (form_.record) form_.record->replied(status, is_events_);
  if (form_.replied) form_.replied(status);
  fmt::format_to(std::back_inserter(queue_), "HTTP/1.1 {} {}\r\nDate: {}\r\n", status, reason_phrase(status),
                 http_date(std::time(nullptr)));
  for (const HttpHeaders* fields : {&headers, &std::as_const(form_.headers)}) {
    for (const auto& [name, value] : *fields) {
      append_field_text(queue_, name);
      queue_ += ": ";
      append_field_text(queue_, value);
      queue_ += "\r\n";
    }
  }
  queue_ += framing;
  if (!form_.keep_alive) {
    queue_ += "Connection: close\r\n";
  } else if (form_.minor_version == 0) {
    queue_ += "Connection: keep-alive\r\n";
  }
  queue_ += "\r\n";
}

void Exchange::append_chunk(std::string_view bytes) {
  if (bytes.empty() || !has_body_) return;  // an empty chunk would end the stream
  if (is_chunked_) {
    fmt::format_to(std::back_inserter(queue_), "{:x}\r\n", bytes.size());
    queue_.append(bytes).append("\r\n");
  } else {
    queue_ += bytes;
  }
  tell();
}

void Exchange::tell() {
  if (wake_ && !std::exchange(is_told_, true)) wake_();
}

struct HttpResponder::Producer {
  std::shared_ptr<Exchange> exchange;
  explicit Producer(std::shared_ptr<Exchange> from) : exchange(std::move(from)) {}
  ~Producer() { exchange->abandon(); }
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;
};

HttpResponder::HttpResponder(std::shared_ptr<Exchange> exchange) : producer_(std::make_shared<Producer>(std::move(exchange))) {}

bool HttpResponder::reply(const HttpResponse& response) { return producer_->exchange->reply(response); }
bool HttpResponder::start(int status, const HttpHeaders& headers) { return producer_->exchange->start(status, headers); }
bool HttpResponder::send(std::string_view bytes) { return producer_->exchange->send(bytes); }
bool HttpResponder::finish() { return producer_->exchange->finish(); }
bool HttpResponder::start_events(const HttpHeaders& headers) { return producer_->exchange->start_events(headers); }
bool HttpResponder::send_event(std::string_view data, std::string_view name) { return send(format_event(data, name)); }
std::stop_token HttpResponder::gone() const { return producer_->exchange->gone(); }
std::size_t HttpResponder::pending_bytes() const { return producer_->exchange->pending_bytes(); }

}  // namespace calandra
