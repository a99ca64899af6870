#pragma once
// The server: HTTP, keys, routes and the APIs over an engine. docs/serving.md describes it, docs/api.md what it answers.

#include "serve/answer_service.h"
#include "serve/http_server.h"
#include "serve/request_log.h"
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
  bool isolates_keys = true;                           // as in ApiContext
  std::string version;                                 // what /version says
  std::function<HttpResponse()> metrics;               // the page /metrics; empty: there is none
  std::shared_ptr<RequestLog> request_log;             // null: requests leave no lines
  // Hears of every reply, in any thread: the path as the server has it, "/v1/models/*", or empty for one that it has not. May be empty.
  std::function<void(std::string_view path, int status)> replied;
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

  /// The orderly end. From now on /ready says no and no answers are begun; those under way have that long, then they are ended and their
  /// clients told so, in a stream by its last event. Returns when all are answered.
  void end(std::chrono::milliseconds grace);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace calandra
