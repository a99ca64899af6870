#pragma once
// A server for tests. Requests for "/held..." wait for the test, in whose thread they are answered; all others get an echo at once.

#include "serve/client.h"
#include "serve/http_server.h"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace calandra {

/// Will be held.
inline const std::string kHeldRequest = request_text("GET /held HTTP/1.1");

struct Held {
  HttpRequest request;
  HttpResponder responder;
};

/// Polls for up to a minute: what the server does in its thread comes when it comes.
bool becomes_true(const std::function<bool()>& condition);

class TestServer {
 public:
  explicit TestServer(HttpOptions options = {}, HttpService service = {});
  ~TestServer() { server.reset(); }

  Client connect() const { return Client(server->port()); }
  Answer ask(std::string_view request) const { return connect().ask(request); }
  /// The next held request in the order they came.
  Held next_held();
  std::size_t num_held() const;
  bool has_logged(std::string_view text) const;

 private:
  void handle(HttpRequest request, HttpResponder responder);

  mutable std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Held> held_;
  std::string log_;

 public:
  std::unique_ptr<HttpServer> server;
};

/// A body the echo returns: "METHOD path?query\n" and the request's body.
std::string echo_of(std::string_view method, std::string_view path, std::string_view query, std::string_view body);

}  // namespace calandra
