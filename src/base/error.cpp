#include "base/error.h"

namespace calandra {

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
