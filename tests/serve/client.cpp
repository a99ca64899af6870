#include "serve/client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>
#include <utility>

namespace calandra {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(60);

/// False if the time is up.
bool wait_for(int socket, short what, Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd watched = {socket, what, 0};
  return ::poll(&watched, 1, static_cast<int>(std::max<std::int64_t>(0, left))) > 0;
}

}  // namespace

Client::Client(int port, std::optional<int> receive_buffer_bytes) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_buffer_bytes) {
    const int size = *receive_buffer_bytes;
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    ::close(socket_);
    throw std::runtime_error("connect");
  }
}

Client::~Client() { close(); }

Client::Client(Client&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), seen_(std::move(other.seen_)), has_ended_(other.has_ended_) {}

bool Client::send(std::string_view bytes) {
  const auto deadline = Clock::now() + kPatience;
  while (!bytes.empty()) {
    if (!wait_for(socket_, POLLOUT, deadline)) return false;
    const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

void Client::close_sending() { ::shutdown(socket_, SHUT_WR); }

void Client::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void Client::reset() {
  const linger at_once = {1, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close();
}

bool Client::read_more(Clock::time_point deadline) {
  if (has_ended_ || !wait_for(socket_, POLLIN, deadline)) return false;
  std::array<char, 1 << 16> buffer;
  const ssize_t count = ::recv(socket_, buffer.data(), buffer.size(), 0);
  has_ended_ = count <= 0;
  if (count > 0) seen_.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0;
}

std::string Client::read_bytes(std::size_t count) {
  const auto deadline = Clock::now() + kPatience;
  while (seen_.size() < count && read_more(deadline)) continue;
  std::string bytes = seen_.substr(0, count);
  seen_.erase(0, count);
  return bytes;
}

bool Client::take_line(std::string& line) {
  line = read_through("\r\n");
  if (!line.ends_with("\r\n")) return false;
  line.resize(line.size() - 2);
  return true;
}

std::string Client::read_through(std::string_view end) {
  const auto deadline = Clock::now() + kPatience;
  std::size_t at = 0;
  while ((at = seen_.find(end)) == std::string::npos) {
    if (!read_more(deadline)) return read_bytes(seen_.size());
  }
  return read_bytes(at + end.size());
}

std::string Client::read_for(std::chrono::milliseconds time) {
  const auto deadline = Clock::now() + time;
  while (read_more(deadline)) continue;
  return read_bytes(seen_.size());
}

bool Client::is_at_end() {
  const auto deadline = Clock::now() + kPatience;
  while (seen_.empty() && read_more(deadline)) continue;
  return seen_.empty() && has_ended_;
}

Answer Client::read_answer(bool is_to_head) {
  Answer answer;
  std::string line;
  if (!take_line(line)) return answer;
  if (!line.starts_with("HTTP/1.") || line.size() < 12) {
    ADD_FAILURE() << "no status line: " << line;
    return answer;
  }
  answer.version = line.substr(0, 8);
  answer.status = std::stoi(line.substr(9, 3));
  while (take_line(line) && !line.empty()) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) {
      ADD_FAILURE() << "no field: " << line;
      return answer;
    }
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    EXPECT_FALSE(answer.headers.contains(name)) << "twice: " << name;
    answer.headers[name] = line.substr(colon + 2);
  }
  if (is_to_head || answer.status == 204 || answer.status == 304 || answer.status < 200) {
    answer.is_whole = true;
  } else if (answer.header("transfer-encoding") == "chunked") {
    while (take_line(line) && !line.empty()) {
      const std::size_t size = std::stoul(line, nullptr, 16);
      answer.body += read_bytes(size);
      const std::string end = read_bytes(2);
      answer.is_whole = size == 0 && end == "\r\n";
      if (end != "\r\n" || size == 0) break;
    }
  } else if (const std::string length = answer.header("content-length"); !length.empty()) {
    answer.body = read_bytes(std::stoul(length));
    answer.is_whole = answer.body.size() == std::stoul(length);
  } else {
    const auto deadline = Clock::now() + kPatience;
    while (read_more(deadline)) continue;
    answer.body = read_bytes(seen_.size());
    answer.is_whole = has_ended_;
  }
  return answer;
}

std::string request_text(std::string_view line, std::string_view fields, std::string_view body) {
  std::string text(line);
  text += "\r\nHost: test\r\n";
  text += fields;
  if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  text += "\r\n";
  text += body;
  return text;
}

}  // namespace calandra
