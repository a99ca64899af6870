#include "serve/request_reader.h"

#include "base/error.h"
#include "serve/body_budget.h"
#include "serve/request_target.h"

#include <fmt/format.h>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace calandra {
namespace {

namespace http = boost::beast::http;
using boost::beast::string_view;
using boost::system::error_code;

std::string to_string(string_view text) { return {text.data(), text.size()}; }

/// Beast's parser, which writes straight into an HttpRequest. Fields of trailers are parsed and dropped.
class Parser final : public http::basic_parser<true> {
 public:
  explicit Parser(const RequestLimits& limits) : target_bytes_(limits.target_bytes), bodies_(limits.bodies) {
    header_limit(static_cast<std::uint32_t>(limits.header_bytes));
    body_limit(limits.body_bytes);
  }

  HttpRequest request;
  bool has_line = false;
  bool is_target_too_long = false;
  bool lacks_room = false;

  /// Of a body that has not begun: it could be taken, were it to come now.
  bool has_room() const {
    return !bodies_ || !request.body.empty() || bodies_->has_room_for(content_length_remaining().value_or(0));
  }

 private:
  void on_request_impl(http::verb /*verb*/, string_view method, string_view target, int version, error_code& ec) override {
    has_line = true;
    request.method = to_string(method);
    request.minor_version = version % 10;
    is_target_too_long = target.size() > target_bytes_;
    if (is_target_too_long) {
      ec = http::error::header_limit;
      return;
    }
    request.target = to_string(target);
    std::optional<RequestTarget> parts = parse_request_target(request.method, request.target);
    if (!parts) {
      ec = http::error::bad_target;
      return;
    }
    request.path = std::move(parts->path);
    request.query = std::move(parts->query);
  }

  void on_field_impl(http::field /*field*/, string_view name, string_view value, error_code& /*ec*/) override {
    if (!has_header_) request.headers.add(to_string(name), to_string(value));
  }

  void on_header_impl(error_code& /*ec*/) override { has_header_ = true; }

  std::size_t on_body_impl(string_view bytes, error_code& ec) override {
    if (bodies_ && !request.body_share) request.body_share = std::make_shared<BodyShare>(bodies_);
    lacks_room = bodies_ && !request.body_share->grow(bytes.size());
    if (lacks_room) {
      ec = http::error::body_limit;
      return 0;
    }
    request.body.append(bytes.data(), bytes.size());
    return bytes.size();
  }

  std::size_t on_chunk_body_impl(std::uint64_t /*rest*/, string_view bytes, error_code& ec) override {
    return on_body_impl(bytes, ec);
  }

  void on_response_impl(int /*status*/, string_view /*reason*/, int /*version*/, error_code& /*ec*/) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>& /*length*/, error_code& /*ec*/) override {}
  void on_chunk_header_impl(std::uint64_t /*size*/, string_view /*extension*/, error_code& /*ec*/) override {}
  void on_finish_impl(error_code& /*ec*/) override {}

  std::size_t target_bytes_;
  std::shared_ptr<BodyBudget> bodies_;
  bool has_header_ = false;
};

/// "... HTTP/2.0": well-formed, so that the version itself is at fault.
bool ends_with_version(std::string_view line) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::string_view version = line.substr(line.find_last_of(' ') + 1);
  return version.size() == 8 && version.starts_with("HTTP/") && is_digit(version[5]) && version[6] == '.' && is_digit(version[7]);
}

using Refusal = RequestReader::Refusal;

/// What Beast lets pass and we do not.
std::optional<Refusal> objection_to(const HttpRequest& request) {
  const auto refuse = [&](int status, std::string message) {
    return Refusal{.status = status, .message = std::move(message), .path = request.path};
  };
  const HttpHeaders& headers = request.headers;
  const int hosts = headers.count("Host");
  if (hosts > 1 || (hosts == 0 && request.minor_version > 0)) {
    return refuse(400, fmt::format("Host: expected one, found {}", hosts));
  }
  const int lengths = headers.count("Content-Length");
  if (lengths > 1) return refuse(400, fmt::format("Content-Length: expected one, found {}", lengths));
  if (lengths == 1) {
    const std::string_view length = *headers.find("Content-Length");
    if (length.find_first_not_of("0123456789") != length.npos) {
      return refuse(400, fmt::format("Content-Length: expected a number, found '{}'", printable(length)));
    }
  }
  if (const auto coding = headers.find("Transfer-Encoding")) {
    if (request.minor_version == 0) return refuse(400, "Transfer-Encoding: HTTP/1.0 has none");
    if (lengths > 0) return refuse(400, "Content-Length and Transfer-Encoding: expected one of them, found both");
    if (headers.count("Transfer-Encoding") > 1 || !equal_ignoring_case(*coding, "chunked")) {
      return refuse(501, fmt::format("Transfer-Encoding: expected chunked, found '{}'", printable(*coding)));
    }
  }
  if (const auto expectation = headers.find("Expect"); expectation && !equal_ignoring_case(*expectation, "100-continue")) {
    return refuse(417, fmt::format("Expect: expected 100-continue, found '{}'", printable(*expectation)));
  }
  return std::nullopt;
}

}  // namespace

class RequestReader::State {
 public:
  explicit State(RequestLimits limits) : limits_(std::move(limits)) {}

  void append(std::string_view bytes) {
    // What was used is dropped before the buffer grows, not after every step: a body comes in many small pieces.
    input_.erase(0, used_);
    used_ = 0;
    input_ += bytes;
  }

  Event next() {
    if (refusal_) return Event::Refusal;
    if (phase_ == Phase::Complete) begin_next();
    if (phase_ == Phase::Between && !begin_request()) return Event::NeedMore;
    for (;;) {
      if (phase_ == Phase::Body && parser_->is_done()) {
        phase_ = Phase::Complete;
        release_buffer();
        return Event::Request;
      }
      if (phase_ == Phase::Body && !parser_->has_room()) {
        parser_->lacks_room = true;
        return refuse(http::error::body_limit);
      }
      if (rest().empty()) return Event::NeedMore;
      error_code ec;
      const std::size_t count = parser_->put(boost::asio::const_buffer(rest().data(), rest().size()), ec);
      used_ += count;
      const bool needs_more = ec == http::error::need_more || (!ec && count == 0);
      if (ec && !needs_more) return refuse(ec);
      if (phase_ == Phase::Header) {
        header_bytes_ += count;
        if (header_bytes_ > limits_.header_bytes) return refuse(http::error::header_limit);
        if (parser_->is_header_done()) return end_header();
      }
      if (!needs_more) continue;
      // Only a chunk's size line or trailers can wait here for their end.
      if (rest().size() > limits_.header_bytes) return refuse(http::error::header_limit);
      return Event::NeedMore;
    }
  }

  HttpRequest& request() { return parser_->request; }
  HttpRequest take_request() { return std::move(parser_->request); }
  bool keep_alive() const { return parser_->keep_alive(); }
  bool awaits_body() const { return !parser_->is_done(); }
  bool expects_continue() const {
    return awaits_body() && rest().empty() && parser_->has_room() && parser_->request.minor_version > 0 &&
           parser_->request.headers.find("Expect").has_value();
  }
  const Refusal& refusal() const { return *refusal_; }
  bool idle() const { return (phase_ == Phase::Between || phase_ == Phase::Complete) && rest().empty() && !refusal_; }
  bool in_body() const { return phase_ == Phase::Body; }
  std::size_t buffered_bytes() const { return rest().size(); }

 private:
  enum class Phase { Between, Header, Body, Complete };

  std::string_view rest() const { return std::string_view(input_).substr(used_); }

  void begin_next() {
    parser_.reset();
    phase_ = Phase::Between;
  }

  /// Blank lines before a request are skipped (RFC 9112, 2.2). False if nothing else has come.
  bool begin_request() {
    while (rest().starts_with("\r\n")) used_ += 2;
    if (rest().empty() || rest() == "\r") return false;
    parser_.emplace(limits_);
    header_bytes_ = 0;
    phase_ = Phase::Header;
    return true;
  }

  Event end_header() {
    refusal_ = objection_to(parser_->request);
    if (refusal_) return Event::Refusal;
    parser_->eager(true);
    phase_ = Phase::Body;
    return Event::Header;
  }

  /// A connection that waits for an answer holds no buffer.
  void release_buffer() {
    if (rest().empty()) {
      input_ = std::string();
      used_ = 0;
    }
  }

  Event refuse(const error_code& ec) {
    refusal_ = Refusal{.status = 400, .message = "request: " + ec.message(), .path = parser_->request.path};
    if (parser_->lacks_room) {
      refusal_->status = 503;
      refusal_->message =
          fmt::format("body: the {} bytes that those of all requests may take together are in use", limits_.bodies->bytes());
    } else if (ec == http::error::body_limit) {
      refusal_->status = 413;
      refusal_->message = fmt::format("body: expected at most {} bytes, found more", limits_.body_bytes);
    } else if (ec == http::error::header_limit) {
      const bool is_line = parser_->is_target_too_long || (!parser_->has_line && rest().find("\r\n") == rest().npos);
      refusal_->status = is_line ? 414 : 431;
      refusal_->message =
          is_line ? fmt::format("request line: expected a target of at most {} bytes, found more", limits_.target_bytes)
                  : fmt::format("header: expected at most {} bytes, found more", limits_.header_bytes);
    } else if (ec == http::error::bad_version && ends_with_version(rest().substr(0, rest().find("\r\n")))) {
      refusal_->status = 505;
      refusal_->message = "request line: expected HTTP/1.1 or HTTP/1.0, found another version";
    } else if (ec == http::error::bad_target) {
      refusal_->message =
          fmt::format("request line: expected a target such as /v1/models, found '{}'", printable(request().target));
    }
    parser_->request = {};  // what came of the body is of no use while the refusal is on its way
    return Event::Refusal;
  }

  RequestLimits limits_;
  Phase phase_ = Phase::Between;
  std::optional<Parser> parser_;
  std::string input_;
  std::size_t used_ = 0;          // of input_
  std::size_t header_bytes_ = 0;  // of the header that is being read
  std::optional<Refusal> refusal_;
};

RequestReader::RequestReader(const RequestLimits& limits) : state_(std::make_unique<State>(limits)) {}
RequestReader::~RequestReader() = default;
RequestReader::RequestReader(RequestReader&&) noexcept = default;
RequestReader& RequestReader::operator=(RequestReader&&) noexcept = default;

void RequestReader::append(std::string_view bytes) { state_->append(bytes); }
RequestReader::Event RequestReader::next() { return state_->next(); }
HttpRequest& RequestReader::request() { return state_->request(); }
HttpRequest RequestReader::take_request() { return state_->take_request(); }
bool RequestReader::keep_alive() const { return state_->keep_alive(); }
bool RequestReader::awaits_body() const { return state_->awaits_body(); }
bool RequestReader::expects_continue() const { return state_->expects_continue(); }
const RequestReader::Refusal& RequestReader::refusal() const { return state_->refusal(); }
bool RequestReader::idle() const { return state_->idle(); }
bool RequestReader::in_body() const { return state_->in_body(); }
std::size_t RequestReader::buffered_bytes() const { return state_->buffered_bytes(); }

}  // namespace calandra
