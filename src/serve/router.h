#pragma once
// Which handler a method and a path belong to. Filled once, then read from any thread.

#include "serve/http_message.h"
#include "serve/http_responder.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

using HttpHandler = std::function<void(HttpRequest request, HttpResponder responder)>;

struct Route {
  std::string method;
  /// Matched with the decoded path: exactly, or, if it ends in "/*", with anything behind that slash. Exact ones come first.
  std::string path;
  /// If not empty, a request must have a body of that media type. "application/json" also keeps foreign web pages out: a browser does
  /// not send it to another origin without asking first.
  std::string content_type;
  HttpHandler handler;
};

class Router {
 public:
  explicit Router(ErrorFormat error = plain_error) : error_(std::move(error)) {}

  void add(Route route) { routes_.push_back(std::move(route)); }

  /// 404, 405 with Allow, 411 or 415 if the request, whose body need not be there, has no route.
  std::optional<HttpResponse> refusal(const HttpRequest& request) const;

  /// The path of the route that this one belongs to, as it was added; empty: none does.
  std::string_view route_of(std::string_view path) const;

  /// Calls the handler, or answers with the refusal. HEAD goes where GET goes, OPTIONS is answered with Allow.
  void handle(HttpRequest request, HttpResponder responder) const;

 private:
  std::vector<const Route*> matches(std::string_view path) const;
  const Route* find(const HttpRequest& request) const;

  ErrorFormat error_;
  std::vector<Route> routes_;
};

}  // namespace calandra
