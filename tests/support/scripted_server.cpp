#include "support/scripted_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

namespace calandra {

ScriptedServer::ScriptedServer(Script script) : script_(std::move(script)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(listener_, 512), 0);
  EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept(); });
}

ScriptedServer::~ScriptedServer() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
  }
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
  ::close(listener_);
}

void ScriptedServer::accept() {
  for (;;) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    const std::lock_guard lock(mutex_);
    if (is_ending_) {
      ::close(socket);
      return;
    }
    sockets_.insert(socket);
    threads_.emplace_back([this, socket, number = num_connections_++] { serve(socket, number); });
  }
}

void ScriptedServer::serve(int socket, int connection) {
  std::string seen;
  const auto read_until = [&](auto&& is_enough) {
    while (!is_enough()) {
      char buffer[65536];
      const ssize_t count = ::recv(socket, buffer, sizeof(buffer), 0);
      if (count <= 0) return false;
      seen.append(buffer, static_cast<std::size_t>(count));
    }
    return true;
  };
  const auto send = [&](std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
  };
  for (bool is_open = true; is_open;) {
    std::size_t end = 0;
    if (!read_until([&] { return (end = seen.find("\r\n\r\n")) != std::string::npos; })) break;
    ScriptedRequest request = {.target = {}, .header = seen.substr(0, end), .body = {}, .connection = connection};
    request.target = request.header.substr(request.header.find(' ') + 1);
    request.target.erase(request.target.find(' '));
    seen.erase(0, end + 4);
    if (const std::size_t at = request.header.find("Content-Length: "); at != std::string::npos) {
      const std::size_t length = std::stoul(request.header.substr(at + 16));
      if (!read_until([&] { return seen.size() >= length; })) break;
      request.body = parse_json(seen.substr(0, length), "test");
      seen.erase(0, length);
    }
    is_open = script_(request, send);
  }
  const std::lock_guard lock(mutex_);
  sockets_.erase(socket);
  ::close(socket);
}

std::string whole_reply(int status, std::string_view type, std::string_view body) {
  return fmt::format("HTTP/1.1 {} X\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n{}", status, type, body.size(), body);
}

std::string stream_header() {
  return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n";
}

std::string event_of(const Json& json) { return "data: " + dump_json(json) + "\n\n"; }

}  // namespace calandra
