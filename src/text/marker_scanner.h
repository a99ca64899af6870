#pragma once
// Finds the first of some markers in text that comes in pieces.

#include <cstddef>
#include <span>
#include <string_view>

namespace calandra {

struct MarkerMatch {
  std::size_t position = 0;  ///< of the marker, or of the end of what is surely no part of one
  std::string_view marker;   ///< empty if there is none yet
};

/// The leftmost marker, the longest where several begin at one place. What could still become a marker with more text is
/// held back; with `is_end` there is no more. Linear in the text.
MarkerMatch find_marker(std::string_view text, std::span<const std::string_view> markers, bool is_end);

}  // namespace calandra
