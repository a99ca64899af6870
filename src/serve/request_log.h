#pragma once
// A line of JSON for each request, once all of it has ended: the reply, and what the engine made for it. docs/serving.md lists
// the fields. Nobody who is served waits for the file: lines are written by a thread of the log's own, and dropped, and counted,
// where it cannot keep up, the disk is full or memory has run out.

#include "engine/engine.h"
#include "serve/api_error.h"
#include "serve/http_message.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace calandra {

struct RequestLogOptions {
  std::string file;           // appended to; "-": standard error
  bool with_prompts = false;  // what was asked, and errors in full, which may repeat it
};

/// May be used from any thread.
class RequestLog {
 public:
  /// Throws Error if the file cannot be opened.
  explicit RequestLog(RequestLogOptions options);
  /// Writes what waits.
  ~RequestLog();
  RequestLog(const RequestLog&) = delete;
  RequestLog& operator=(const RequestLog&) = delete;

  /// A line without its end. Returns at once.
  void write(std::string line);
  /// Counts a line that could not even be made.
  void drop();

  const RequestLogOptions& options() const { return options_; }

 private:
  void run();
  bool put(std::string_view line);
  bool tell_of_dropped(std::uint64_t count);
  void reopen_if_moved();

  const RequestLogOptions options_;
  int file_ = -1;
  bool is_torn_ = false;  // the file ends with a part of a line
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::string> waiting_;  // each with its end
  std::size_t waiting_bytes_ = 0;
  std::uint64_t num_dropped_ = 0;
  bool is_closed_ = false;
  std::thread thread_;  // the last member: it uses the others
};

/// What becomes of one request. Whoever has a part in it holds the record; when the last lets go its line is written. May be used
/// from any thread, also under locks: it calls nobody but the log.
class RequestRecord {
 public:
  /// `key` tells which API key was used and not what it is: key_mark().
  RequestRecord(std::shared_ptr<RequestLog> log, const HttpRequest& request, std::string key);
  ~RequestRecord();
  RequestRecord(const RequestRecord&) = delete;
  RequestRecord& operator=(const RequestRecord&) = delete;

  // What the connection knows.
  /// A failure that nobody has told of before, such as a path that there is not, is called by its status.
  void replied(int status, bool is_stream);
  /// A request that could not be read, or not be handled.
  void failed(std::string_view message);
  /// Nothing more is sent; `is_whole`: because nothing is left to be.
  void reply_ended(bool is_whole);

  // What an API knows.
  void came_with(const std::string& body);
  void asked(std::string_view model, std::int64_t num_answers);
  void failed(const ApiError& error);
  /// Once for each answer. `outcome` is what its reader sees of it.
  void answered(const AnswerSummary& summary, AnswerOutcome outcome, std::int64_t reasoning_tokens);

 private:
  using Clock = std::chrono::steady_clock;
  double since_arrival() const { return std::chrono::duration<double>(Clock::now() - arrival_).count(); }
  std::string line() const;

  const std::shared_ptr<RequestLog> log_;
  const std::chrono::system_clock::time_point time_ = std::chrono::system_clock::now();
  const Clock::time_point arrival_ = Clock::now();
  const std::string id_, client_, key_, method_, path_;

  std::mutex mutex_;
  int status_ = 0;
  bool is_stream_ = false;
  bool is_cut_ = false;  // nothing more is sent, and something was left
  std::optional<double> total_seconds_;
  std::string error_, body_, model_;
  // Of all answers.
  std::int64_t num_answers_ = 0;
  std::string finish_;  // each way once, in the order they came
  std::int64_t prompt_tokens_ = 0, cached_tokens_ = 0, made_tokens_ = 0, reasoning_tokens_ = 0;
  std::int64_t accepted_drafts_ = 0, rejected_drafts_ = 0, preemptions_ = 0;
  std::optional<double> queue_seconds_, first_token_seconds_;
};

/// Eight digits that tell keys apart and give none away; empty for an empty key.
std::string key_mark(std::string_view key);

}  // namespace calandra
