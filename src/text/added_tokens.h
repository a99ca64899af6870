#pragma once
// Tokens that are found in the text as they stand, before it is cut into pieces: markers such as <think>. Immutable.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;       // never empty
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // looked for in normalized text, by its normalized content
  bool special = false;      // marks structure, is no text: may be left out when tokens become text
};

/// A part of a text: an added token, or text between such tokens (id < 0).
struct TextSection {
  static constexpr std::int32_t kText = -1;
  std::int32_t id;
  std::string_view text;
};

/// Finds a set of added tokens: the leftmost first, the longest of those that begin at one place.
class AddedTokenFinder {
 public:
  AddedTokenFinder() : AddedTokenFinder(std::vector<AddedToken>()) {}
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  /// The sections of `text` (well-formed UTF-8), in order, none of them empty text.
  std::vector<TextSection> split(std::string_view text) const;

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t position) const;

  std::vector<AddedToken> tokens_;         // by content
  std::vector<std::uint32_t> first_byte_;  // tokens before the first that begins with byte i or a higher one; 257 of them
};

}  // namespace calandra
