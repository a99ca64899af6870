#include "base/error.h"

namespace calandra {

void fail_formatted(fmt::string_view format, fmt::format_args arguments) { throw Error(fmt::vformat(format, arguments)); }

std::string_view json_complaint(std::string_view what) {
  for (const std::string_view begin : {"] ", "parse error at "}) {
    if (const std::size_t at = what.find(begin); at != what.npos) what.remove_prefix(at + begin.size());
  }
  return what;
}

std::string printable(std::string_view name) {
  constexpr std::size_t kLongest = 200;
  std::string out;
  for (const char c : name.substr(0, kLongest)) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7F) {
      out += fmt::format("\\x{:02x}", code);
    } else {
      out += c;
    }
  }
  if (name.size() > kLongest) out += "...";
  return out;
}

}  // namespace calandra
