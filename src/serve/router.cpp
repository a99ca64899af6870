#include "serve/router.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace calandra {
namespace {

bool is_prefix(std::string_view route) { return route.ends_with("/*"); }

bool matches_prefix(std::string_view route, std::string_view path) {
  return is_prefix(route) && path.size() >= route.size() && path.starts_with(route.substr(0, route.size() - 1));
}

/// "GET, HEAD, OPTIONS" for the Allow field.
std::string methods_of(const std::vector<const Route*>& routes) {
  std::set<std::string> methods = {"OPTIONS"};
  for (const Route* route : routes) {
    methods.insert(route->method);
    if (route->method == "GET") methods.insert("HEAD");
  }
  return fmt::format("{}", fmt::join(methods, ", "));
}

/// "application/json; charset=utf-8" without what follows the type.
std::string_view media_type(std::string_view value) {
  value = value.substr(0, value.find(';'));
  while (value.ends_with(' ') || value.ends_with('\t')) value.remove_suffix(1);
  return value;
}

}  // namespace

std::vector<const Route*> Router::matches(std::string_view path) const {
  std::vector<const Route*> exact, by_prefix;
  for (const Route& route : routes_) {
    if (route.path == path && !is_prefix(route.path)) exact.push_back(&route);
    if (matches_prefix(route.path, path)) by_prefix.push_back(&route);
  }
  return exact.empty() ? by_prefix : exact;
}

const Route* Router::find(const HttpRequest& request) const {
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  for (const Route* route : matches(request.path)) {
    if (route->method == method) return route;
  }
  return nullptr;
}

std::string_view Router::route_of(std::string_view path) const {
  const std::vector<const Route*> routes = matches(path);
  return routes.empty() ? std::string_view() : routes.front()->path;
}

std::optional<HttpResponse> Router::refusal(const HttpRequest& request) const {
  if (request.method == "OPTIONS" && request.path == "*") return std::nullopt;
  const std::vector<const Route*> routes = matches(request.path);
  if (routes.empty()) return error_(404, fmt::format("{}: no such path", printable(request.path)), request.path);
  if (request.method == "OPTIONS") return std::nullopt;
  const Route* route = find(request);
  if (route == nullptr) {
    const std::string methods = methods_of(routes);
    HttpResponse response = error_(
        405, fmt::format("{}: expected {}, found {}", printable(request.path), methods, printable(request.method)), request.path);
    response.headers.add("Allow", methods);
    return response;
  }
  if (route->content_type.empty()) return std::nullopt;
  if (request.headers.count("Content-Length") + request.headers.count("Transfer-Encoding") == 0) {
    return error_(411, fmt::format("{}: expected a body of {}, found none", printable(request.path), route->content_type),
                  request.path);
  }
  const std::string_view type = media_type(request.headers.find("Content-Type").value_or(""));
  if (!equal_ignoring_case(type, route->content_type)) {
    return error_(415, fmt::format("Content-Type: expected {}, found '{}'", route->content_type, printable(type)), request.path);
  }
  if (const auto coding = request.headers.find("Content-Encoding"); coding && !equal_ignoring_case(*coding, "identity")) {
    return error_(415, fmt::format("Content-Encoding: expected none, found '{}'", printable(*coding)), request.path);
  }
  return std::nullopt;
}

void Router::handle(HttpRequest request, HttpResponder responder) const {
  if (const std::optional<HttpResponse> refused = refusal(request)) {
    responder.reply(*refused);
  } else if (request.method == "OPTIONS") {
    std::vector<const Route*> routes = matches(request.path);
    if (request.path == "*") {
      for (const Route& route : routes_) routes.push_back(&route);
    }
    responder.reply({.status = 204, .headers = {{"Allow", methods_of(routes)}}, .body = {}});
  } else {
    const Route* const route = find(request);
    route->handler(std::move(request), std::move(responder));
  }
}

}  // namespace calandra
