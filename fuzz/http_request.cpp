// Any bytes as a connection's requests: the same ones wherever the bytes are cut, never more than the limits, never of a length that two
// servers could understand differently. The first byte chooses the cuts.

#include "serve/request_reader.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace {

using calandra::HttpRequest;
using calandra::RequestReader;

const calandra::RequestLimits kLimits = {.header_bytes = 2048, .target_bytes = 256, .body_bytes = 4096};

void require(bool condition) {
  if (!condition) std::abort();
}

struct Outcome {
  std::vector<HttpRequest> requests;
  int refusal = 0;
};

void check(const HttpRequest& request) {
  const bool has_length = request.headers.find("Content-Length").has_value();
  require(!(has_length && request.headers.find("Transfer-Encoding")));
  require(request.headers.count("Host") == 1 || request.minor_version == 0);
  if (has_length) require(std::stoull(std::string(*request.headers.find("Content-Length"))) == request.body.size());
  require(request.body.size() <= kLimits.body_bytes && request.target.size() <= kLimits.target_bytes);
  require(request.path == "*" || request.path.starts_with("/"));
  for (const auto& [name, value] : request.headers) {
    require(!name.empty() && name.find_first_of(" \t\r\n:") == name.npos);
    require(value.find_first_of("\r\n") == value.npos && value.find('\0') == value.npos);
  }
}

Outcome read(std::string_view bytes, std::size_t piece) {
  RequestReader reader(kLimits);
  Outcome outcome;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    reader.append(bytes.substr(at, piece));
    for (RequestReader::Event event = reader.next(); event != RequestReader::Event::NeedMore; event = reader.next()) {
      if (event == RequestReader::Event::Refusal) {
        outcome.refusal = reader.refusal().status;
        require(outcome.refusal >= 400 && !reader.refusal().message.empty());
        return outcome;
      }
      if (event != RequestReader::Event::Request) continue;
      check(reader.request());
      outcome.requests.push_back(reader.take_request());
    }
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = read(bytes, bytes.size()), cut = read(bytes, 1 + data[0] % 64u);
  require(whole.requests.size() == cut.requests.size());
  for (std::size_t i = 0; i < whole.requests.size(); ++i) {
    require(whole.requests[i].path == cut.requests[i].path && whole.requests[i].body == cut.requests[i].body);
  }
  // Of a header that came in pieces only its end tells what is wrong with it, and that may not have come.
  require(whole.refusal != 0 || cut.refusal == 0);
  return 0;
}
