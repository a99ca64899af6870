#pragma once
// The "normalizer" of a tokenizer.json: what is done to text before it is cut into pieces. Immutable; safe from many threads.
// Known: NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace and Sequence of these. Others are refused by name.

#include "text/regex.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

class JsonView;

/// {"String": s} or {"Regex": r}, as normalizers and pre-tokenizers write it.
Regex parse_pattern(const JsonView& pattern);

class Normalizer {
 public:
  Normalizer() = default;  // leaves text as it is
  explicit Normalizer(const JsonView& config);

  bool empty() const { return steps_.empty(); }

  /// `text` must be well-formed UTF-8; so is the result. Linear in the size of the text.
  std::string normalize(std::string_view text, RegexScratch& scratch) const;

 private:
  enum class Kind : std::uint8_t { Nfc, Nfd, Nfkc, Nfkd, Lowercase, Strip, Prepend, Replace };
  struct Step {
    Kind kind;
    bool left = false, right = false;   // kStrip
    std::string content = {};           // kPrepend, kReplace
    std::optional<Regex> pattern = {};  // kReplace
  };

  void add(const JsonView& config);
  static std::string apply(const Step& step, std::string text, RegexScratch& scratch);

  std::vector<Step> steps_;
};

}  // namespace calandra
