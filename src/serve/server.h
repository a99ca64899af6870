#pragma once
// The server: HTTP, keys, routes and the APIs over an engine. It ends in three steps of its owner's: stop_taking(), so that no new answers are
// begun; stop(), which waits for those under way; and its destructor. docs/serving.md describes it, docs/api.md what it answers.

#include "serve/answer_service.h"
#include "serve/http_server.h"
#include "serve/router.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

struct ServerOptions {
  HttpOptions http;
  std::vector<std::string> api_keys;                   // none: everyone may ask
  std::optional<std::chrono::nanoseconds> time_limit;  // of an answer, waiting included
  std::string version;                                 // what /version says
  std::function<HttpResponse()> metrics;               // the page /metrics; empty: there is none
};

class Server {
 public:
  /// Listens and serves. `answers` must outlive the server. Throws Error if the address cannot be had.
  Server(ServerOptions options, ServedModel model, AnswerService& answers, std::function<void(std::string_view line)> log);
  /// Cuts off what is still running.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  int num_connections() const;

  /// From now on /ready says no.
  void stop_taking();
  /// As HttpServer::stop() and wait().
  void stop(std::chrono::milliseconds grace);
  void wait();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace calandra
