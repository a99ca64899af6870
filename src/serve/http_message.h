#pragma once
// What a client asks and what it is answered, as plain data; nothing here knows sockets.

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra {

/// Of ASCII letters; other bytes must be the same.
bool equal_ignoring_case(std::string_view a, std::string_view b);

/// Header fields in the order they came. Upper and lower case of a name are the same.
class HttpHeaders {
 public:
  using Field = std::pair<std::string, std::string>;

  HttpHeaders() = default;
  HttpHeaders(std::initializer_list<Field> fields) : fields_(fields) {}

  void add(std::string name, std::string value) { fields_.emplace_back(std::move(name), std::move(value)); }
  void add(const HttpHeaders& others) { fields_.insert(fields_.end(), others.fields_.begin(), others.fields_.end()); }

  /// The first value of that name.
  std::optional<std::string_view> find(std::string_view name) const;
  int count(std::string_view name) const;

  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }

 private:
  std::vector<Field> fields_;
};

class BodyShare;
class RequestRecord;

struct HttpRequest {
  std::string method;  ///< as sent: "GET"
  std::string target;  ///< as sent
  std::string path;    ///< of the target, percent-decoded; any bytes but control characters
  std::string query;   ///< of the target, as sent, without the '?'
  int minor_version = 1;
  HttpHeaders headers;
  std::string body;
  std::shared_ptr<BodyShare> body_share;  ///< of the memory for bodies, to be kept as long as the body; may be null
  std::string peer;                       ///< address and port
  std::string id;  ///< of this request alone; every reply says it as x-request-id and, for Anthropic's clients, request-id
  std::shared_ptr<RequestRecord> record;  ///< for the log of requests; may be null
};

/// A whole reply. Content-Length, Connection, Date and the like are added by who sends it; a status without a body (204, 304)
/// drops it.
struct HttpResponse {
  int status = 200;
  HttpHeaders headers;
  std::string body;
};

/// Gives an error the shape of the API that the path belongs to. The path is empty where a request line could not be read.
using ErrorFormat = std::function<HttpResponse(int status, std::string_view message, std::string_view path)>;

/// The message as a line of plain text.
HttpResponse plain_error(int status, std::string_view message, std::string_view path);

std::string_view reason_phrase(int status);

}  // namespace calandra
