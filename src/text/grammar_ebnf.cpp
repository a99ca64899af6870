// Reads grammar texts; grammar_rules.cpp makes automata of the rules.

#include "text/grammar_ebnf.h"

#include "base/error.h"
#include "text/grammar_rules.h"
#include "text/unicode.h"

#include <algorithm>
#include <map>
#include <string>

namespace calandra::grammar {
namespace {

constexpr std::size_t kMaxGrammarBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxRules = 2'000;
constexpr int kMaxParentheses = 100;
constexpr std::uint32_t kMaxRepetitions = 10'000;

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name(char c) { return is_name_start(c) || (c >= '0' && c <= '9') || c == '-'; }

class EbnfParser {
 public:
  EbnfParser(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  std::vector<RuleSyntax> parse() {
    if (!is_valid_utf8(text_)) fail("{}: found a grammar that is not UTF-8", where_);
    skip_blanks();
    while (!at_end()) {
      const std::size_t place = place_;
      const std::uint32_t rule = expect_name();
      if (is_defined_[rule]) reject(place, fmt::format("rule '{}' is defined twice", rules_[rule].name));
      if (!accept("::=")) reject(place_, "expected ::=");
      rules_[rule].expression = parse_choice(0);
      is_defined_[rule] = true;
      if (!at_end() && !at_rule()) reject(place_, fmt::format("unexpected '{}'", printable(here())));
    }
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (!is_defined_[i]) reject(first_uses_[i], fmt::format("there is no rule '{}'", rules_[i].name));
    }
    if (!numbers_.contains("root")) fail("{}: there is no rule 'root', where a grammar starts", where_);
    return std::move(rules_);
  }

  std::uint32_t root() const { return numbers_.at("root"); }

 private:
  [[noreturn]] void reject(std::size_t place, std::string_view what) const {
    const std::string_view before = text_.substr(0, place);
    const auto line = 1 + std::ranges::count(before, '\n');
    const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    const std::size_t column = 1 + code_points(before.substr(line_start)).size();
    fail("{}:{}:{}: {}", where_, line, column, what);
  }

  // --- characters

  bool at_end() const { return place_ == text_.size(); }
  char current() const { return at_end() ? '\0' : text_[place_]; }
  std::string_view here() const { return text_.substr(place_, first_utf8_unit(text_.substr(place_)).size); }
  void skip_blanks() {
    while (!at_end()) {
      if (current() == '#') {
        place_ = std::min(text_.find('\n', place_), text_.size());
      } else if (std::string_view(" \t\r\n").find(current()) != std::string_view::npos) {
        ++place_;
      } else {
        return;
      }
    }
  }
  /// Takes what is given and the blanks after it.
  bool accept(std::string_view symbol) {
    if (text_.substr(place_, symbol.size()) != symbol) return false;
    place_ += symbol.size();
    skip_blanks();
    return true;
  }
  std::string_view peek_name() const {
    std::size_t end = place_;
    if (!at_end() && is_name_start(current())) {
      while (end < text_.size() && is_name(text_[end])) ++end;
    }
    return text_.substr(place_, end - place_);
  }
  /// Whether a rule's definition begins here.
  bool at_rule() {
    const std::size_t before = place_;
    place_ += peek_name().size();
    skip_blanks();
    const bool found = place_ > before && text_.substr(place_, 3) == "::=";
    place_ = before;
    return found;
  }
  std::uint32_t expect_name() {
    const std::string name(peek_name());
    if (name.empty()) reject(place_, at_end() ? "expected a rule's name before the end" : "expected a rule's name");
    const auto [place, is_new] = numbers_.emplace(name, static_cast<std::uint32_t>(rules_.size()));
    if (is_new) {
      if (rules_.size() >= kMaxRules) reject(place_, fmt::format("more than {} rules", kMaxRules));
      rules_.push_back({name, {}});
      is_defined_.push_back(false);
      first_uses_.push_back(place_);
    }
    place_ += name.size();
    skip_blanks();
    return place->second;
  }

  // --- expressions

  Expression parse_choice(int depth) {
    if (depth > kMaxParentheses) reject(place_, fmt::format("more than {} parentheses inside each other", kMaxParentheses));
    std::vector<Expression> choices;
    do choices.push_back(parse_sequence(depth));
    while (accept("|"));
    return Expression::choice(std::move(choices));
  }

  Expression parse_sequence(int depth) {
    std::vector<Expression> parts;
    while (!at_end() && current() != '|' && current() != ')' && !at_rule()) parts.push_back(parse_repeated(depth));
    return Expression::sequence(std::move(parts));
  }

  Expression parse_repeated(int depth) {
    Expression part = parse_part(depth);
    int num_suffixes = 0;
    while (true) {
      std::uint32_t min = 0, max = kNoLimit;
      const std::size_t place = place_;
      if (accept("*")) {
      } else if (accept("+")) {
        min = 1;
      } else if (accept("?")) {
        max = 1;
      } else if (accept("{")) {
        const bool no_min = current() == ',';
        min = max = no_min ? 0 : parse_number();
        if (accept(",")) max = current() == '}' && !no_min ? kNoLimit : parse_number();
        if (!accept("}")) reject(place_, "expected }");
        if (min > max) reject(place, "a repetition whose end is before its start");
      } else {
        return part;
      }
      if (++num_suffixes > 3) reject(place, "more than three repetitions of one another");
      part = Expression::repeat(std::move(part), min, max);
    }
  }

  std::uint32_t parse_number() {
    const std::size_t start = place_;
    std::uint32_t number = 0;
    while (current() >= '0' && current() <= '9') {
      number = number * 10 + static_cast<std::uint32_t>(current() - '0');
      if (number > kMaxRepetitions) reject(start, fmt::format("expected a number up to {}", kMaxRepetitions));
      ++place_;
    }
    if (place_ == start) reject(start, "expected a number");
    skip_blanks();
    return number;
  }

  Expression parse_part(int depth) {
    if (is_name_start(current())) {
      Expression call;
      call.kind = Expression::Kind::Call;
      call.rule = expect_name();
      return call;
    }
    if (current() == '"') return parse_text();
    if (current() == '[') return Expression::one_of(parse_class());
    if (accept(".")) return Expression::one_of(complement({}));
    const std::size_t start = place_;
    if (!accept("(")) reject(place_, fmt::format("unexpected '{}'", printable(here())));
    Expression group = parse_choice(depth + 1);
    if (!accept(")")) reject(start, "a ( without its )");
    return group;
  }

  Expression parse_text() {
    const std::size_t start = place_++;
    std::vector<Expression> characters;
    while (current() != '"') {
      if (at_end()) reject(start, "a \" without its end");
      const char32_t c = parse_character();
      characters.push_back(Expression::one_of({{c, c}}));
    }
    ++place_;
    skip_blanks();
    return Expression::sequence(std::move(characters));
  }

  CharacterSet parse_class() {
    const std::size_t start = place_++;
    const bool negated = current() == '^';
    if (negated) ++place_;
    CharacterSet set;
    while (current() != ']') {
      if (at_end()) reject(start, "a [ without its ]");
      const std::size_t place = place_;
      const char32_t first = parse_character();
      char32_t last = first;
      if (current() == '-' && place_ + 1 < text_.size() && text_[place_ + 1] != ']') {
        ++place_;
        last = parse_character();
        if (last < first) reject(place, "a range whose end is before its start");
      }
      set.push_back({first, last});
    }
    ++place_;
    skip_blanks();
    set = normalize(std::move(set));
    return negated ? complement(set) : set;
  }

  char32_t parse_character() {
    if (current() != '\\') {
      const std::string_view unit = here();
      place_ += unit.size();
      return decode_utf8(unit);
    }
    const std::size_t start = place_++;
    const char escape = current();
    if (!at_end()) ++place_;
    switch (escape) {
      case 'n': return '\n';
      case 'r': return '\r';
      case 't': return '\t';
      case 'x': return parse_hex(start, 2);
      case 'u': return parse_hex(start, 4);
      case 'U': return parse_hex(start, 8);
      case '\\':
      case '"':
      case '[':
      case ']':
      case '^':
      case '-':
      case '/':
      case '.':
      case '\'': return static_cast<char32_t>(escape);
      default: reject(start, "expected one of the escapes \\n \\r \\t \\xHH \\uHHHH \\UHHHHHHHH \\\\ \\\" \\[ \\] \\^ \\-");
    }
  }

  char32_t parse_hex(std::size_t start, int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++place_) {
      const char c = current();
      const bool is_digit = c >= '0' && c <= '9', is_upper = c >= 'A' && c <= 'F', is_lower = c >= 'a' && c <= 'f';
      if (!is_digit && !is_upper && !is_lower) reject(start, fmt::format("expected {} hexadecimal digits", digits));
      value = value * 16 + static_cast<char32_t>(is_digit ? c - '0' : is_upper ? c - 'A' + 10 : c - 'a' + 10);
    }
    if (value > kLastCodePoint || (value >= 0xD800 && value <= 0xDFFF)) reject(start, "expected the number of a character");
    return value;
  }

  std::string_view text_;
  std::string_view where_;
  std::size_t place_ = 0;
  std::vector<RuleSyntax> rules_;
  std::vector<bool> is_defined_;
  std::vector<std::size_t> first_uses_;
  std::map<std::string, std::uint32_t> numbers_;
};

}  // namespace

Program program_of_ebnf(std::string_view text, std::string_view where) {
  if (text.size() > kMaxGrammarBytes)
    fail("{}: found a grammar of {} bytes, expected at most {}", where, text.size(), kMaxGrammarBytes);
  EbnfParser parser(text, where);
  const std::vector<RuleSyntax> rules = parser.parse();
  return program_of_rules(rules, parser.root(), where);
}

}  // namespace calandra::grammar
