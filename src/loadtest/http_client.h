#pragma once
// HTTP/1.1 to one server, any number of requests at a time, all in the thread that calls run(). Connections are kept and used again.
//
// A connection that the server has closed while it was idle is no failure: its request goes over a new one, once. Redirects are not
// followed and codings such as gzip not read: either is an answer that is Malformed, and says what it is.

#include "loadtest/streamed_answer.h"
#include "loadtest/url.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra {

enum class HttpEnd : std::uint8_t {
  Whole,
  Unreachable,  ///< no connection, or it ended before the answer did
  TimedOut,
  Malformed,  ///< not HTTP, or not what the listener understands
};

/// Hears of one request, in the thread of run().
class HttpListener {
 public:
  virtual ~HttpListener() = default;
  virtual void on_head(int status, std::string_view content_type) = 0;
  /// Bytes of the body, as they come. An Error that this throws ends the request as Malformed.
  virtual void on_bytes(std::string_view bytes) = 0;
  /// Once, last. `why` is for a person, empty where all is well.
  virtual void on_end(HttpEnd end, std::string_view why) = 0;
};

struct HttpCall {
  std::string method = "POST";
  std::string target;
  std::string body;  ///< JSON; empty: none
};

class HttpClient {
 public:
  using Fields = std::vector<std::pair<std::string, std::string>>;

  /// `fields` go into every header. Throws Error if there is no address of that name.
  HttpClient(const ServerUrl& url, const Fields& fields, std::chrono::milliseconds timeout);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void send(const HttpCall& call, std::shared_ptr<HttpListener> listener);
  /// Calls `then` in run(); at once, but not from here, if the time is over.
  void call_at(LoadClock::time_point time, std::function<void()> then);

  /// Until no request and no call is left; true then. `tick` is asked ten times a second: false ends it early, and then nothing
  /// but the destructor may follow. Throws what listeners throw in on_end.
  bool run(const std::function<bool()>& tick);

 private:
  class Connection;
  struct Core;
  std::unique_ptr<Core> core_;
};

}  // namespace calandra
