#pragma once
// The handle by which a request is answered: once whole, or as a stream. It may be copied and used from any thread, also after the
// client or the server has gone; nothing blocks, nothing throws but bad_alloc. If the last copy goes without an answer the client gets a
// 500, and a stream that was not finished is cut off.

#include "serve/http_message.h"

#include <cstddef>
#include <memory>
#include <stop_token>
#include <string_view>

namespace calandra {

class Exchange;

class HttpResponder {
 public:
  explicit HttpResponder(std::shared_ptr<Exchange> exchange);

  // These return false if nothing more can be sent: the client has gone, or the reply was given or finished before.

  bool reply(const HttpResponse& response);

  /// Begins a stream.
  bool start(int status, const HttpHeaders& headers);
  bool send(std::string_view bytes);
  bool finish();

  /// Begins a stream of server-sent events. While nothing is sent the server keeps it alive with comments.
  bool start_events(const HttpHeaders& headers = {});
  bool send_event(std::string_view data, std::string_view name = {});

  /// Requested once the client has gone before its answer was finished: it closed its side, did not read for too long, or was
  /// cut off as the server stopped. Callbacks run in the server's thread and must not block it.
  std::stop_token gone() const;

  /// Bytes that were given and not yet taken by the network: for who wants to wait for slow readers. A stream whose
  /// client is further behind than HttpOptions::backlog_limit_bytes is cut off.
  std::size_t pending_bytes() const;

 private:
  struct Producer;
  std::shared_ptr<Producer> producer_;
};

}  // namespace calandra
