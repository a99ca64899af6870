#pragma once
// One streamed answer from its request to its end: what came when, and whether it counts as an answer.

#include "loadtest/event_reader.h"
#include "loadtest/http_client.h"
#include "loadtest/load_result.h"
#include "loadtest/streamed_answer.h"

#include <functional>
#include <string>
#include <string_view>

namespace calandra {

/// How an answer came about.
struct StreamReply {
  Failure failure = Failure::None;
  std::string message;
  int status = 0;
  StreamedAnswer answer;
  LoadClock::time_point ended;
};

class StreamListener final : public HttpListener {
 public:
  /// `then` is called once, at the end.
  explicit StreamListener(std::function<void(StreamReply&)> then) : then_(std::move(then)) {}

  void on_head(int status, std::string_view content_type) override;
  void on_bytes(std::string_view bytes) override;
  void on_end(HttpEnd end, std::string_view why) override;

 private:
  void judge(HttpEnd end, std::string_view why);
  void failed(Failure failure, std::string_view message);

  StreamReply reply_;
  EventReader events_;
  bool is_stream_ = false;
  std::string content_type_;
  std::string other_;  // the beginning of what is no stream
  std::function<void(StreamReply&)> then_;
};

}  // namespace calandra
