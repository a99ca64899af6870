#pragma once
// Makes requests of the bytes of one connection, however they are cut; the bytes of the next request may follow at once. Whatever
// two servers could understand differently is refused: Content-Length beside Transfer-Encoding or twice, codings other than
// chunked, no Host or two. Nothing throws but bad_alloc; what is kept is bounded by the limits.

#include "serve/http_message.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace calandra {

class BodyBudget;

struct RequestLimits {
  std::size_t header_bytes = std::size_t{64} << 10;  ///< request line and fields
  std::size_t target_bytes = std::size_t{8} << 10;
  std::uint64_t body_bytes = std::uint64_t{32} << 20;
  std::shared_ptr<BodyBudget> bodies = nullptr;  ///< what all of them may take together; null: any number of the largest
};

class RequestReader {
 public:
  enum class Event {
    NeedMore,  ///< append more
    Header,    ///< request() is there but for its body, which may still be refused
    Request,   ///< take_request(); the next call goes on with the request after it
    Refusal,   ///< refusal(); nothing that follows can be understood
  };
  struct Refusal {
    int status;
    std::string message;
    std::string path;  ///< empty if it could not be read
  };

  explicit RequestReader(const RequestLimits& limits);
  ~RequestReader();
  RequestReader(RequestReader&&) noexcept;
  RequestReader& operator=(RequestReader&&) noexcept;

  void append(std::string_view bytes);
  Event next();

  // From Header to Request:
  HttpRequest& request();
  HttpRequest take_request();
  bool keep_alive() const;
  /// Some of the body has not been appended yet.
  bool awaits_body() const;
  /// The client waits for "100 Continue" before it sends the body, which will be taken.
  bool expects_continue() const;

  const Refusal& refusal() const;
  /// Nothing of the next request has come.
  bool idle() const;
  /// A header has been given out whose body is not complete.
  bool in_body() const;
  /// Bytes that next() has not used.
  std::size_t buffered_bytes() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace calandra
