#pragma once
// One reply on its way from whoever answers, in any thread, to the connection, in the server's: framing and a queue of bytes.

#include "serve/http_message.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>

namespace calandra {

/// What the request settles about the form of its reply.
struct ReplyForm {
  bool is_head = false;  ///< the reply to HEAD has no body
  int minor_version = 1;
  bool keep_alive = true;
  HttpHeaders headers;                                ///< added to the reply's own
  std::shared_ptr<RequestRecord> record;              ///< hears of the reply; may be null
  std::function<void(int status)> replied = nullptr;  ///< the same
};

class Exchange {
 public:
  /// `wake` is called, from any thread and under a lock, once take() has something new to say; it may not call back.
  Exchange(ReplyForm form, std::size_t backlog_limit_bytes, std::function<void()> wake);

  // For who answers: see HttpResponder.
  bool reply(const HttpResponse& response);
  bool start(int status, const HttpHeaders& headers);
  bool start_events(const HttpHeaders& headers);
  bool send(std::string_view bytes);
  bool finish();
  void abandon();
  std::stop_token gone() const { return gone_.get_token(); }
  std::size_t pending_bytes() const;

  // For the connection.
  struct Work {
    std::string bytes;
    bool is_finished = false;  ///< no bytes will follow these
    bool needs_reply = false;  ///< nobody is left who could answer
    bool is_broken = false;    ///< the stream cannot go on: its client is too slow, or nobody will finish it
  };
  /// Without room for bytes they stay where they are.
  Work take(bool has_room = true);
  /// `count` of the bytes taken are on their way.
  void wrote(std::size_t count);
  /// Adds a comment to a stream of events that has nothing else to say.
  void keep_alive();
  /// The whole reply has been given, though perhaps not taken.
  bool is_finished() const;
  /// Known once take() has given out the beginning.
  bool keeps_connection() const;
  /// Nothing will be sent any more.
  void lose();

 private:
  enum class State { Waiting, Streaming, Finished, Lost };

  bool begin_stream(int status, const HttpHeaders& headers);
  void append_head(int status, const HttpHeaders& headers, std::string_view framing);
  void append_chunk(std::string_view bytes);
  void tell();

  mutable std::mutex mutex_;
  ReplyForm form_;
  std::size_t backlog_limit_bytes_;
  std::function<void()> wake_;
  std::stop_source gone_;
  State state_ = State::Waiting;
  bool is_chunked_ = false;
  bool has_body_ = true;
  bool is_events_ = false;
  bool is_abandoned_ = false;
  bool is_too_slow_ = false;
  bool is_told_ = false;  // wake_ was called since the last take()
  std::string queue_;
  std::size_t in_flight_ = 0;  // taken and not yet written
};

}  // namespace calandra
