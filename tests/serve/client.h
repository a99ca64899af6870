#pragma once
// A client made of a socket and nothing of the code under test, which sends what it is told, right or wrong. Whatever does not come within
// a minute fails the test.

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace calandra {

struct Answer {
  int status = 0;  ///< 0: none came
  std::string version;
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;
  bool is_whole = false;  ///< as long as its header says, or ended by its last chunk; without either, ended by the connection

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

class Client {
 public:
  /// Connects. A small receive buffer lets the server's writes stall early.
  explicit Client(int port, std::optional<int> receive_buffer_bytes = {});
  ~Client();
  Client(Client&& other) noexcept;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  Client& operator=(Client&&) = delete;

  /// False if the server does not take it.
  bool send(std::string_view bytes);
  void close_sending();
  void close();
  /// Goes without a word of farewell: a reset.
  void reset();

  Answer read_answer(bool is_to_head = false);
  /// Everything up to and including `end`; what came, if the connection ends before.
  std::string read_through(std::string_view end);
  /// Exactly so many, or fewer if the connection ends before.
  std::string read_bytes(std::size_t count);
  /// What has come by then, without waiting for more of it.
  std::string read_for(std::chrono::milliseconds time);
  /// Waits for the end of the connection; false if bytes come instead.
  bool is_at_end();
  /// Sends a request and reads the answer.
  Answer ask(std::string_view request) { return send(request) ? read_answer() : Answer(); }

 private:
  bool read_more(std::chrono::steady_clock::time_point deadline);
  bool take_line(std::string& line);

  int socket_ = -1;
  std::string seen_;
  bool has_ended_ = false;
};

/// Of a page of RFC 9110: "GET /x HTTP/1.1", Host, fields, blank line, body.
std::string request_text(std::string_view line, std::string_view fields = {}, std::string_view body = {});

}  // namespace calandra
