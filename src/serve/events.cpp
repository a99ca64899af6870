#include "serve/events.h"

#include <algorithm>

namespace calandra {

std::string format_event(std::string_view data, std::string_view name) {
  std::string out;
  out.reserve(data.size() + name.size() + 24);
  if (!name.empty()) out.append("event: ").append(name).append("\n");
  for (;;) {
    const std::size_t end = std::min(data.find_first_of("\r\n"), data.size());
    out.append("data: ").append(data.substr(0, end)).append("\n");
    if (end == data.size()) break;
    data.remove_prefix(data.substr(end).starts_with("\r\n") ? end + 2 : end + 1);
  }
  out += "\n";
  return out;
}

}  // namespace calandra
