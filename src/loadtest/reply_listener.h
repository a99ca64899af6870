#pragma once
// One reply that is no stream: read whole.

#include "base/error.h"
#include "loadtest/event_reader.h"
#include "loadtest/http_client.h"

#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace calandra {

struct HttpReply {
  HttpEnd end = HttpEnd::Whole;
  std::string why;  ///< it is not whole
  int status = 0;
  std::string content_type;
  std::string body;
};

class ReplyListener final : public HttpListener {
 public:
  /// `then` is called once, at the end.
  explicit ReplyListener(std::function<void(HttpReply&)> then) : then_(std::move(then)) {}

  void on_head(int status, std::string_view content_type) override {
    reply_.status = status;
    reply_.content_type = content_type;
  }
  void on_bytes(std::string_view bytes) override {
    if (reply_.body.size() + bytes.size() > EventReader::kMostBytes)
      fail("reply: found more than {} bytes", EventReader::kMostBytes);
    reply_.body += bytes;
  }
  void on_end(HttpEnd end, std::string_view why) override {
    reply_.end = end;
    reply_.why = why;
    then_(reply_);
  }

 private:
  HttpReply reply_;
  std::function<void(HttpReply&)> then_;
};

}  // namespace calandra
