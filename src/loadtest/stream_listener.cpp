#include "loadtest/stream_listener.h"

#include "base/error.h"

namespace calandra {
namespace {

constexpr std::size_t kMostKept = 4096;

}  // namespace

void StreamListener::on_head(int status, std::string_view content_type) {
  reply_.status = status;
  is_stream_ = status == 200 && content_type.starts_with("text/event-stream");
  content_type_ = content_type;
}

void StreamListener::on_bytes(std::string_view bytes) {
  if (!is_stream_) {
    if (other_.size() < kMostKept) other_ += bytes;
    return;
  }
  const auto now = LoadClock::now();
  events_.append(bytes);
  for (ServerEvent event; events_.next(event);) reply_.answer.take(event, now);
  if (reply_.answer.is_done()) reply_.ended = now;
}

void StreamListener::on_end(HttpEnd end, std::string_view why) {
  if (reply_.ended == LoadClock::time_point()) reply_.ended = LoadClock::now();
  judge(end, why);
  then_(reply_);
}

void StreamListener::failed(Failure failure, std::string_view message) {
  reply_.failure = failure;
  reply_.message = message;
}

void StreamListener::judge(HttpEnd end, std::string_view why) {
  const StreamedAnswer& answer = reply_.answer;
  if (answer.error()) return failed(Failure::ServerError, *answer.error());
  if (end == HttpEnd::Malformed) return failed(Failure::Malformed, why);
  if (answer.is_done()) {
    // A token without a text, such as the one that ends an answer, is seen in the usage alone.
    const bool has_token = !answer.chunks().empty() || (answer.usage() && answer.usage()->output_tokens > 0);
    return has_token ? void() : failed(Failure::Malformed, "event stream: found no token");
  }
  if (end == HttpEnd::TimedOut) return failed(Failure::Timeout, why);
  if (end == HttpEnd::Unreachable) return failed(Failure::Connection, why);
  const std::string status = fmt::format("{}: {}", reply_.status, error_message(other_));
  if (reply_.status / 100 == 4) return failed(Failure::Refused, status);
  if (reply_.status / 100 == 5) return failed(Failure::ServerError, status);
  if (reply_.status != 200) return failed(Failure::Malformed, status);
  failed(Failure::Malformed, is_stream_ ? "event stream: found no end, expected [DONE]"
                                        : fmt::format("found {}, expected text/event-stream", printable(content_type_)));
}

}  // namespace calandra
