#pragma once
// Regular expressions of tokenizer.json: written for Oniguruma (its Ruby syntax), run by PCRE2, just-in-time compiled where
// the processor allows it.
//
// A pattern is translated where the two dialects differ and we know how: \s and \S are exactly White_Space (PCRE2 adds
// U+180E), \p{Han} is a script and not its extensions, \v and \uHHHH, lines end at \n only. What is not known to mean the
// same in both (\w, \b, \h, nested classes, &&, {n}+, inline options but (?i:, ...) is refused by name. Case is folded
// as in Unicode: (?i:s) matches U+017F.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace calandra {

/// What one thread needs to run any Regex; reuse it between calls.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct Handles;
  std::unique_ptr<Handles> handles_;
};

class Regex {
 public:
  struct Match {
    std::size_t begin, end;  // bytes
  };

  /// Throws Error that starts with `where` and names the pattern and what is wrong with it.
  static Regex from_pattern(std::string_view pattern, std::string_view where);
  /// Matches `text` itself.
  static Regex from_text(std::string_view text, std::string_view where);

  /// The leftmost match at or after `from`. `text` must be well-formed UTF-8 and `from` the start of a character.
  /// Throws Error when the matcher gives up (limits on backtracking): never a wrong answer.
  std::optional<Match> find(std::string_view text, std::size_t from, RegexScratch& scratch) const;

  /// Calls on_match(Match) for all matches from left to right; an empty one never directly after another match.
  template <class OnMatch>
  void for_each_match(std::string_view text, RegexScratch& scratch, OnMatch&& on_match) const {
    std::size_t from = 0;
    std::optional<std::size_t> previous_end;
    while (const std::optional<Match> match = find(text, from, scratch)) {
      const bool repeated = match->begin == match->end && previous_end == match->end;
      if (!repeated) {
        on_match(*match);
        previous_end = from = match->end;
      } else if (from = next_character(text, match->end); from > text.size()) {
        break;
      }
    }
  }

 private:
  struct FreeCode {
    void operator()(void* code) const;
  };

  Regex(std::string_view pattern, std::uint32_t options, std::string_view shown, std::string_view where);
  static std::size_t next_character(std::string_view text, std::size_t position);

  std::unique_ptr<void, FreeCode> code_;  // a pcre2_code
  std::string name_;                      // for errors: where it came from and the pattern
};

}  // namespace calandra
