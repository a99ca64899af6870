#include "text/regex.h"

#include "base/error.h"
#include "text/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <new>

namespace calandra {
namespace {

constexpr std::size_t kMaxPatternBytes = 20000;
constexpr std::size_t kJitStackStart = 32 << 10;
constexpr std::size_t kJitStackLimit = 4 << 20;
constexpr std::uint32_t kMinMatchLimit = 10'000'000;  // PCRE2's own default

/// The inside of a character class that holds White_Space.
std::string white_space_class() {
  std::string inside;
  for (const auto& [first, last] : kWhiteSpace) {
    fmt::format_to(std::back_inserter(inside), "\\x{{{:x}}}-\\x{{{:x}}}", std::uint32_t{first}, std::uint32_t{last});
  }
  return inside;
}

/// The inside of a character class that holds everything but White_Space.
std::string not_white_space_class() {
  std::string inside;
  std::uint32_t begin = 0;
  for (const auto& [first, last] : kWhiteSpace) {
    fmt::format_to(std::back_inserter(inside), "\\x{{{:x}}}-\\x{{{:x}}}", begin, std::uint32_t{first} - 1);
    begin = std::uint32_t{last} + 1;
  }
  return inside + fmt::format("\\x{{{:x}}}-\\x{{10ffff}}", begin);
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/// Rewrites an Oniguruma pattern for PCRE2, or refuses it. One pass, no syntax tree: PCRE2 checks the rest.
class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  std::string translate() {
    while (!at_end()) {
      const char c = peek();
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        character_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        interval();
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  bool at_end() const { return position_ == pattern_.size(); }
  std::string_view rest() const { return pattern_.substr(position_); }
  char peek(std::size_t ahead = 0) const { return position_ + ahead < pattern_.size() ? pattern_[position_ + ahead] : '\0'; }
  void copy(std::size_t size) {
    out_ += rest().substr(0, size);
    position_ += std::min(size, pattern_.size() - position_);
  }
  void replace(std::size_t size, std::string_view text) {
    out_ += text;
    position_ += size;
  }
  [[noreturn]] void refuse(std::string_view what) const {
    fail("{}: regular expression \"{}\": {} at byte {} is not implemented", where_, printable(pattern_), what, position_);
  }

  void escape() {
    const char c = peek(1);
    if (c == 's') {
      replace(2, '[' + white_space_class() + ']');
    } else if (c == 'S') {
      replace(2, "[^" + white_space_class() + ']');
    } else if (c == 'A' || c == 'z' || c == 'Z') {
      copy(2);
    } else {
      common_escape(c);
    }
  }

  /// Escapes that mean the same inside and outside a character class.
  void common_escape(char c) {
    if (c == 'p' || c == 'P') {
      property();
    } else if (c == 'v') {
      replace(2, "\\x{b}");
    } else if (c == 'u' && is_hex(peek(2)) && is_hex(peek(3)) && is_hex(peek(4)) && is_hex(peek(5))) {
      replace(6, fmt::format("\\x{{{}}}", pattern_.substr(position_ + 2, 4)));
    } else if (is_letter_without_meaning(c)) {
      refuse(fmt::format("\\{}", std::string(c != '\0', c)));
    } else {
      copy(2);
    }
  }

  static bool is_letter_without_meaning(char c) {
    constexpr std::string_view kSame = "xdDnrtfea";  // in both dialects
    return c == '\0' || ((is_letter(c) || is_digit(c)) && kSame.find(c) == std::string_view::npos);
  }

  /// \p{NAME}: general categories have one or two letters, all else is taken for a script.
  void property() {
    const std::size_t end = rest().find('}');
    if (peek(2) != '{' || end == std::string_view::npos) refuse("a property without {}");
    std::string_view name = rest().substr(3, end - 3);
    const std::string_view negation = name.starts_with('^') ? "^" : "";
    name.remove_prefix(negation.size());
    if (name.empty() || !std::ranges::all_of(name, [](char c) { return is_letter(c) || c == '_'; })) {
      refuse(fmt::format("\\{}{{{}}}", peek(1), name));
    }
    const std::string_view script = name.size() > 2 ? "sc:" : "";
    replace(end + 1, fmt::format("\\{}{{{}{}{}}}", peek(1), negation, script, name));
  }

  void character_class() {
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') replace(1, "\\]");  // first in a class it stands for itself
    while (peek() != ']') {
      const char c = peek();
      if (at_end()) refuse("a character class without end");
      if (c == '[') refuse("a class in a class");
      if (rest().starts_with("&&")) refuse("an intersection of classes");
      if (c == '\\') {
        class_escape();
      } else {
        copy(1);
      }
    }
    copy(1);
  }

  void class_escape() {
    const char c = peek(1);
    if (c == 's' || c == 'S') {
      const bool dash_is_itself = out_.ends_with("[-") || out_.ends_with("[^-") || out_.ends_with("\\-");
      if (out_.ends_with('-') && !dash_is_itself) refuse("a range that ends in \\s or \\S");
      replace(2, c == 's' ? white_space_class() : not_white_space_class());
    } else if (c == 'b') {
      copy(2);
    } else {
      common_escape(c);
    }
  }

  void group() {
    if (peek(1) == '*') refuse("(*");
    if (peek(1) != '?') return copy(1);
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"}) {
      if (rest().starts_with(known)) return copy(known.size());
    }
    refuse(rest().substr(0, 4));
  }

  /// {n}, {n,}, {n,m}. What may follow differs: {n,m}+ is possessive in one dialect and a repeated repeat in the other.
  void interval() {
    std::size_t size = 1;
    while (is_digit(peek(size))) ++size;
    if (size == 1) refuse("{ without a number");
    const bool exact = peek(size) == '}';
    if (peek(size) == ',') ++size;
    while (is_digit(peek(size))) ++size;
    if (peek(size) != '}') refuse("{ without }");
    if (peek(size + 1) == '+' || (exact && peek(size + 1) == '?')) refuse("{} followed by + or ?");
    copy(size + 1);
  }

  std::string_view pattern_;
  std::string_view where_;
  std::size_t position_ = 0;
  std::string out_;
};

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 160> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

}  // namespace

struct RegexScratch::Handles {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_jit_stack* jit_stack = pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr);

  ~Handles() {
    pcre2_jit_stack_free(jit_stack);
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
  }
};

RegexScratch::RegexScratch() : handles_(std::make_unique<Handles>()) {
  if (handles_->context == nullptr || handles_->match == nullptr) throw std::bad_alloc();
  // Without a stack of its own (no just-in-time compiler here) the matcher uses the thread's.
  if (handles_->jit_stack != nullptr) pcre2_jit_stack_assign(handles_->context, nullptr, handles_->jit_stack);
}

RegexScratch::~RegexScratch() = default;

void Regex::FreeCode::operator()(void* code) const { pcre2_code_free(static_cast<pcre2_code*>(code)); }

Regex Regex::from_pattern(std::string_view pattern, std::string_view where) {
  return Regex(Translator(pattern, where).translate(), PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, pattern, where);
}

Regex Regex::from_text(std::string_view text, std::string_view where) { return Regex(text, PCRE2_LITERAL, text, where); }

Regex::Regex(std::string_view pattern, std::uint32_t options, std::string_view shown, std::string_view where)
    : name_(fmt::format("{}: regular expression \"{}\"", where, shown)) {
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(context.get(), kMaxPatternBytes);
  int error = 0;
  std::size_t offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | options, &error, &offset,
                            context.get()));
  if (!code_) fail("{}: {}", name_, error_text(error));
  // Where there is no just-in-time compiler this fails and matches are interpreted: slower, the same result.
  pcre2_jit_compile(static_cast<pcre2_code*>(code_.get()), PCRE2_JIT_COMPLETE);
}

std::optional<Regex::Match> Regex::find(std::string_view text, std::size_t from, RegexScratch& scratch) const {
  const RegexScratch::Handles& handles = *scratch.handles_;
  const auto run = [&](std::uint32_t options) {
    return pcre2_match(static_cast<const pcre2_code*>(code_.get()), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, handles.match, handles.context);
  };
  // One long run of white space may be walked back over several times: the limit grows with the text.
  const std::size_t limit = std::min<std::size_t>(std::max<std::size_t>(kMinMatchLimit, 8 * text.size()), UINT32_MAX);
  pcre2_set_match_limit(handles.context, static_cast<std::uint32_t>(limit));
  int result = run(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = run(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) fail("{}: gave up on a text of {} bytes: {}", name_, text.size(), error_text(result));
  const std::size_t* const bounds = pcre2_get_ovector_pointer(handles.match);
  return Match{bounds[0], bounds[1]};
}

std::size_t Regex::next_character(std::string_view text, std::size_t position) {
  return position + (position < text.size() ? first_utf8_unit(text.substr(position)).size : 1);
}

}  // namespace calandra
