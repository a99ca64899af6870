#pragma once
// A server made of sockets and nothing of the code under test: one thread a connection, each request answered by a script.

#include "base/json.h"

#include <nlohmann/json.hpp>

#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace calandra {

struct ScriptedRequest {
  std::string target;
  std::string header;  ///< all of it
  Json body;           ///< null for a GET
  int connection = 0;  ///< by number, from 0
};

class ScriptedServer {
 public:
  using Send = std::function<void(std::string_view bytes)>;
  /// Answers a request; false closes the connection. Called in the thread of the connection.
  using Script = std::function<bool(const ScriptedRequest& request, const Send& send)>;

  explicit ScriptedServer(Script script);
  ~ScriptedServer();
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  int port() const { return port_; }
  int num_connections() const { return num_connections_; }

 private:
  void accept();
  void serve(int socket, int connection);

  Script script_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<int> num_connections_ = 0;
  std::mutex mutex_;  // of what follows
  std::set<int> sockets_;
  std::vector<std::thread> threads_;
  bool is_ending_ = false;
  std::thread acceptor_;
};

/// With Content-Length.
std::string whole_reply(int status, std::string_view type, std::string_view body);
/// The header of a stream without a length, which ends with the connection; then events follow.
std::string stream_header();
std::string event_of(const Json& json);

}  // namespace calandra
