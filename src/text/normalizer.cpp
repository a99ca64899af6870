#include "text/normalizer.h"

#include "base/error.h"
#include "text/json_view.h"
#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace calandra {
namespace {

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

/// Puts marks into canonical order: stable, by combining class, within each run of characters that have one. (utf8proc's
/// own ordering takes quadratic time on long runs.)
void order_marks(std::vector<utf8proc_int32_t>& code_points) {
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  auto begin = code_points.begin();
  while (begin != code_points.end()) {
    begin = std::find_if(begin, code_points.end(), [&](auto c) { return combining_class(c) != 0; });
    const auto end = std::find_if(begin, code_points.end(), [&](auto c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

/// Appends the normal form of a text that no other text can combine with.
void append_normal_form(std::string_view text, int options, std::string& out) {
  std::vector<utf8proc_int32_t> code_points;
  std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition has 18
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = first_utf8_unit(text.substr(i)).size;
    int boundary_class = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(decode_utf8(text.substr(i, size))), parts.data(),
                                               parts.size(), static_cast<utf8proc_option_t>(options), &boundary_class);
    code_points.insert(code_points.end(), parts.begin(), parts.begin() + count);
    i += size;
  }
  order_marks(code_points);
  const auto count = utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()),
                                              static_cast<utf8proc_option_t>(options));
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    append_utf8(static_cast<char32_t>(code_points[static_cast<std::size_t>(i)]), out);
  }
}

/// ASCII is normal in every form, and only the last ASCII character before others may combine with what follows.
std::string normal_form(std::string_view text, int options) {
  std::string out;
  out.reserve(text.size());
  auto begin = text.begin();
  while (begin != text.end()) {
    auto other = std::find_if_not(begin, text.end(), is_ascii);
    if (other != text.end() && other != begin) --other;
    out.append(begin, other);
    if (other == text.end()) break;
    begin = std::find_if(other + 1, text.end(), is_ascii);
    append_normal_form({other, begin}, options, out);
  }
  return out;
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = first_utf8_unit(text.substr(i)).size;
    const char32_t code_point = decode_utf8(text.substr(i, size));
    // The one character whose lower case is two: I with dot above.
    if (code_point == 0x130) {
      out += "i\u0307";
    } else {
      append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))), out);
    }
    i += size;
  }
  return out;
}

std::string replace_all(std::string_view text, const Regex& pattern, std::string_view content, RegexScratch& scratch) {
  std::string out;
  std::size_t copied = 0;
  pattern.for_each_match(text, scratch, [&](Regex::Match match) {
    out.append(text.substr(copied, match.begin - copied)).append(content);
    copied = match.end;
  });
  return out.append(text.substr(copied));
}

}  // namespace

Regex parse_pattern(const JsonView& pattern) {
  if (const auto text = pattern.find("String")) {
    if (text->as_string().empty()) fail("{}: found nothing, expected a text", text->path());
    return Regex::from_text(text->as_string(), text->path());
  }
  const JsonView regex = pattern.at("Regex");
  return Regex::from_pattern(regex.as_string(), regex.path());
}

Normalizer::Normalizer(const JsonView& config) { add(config); }

void Normalizer::add(const JsonView& config) {
  const std::string_view type = config.string_at("type");
  if (type == "Sequence") {
    for (const JsonView& part : config.at("normalizers").elements()) add(part);
  } else if (type == "NFC") {
    steps_.push_back({.kind = Kind::Nfc});
  } else if (type == "NFD") {
    steps_.push_back({.kind = Kind::Nfd});
  } else if (type == "NFKC") {
    steps_.push_back({.kind = Kind::Nfkc});
  } else if (type == "NFKD") {
    steps_.push_back({.kind = Kind::Nfkd});
  } else if (type == "Lowercase") {
    steps_.push_back({.kind = Kind::Lowercase});
  } else if (type == "Strip") {
    steps_.push_back(
        {.kind = Kind::Strip, .left = config.at("strip_left").as_bool(), .right = config.at("strip_right").as_bool()});
  } else if (type == "Prepend") {
    steps_.push_back({.kind = Kind::Prepend, .content = lossy_utf8(config.string_at("prepend"))});
  } else if (type == "Replace") {
    steps_.push_back({.kind = Kind::Replace,
                      .content = lossy_utf8(config.string_at("content")),
                      .pattern = parse_pattern(config.at("pattern"))});
  } else {
    fail("{}.type: normalizer \"{}\" is not implemented", config.path(), printable(type));
  }
}

std::string Normalizer::apply(const Step& step, std::string text, RegexScratch& scratch) {
  constexpr int kStable = UTF8PROC_STABLE;
  switch (step.kind) {
    case Kind::Nfc: return normal_form(text, kStable | UTF8PROC_COMPOSE);
    case Kind::Nfd: return normal_form(text, kStable | UTF8PROC_DECOMPOSE);
    case Kind::Nfkc: return normal_form(text, kStable | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case Kind::Nfkd: return normal_form(text, kStable | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    case Kind::Lowercase: return lowercase(text);
    case Kind::Strip:
      if (step.right) text.resize(text.size() - trailing_white_space(text));
      if (step.left) text.erase(0, leading_white_space(text));
      return text;
    case Kind::Prepend: return text.empty() ? text : step.content + text;
    case Kind::Replace: return replace_all(text, *step.pattern, step.content, scratch);
  }
  return text;
}

std::string Normalizer::normalize(std::string_view text, RegexScratch& scratch) const {
  std::string result(text);
  for (const Step& step : steps_) result = apply(step, std::move(result), scratch);
  return result;
}

}  // namespace calandra
