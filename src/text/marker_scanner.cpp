#include "text/marker_scanner.h"

#include <string>

namespace calandra {

MarkerMatch find_marker(std::string_view text, std::span<const std::string_view> markers, bool is_end) {
  std::string first_characters;
  for (const auto marker : markers) {
    if (first_characters.find(marker.front()) == std::string::npos) first_characters += marker.front();
  }
  for (std::size_t i = text.find_first_of(first_characters); i != text.npos; i = text.find_first_of(first_characters, i + 1)) {
    const std::string_view rest = text.substr(i);
    std::string_view longest;
    for (const auto marker : markers) {
      if (rest.starts_with(marker)) {
        if (marker.size() > longest.size()) longest = marker;
      } else if (!is_end && marker.starts_with(rest)) {
        return {i, {}};
      }
    }
    if (!longest.empty()) return {i, longest};
  }
  return {text.size(), {}};
}

}  // namespace calandra
