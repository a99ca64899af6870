#include "text/pretokenizer.h"

#include "base/error.h"
#include "text/json_view.h"
#include "text/normalizer.h"

#include <algorithm>
#include <iterator>

namespace calandra {
namespace {

/// What ByteLevel splits by when use_regex is set.
constexpr std::string_view kByteLevelPattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Joins neighbours: `piece` directly follows `pieces.back()` in the same text.
void extend_last(std::vector<std::string_view>& pieces, std::string_view piece) {
  pieces.back() = {pieces.back().data(), pieces.back().size() + piece.size()};
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonView& config) {
  add(config);
  if (!is_byte_level_) fail("{}: expected a ByteLevel pre-tokenizer, as the last one", config.path());
}

void PreTokenizer::add(const JsonView& config) {
  const std::string_view type = config.string_at("type");
  if (type == "Sequence") {
    for (const JsonView& part : config.at("pretokenizers").elements()) add(part);
    return;
  }
  if (is_byte_level_) fail("{}.type: found \"{}\" after ByteLevel, expected nothing", config.path(), type);
  if (type == "Split") {
    steps_.push_back({.pattern = parse_pattern(config.at("pattern")),
                      .behavior = parse_behavior(config.at("behavior")),
                      .invert = config.bool_at("invert", false)});
  } else if (type == "Digits") {
    const bool individual = config.bool_at("individual_digits", false);
    steps_.push_back({.pattern = Regex::from_pattern(R"(\p{N})", config.path()),
                      .behavior = individual ? Behavior::Isolated : Behavior::Contiguous});
  } else if (type == "ByteLevel") {
    add_byte_level(config);
  } else {
    fail("{}.type: pre-tokenizer \"{}\" is not implemented", config.path(), printable(type));
  }
}

void PreTokenizer::add_byte_level(const JsonView& config) {
  is_byte_level_ = true;
  Step step{.add_prefix_space = config.bool_at("add_prefix_space", true)};
  if (config.bool_at("use_regex", true)) step.pattern = Regex::from_pattern(kByteLevelPattern, config.path());
  if (step.add_prefix_space || step.pattern) steps_.push_back(std::move(step));
}

PreTokenizer::Behavior PreTokenizer::parse_behavior(const JsonView& name) {
  const std::string_view text = name.as_string();
  if (text == "Isolated") return Behavior::Isolated;
  if (text == "Removed") return Behavior::Removed;
  if (text == "MergedWithPrevious") return Behavior::MergedWithPrevious;
  if (text == "MergedWithNext") return Behavior::MergedWithNext;
  if (text == "Contiguous") return Behavior::Contiguous;
  fail("{}: found \"{}\", expected Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous", name.path(), text);
}

void PreTokenizer::split_piece(const Step& step, std::string_view piece, RegexScratch& scratch,
                               std::vector<std::string_view>& out) {
  const auto first = static_cast<std::ptrdiff_t>(out.size());
  bool previous_is_match = false;
  bool has_empty = false;
  const auto add_part = [&](std::size_t begin, std::size_t end, bool is_match) {
    const std::string_view part = piece.substr(begin, end - begin);
    const bool joins = step.behavior == Behavior::Contiguous           ? is_match == previous_is_match
                       : step.behavior == Behavior::MergedWithPrevious ? is_match && !previous_is_match
                       : step.behavior == Behavior::MergedWithNext     ? previous_is_match && !is_match
                                                                       : false;
    previous_is_match = is_match;
    if (step.behavior == Behavior::Removed && is_match) return;
    if (joins && std::ssize(out) > first) {
      extend_last(out, part);
    } else {
      out.push_back(part);
      has_empty |= part.empty();
    }
  };
  std::size_t end = 0;
  step.pattern->for_each_match(piece, scratch, [&](Regex::Match match) {
    if (match.begin > end) add_part(end, match.begin, step.invert);
    add_part(match.begin, match.end, !step.invert);
    end = match.end;
  });
  if (end < piece.size()) add_part(end, piece.size(), step.invert);
  // Empty matches count where neighbours are joined, but are no pieces.
  if (has_empty) out.erase(std::remove(out.begin() + first, out.end(), std::string_view()), out.end());
}

void PreTokenizer::split(std::string_view text, RegexScratch& regex_scratch, Scratch& scratch) const {
  scratch.pieces.clear();
  scratch.prefixed.clear();
  if (!text.empty()) scratch.pieces.push_back(text);
  for (const Step& step : steps_) {
    scratch.next.clear();
    for (std::string_view piece : scratch.pieces) {
      if (step.add_prefix_space && !piece.starts_with(' ')) {
        piece = scratch.prefixed.emplace_back(" ").append(piece);
      }
      if (step.pattern) {
        split_piece(step, piece, regex_scratch, scratch.next);
      } else {
        scratch.next.push_back(piece);
      }
    }
    scratch.pieces.swap(scratch.next);
  }
}

}  // namespace calandra
