#pragma once
// The "pre_tokenizer" of a tokenizer.json: cuts text into the pieces that byte-pair encoding works on. Immutable; safe from
// many threads. Known: Split, Digits, ByteLevel and Sequence of these; ByteLevel must come last, since pieces are bytes
// from there on. Others are refused by name.

#include "text/regex.h"

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

class JsonView;

class PreTokenizer {
 public:
  /// What one thread needs, reused between calls. Pieces are views of the text or of `prefixed`.
  struct Scratch {
    std::vector<std::string_view> pieces;
    std::vector<std::string_view> next;
    std::deque<std::string> prefixed;
  };

  explicit PreTokenizer(const JsonView& config);

  /// Fills scratch.pieces with the non-empty pieces of `text` (well-formed UTF-8), in order.
  void split(std::string_view text, RegexScratch& regex_scratch, Scratch& scratch) const;

 private:
  /// What becomes of the matches of a pattern and of the text between them.
  enum class Behavior : std::uint8_t { Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous };
  struct Step {
    bool add_prefix_space = false;  // to each piece that does not begin with one, before it is split
    std::optional<Regex> pattern = {};
    Behavior behavior = Behavior::Isolated;
    bool invert = false;  // matches and the text between change places
  };

  void add(const JsonView& config);
  void add_byte_level(const JsonView& config);
  static Behavior parse_behavior(const JsonView& name);
  static void split_piece(const Step& step, std::string_view piece, RegexScratch& scratch, std::vector<std::string_view>& out);

  std::vector<Step> steps_;
  bool is_byte_level_ = false;
};

}  // namespace calandra
