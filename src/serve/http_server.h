#pragma once
// HTTP/1.1 and 1.0 on one thread of its own: sockets, limits, time-outs, pipelining, streams, an orderly end. It knows no API: a handler
// answers each request, at once or later and from any thread. A connection that waits or streams costs a few KiB.
//
// A client that closes its sending side before its answer is finished is taken for gone, since a closed connection looks the same
// from here.

#include "serve/http_message.h"
#include "serve/http_responder.h"
#include "serve/request_reader.h"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  ///< 0: any free one; HttpServer::port() tells
  RequestLimits limits;
  /// From the first byte of a request to the end of its header, and from there to the end of its body.
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{60'000};
  /// Between requests.
  std::chrono::milliseconds idle_timeout{75'000};
  /// How long a client may take nothing of what is there for it.
  std::chrono::milliseconds write_timeout{30'000};
  /// A stream of events that says nothing for so long gets a comment.
  std::chrono::milliseconds comment_interval{15'000};
  std::size_t backlog_limit_bytes = std::size_t{1} << 20;  ///< of a stream: HttpResponder::pending_bytes()
  int max_connections = 10'000;                            ///< more are answered with 503
  std::vector<std::string> cors_origins;                   ///< pages that may read the answers in a browser; "*" for all
};

/// What the server does with requests. All but `replied` are called in the server's thread: while they run, nothing else is read or
/// written.
struct HttpService {
  std::function<void(HttpRequest request, HttpResponder responder)> handle;
  /// Asked when the header of a request has come and its body has not: what it returns is the answer. This is the place of
  /// Router::refusal() and authorised(). May be empty.
  std::function<std::optional<HttpResponse>(const HttpRequest& request)> check;
  /// The shape of errors that the server itself finds.
  ErrorFormat error = plain_error;
  /// Begins a request's record for the log, or null. Called with the request without its body, or with what little is known of one
  /// that could not be read. May be empty.
  std::function<std::shared_ptr<RequestRecord>(const HttpRequest& request)> record;
  /// Hears of every reply as it begins, in whatever thread answers. The path is empty where none could be read. May be empty.
  std::function<void(std::string_view path, int status)> replied;
  /// One line for whoever runs the server. May be empty.
  std::function<void(std::string_view line)> log;
};

class HttpServer {
 public:
  /// Listens and serves. Throws Error if the address cannot be had.
  HttpServer(HttpOptions options, HttpService service);
  /// Cuts off what is still running.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  int num_connections() const;

  /// Closes connections that wait for a request, lets requests that have begun be answered for that long, then cuts them off. Until
  /// then whoever connects is answered, once: so that those who watch the server hear that it ends. From any thread; returns at once. A
  /// later call can only shorten the time.
  void stop(std::chrono::milliseconds grace);
  /// Returns when the last connection is closed after stop().
  void wait();
  /// The same, or false if that takes longer.
  bool wait_for(std::chrono::milliseconds time);

 private:
  struct Core;
  class Connection;
  std::unique_ptr<Core> core_;
};

}  // namespace calandra
