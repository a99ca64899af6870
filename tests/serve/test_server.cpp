#include "serve/test_server.h"

#include <stdexcept>
#include <thread>
#include <utility>

namespace calandra {
namespace {

using namespace std::chrono_literals;

}  // namespace

bool becomes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

TestServer::TestServer(HttpOptions options, HttpService service) {
  options.port = 0;
  if (!service.handle) {
    service.handle = [this](HttpRequest request, HttpResponder responder) { handle(std::move(request), std::move(responder)); };
  }
  service.log = [this](std::string_view line) {
    const std::lock_guard lock(mutex_);
    log_.append(line).append("\n");
  };
  server = std::make_unique<HttpServer>(std::move(options), std::move(service));
}

void TestServer::handle(HttpRequest request, HttpResponder responder) {
  if (request.path.starts_with("/held")) {
    const std::lock_guard lock(mutex_);
    held_.push_back({std::move(request), std::move(responder)});
    came_.notify_all();
  } else {
    responder.reply({.status = 200,
                     .headers = {{"Content-Type", "text/plain"}},
                     .body = echo_of(request.method, request.path, request.query, request.body)});
  }
}

Held TestServer::next_held() {
  std::unique_lock lock(mutex_);
  if (!came_.wait_for(lock, 60s, [&] { return !held_.empty(); })) throw std::runtime_error("no request has come");
  Held held = std::move(held_.front());
  held_.pop_front();
  return held;
}

std::size_t TestServer::num_held() const {
  const std::lock_guard lock(mutex_);
  return held_.size();
}

bool TestServer::has_logged(std::string_view text) const {
  const std::lock_guard lock(mutex_);
  return log_.find(text) != std::string::npos;
}

std::string echo_of(std::string_view method, std::string_view path, std::string_view query, std::string_view body) {
  std::string text(method);
  return text.append(" ").append(path).append("?").append(query).append("\n").append(body);
}

}  // namespace calandra
