#include "text/grammar_number.h"

#include "base/error.h"

#include <algorithm>
#include <array>
#include <map>

namespace calandra::grammar {
namespace {

constexpr int kLeastExponent = -330;  // what is smaller reads as zero
constexpr int kExponentDigits = 3;

/// A bound of a magnitude, ready to be compared digit by digit.
struct MagnitudeBound {
  bool present = false;
  bool exclusive = false;
  Decimal value;

  bool is_zero() const { return value.digits.empty(); }
  int integer_digits() const { return std::max(value.exponent, 1); }
  /// Digits of the text without exponent: those before the point and those after it.
  char plain_digit(int place) const { return digit(value.exponent > 0 ? place : place - 1 + value.exponent); }
  char scientific_digit(int place) const { return digit(place); }
  int num_scientific() const { return static_cast<int>(value.digits.size()); }
  int num_plain() const { return is_zero() ? 0 : num_scientific() + (value.exponent > 0 ? 0 : 1 - value.exponent); }

 private:
  char digit(int place) const {
    return place < 0 || place >= num_scientific() ? '0' : value.digits[static_cast<std::size_t>(place)];
  }
};

/// Bounds of what follows the sign: lower and upper.
using Magnitudes = std::array<MagnitudeBound, 2>;

enum class Phase : std::uint8_t {
  Start,
  Minus,
  Zero,
  Integer,
  Point,
  Fraction,
  Exponent,
  ExponentSign,
  ExponentDigits,
  ExponentAny
};

/// What has to be remembered of the text so far; what no longer matters is zero, so that states are few.
struct Progress {
  Phase phase = Phase::Start;
  bool negative = false;
  bool scientific = false;  // an exponent may follow
  int integer_digits = 0;
  int place = 0;                    // digits so far
  std::array<int, 2> plain{};       // comparison with the bounds so far, as a text without exponent
  std::array<int, 2> normalized{};  // and of the digits alone, for a text with exponent
  std::uint32_t remainder = 0;
  std::array<int, 2> exponents{};  // from, to
  bool negative_exponent = false;
  int exponent = 0, exponent_digits = 0;

  // NOLINTNEXTLINE(modernize-use-nullptr): as in base/digest.h
  auto operator<=>(const Progress&) const = default;
};

int signum(int value) { return (value > 0) - (value < 0); }

class NumberReader {
 public:
  explicit NumberReader(const NumberLimits& limits) : limits_(limits) {
    const NumberLimits::Bound largest = {decimal_of(limits.multiple_of > 1 ? "999999999999999" : "1.7976931348623157e+308"),
                                         false};
    positive_possible_ = set_bounds(bounds_[0], limits.lower, limits.upper, largest);
    negative_possible_ = set_bounds(bounds_[1], negated(limits.upper), negated(limits.lower), largest);
    for (const Magnitudes& of_sign : bounds_) {
      for (const MagnitudeBound& bound : of_sign)
        last_place_ = std::max({last_place_, bound.num_plain(), bound.integer_digits()});
    }
  }

  std::optional<Progress> next(Progress p, char c) const {
    switch (p.phase) {
      case Phase::Start:
        if (c == '-' && negative_possible_) {
          p.phase = Phase::Minus;
          p.negative = true;
          return p;
        }
        if (!positive_possible_) return std::nullopt;
        return first_digit(p, c);
      case Phase::Minus: return first_digit(p, c);
      case Phase::Zero:
      case Phase::Integer:
        if (c == '.' && !limits_.integer) return point(p);
        if (is_exponent_sign(c)) return begin_exponent(p);
        if (p.phase == Phase::Zero || !is_digit(c)) return std::nullopt;
        p.scientific = false;
        p.integer_digits = std::min(p.integer_digits + 1, last_place_ + 1);
        return digit(p, c);
      case Phase::Point:
      case Phase::Fraction:
        if (p.phase == Phase::Fraction && is_exponent_sign(c)) return begin_exponent(p);
        if (!is_digit(c)) return std::nullopt;
        p.phase = Phase::Fraction;
        return digit(p, c);
      case Phase::Exponent:
        if (c == '+' || c == '-') {
          p.phase = Phase::ExponentSign;
          p.negative_exponent = c == '-';
          return p;
        }
        [[fallthrough]];
      case Phase::ExponentSign:
      case Phase::ExponentDigits:
      case Phase::ExponentAny: return exponent_digit(p, c);
    }
    return std::nullopt;
  }

  bool accepts(const Progress& p) const {
    switch (p.phase) {
      case Phase::Zero:
      case Phase::Integer:
      case Phase::Fraction: break;
      case Phase::ExponentDigits: return is_in(p, p.negative_exponent ? -p.exponent : p.exponent);
      case Phase::ExponentAny: return true;
      default: return false;
    }
    const Magnitudes& bounds = bounds_[p.negative ? 1 : 0];
    for (std::size_t i = 0; i < 2; ++i) {
      if (!bounds[i].present) continue;
      int order = p.phase == Phase::Fraction ? p.plain[i] : order_of_integer(p, bounds[i], p.plain[i]);
      if (order == 0 && p.place < bounds[i].num_plain()) order = -1;  // the bound has more digits
      if (order == 0 ? bounds[i].exclusive : (order > 0) == (i == 1)) return false;
    }
    return p.remainder == 0;
  }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_exponent_sign(char c) { return c == 'e' || c == 'E'; }

  static std::optional<NumberLimits::Bound> negated(std::optional<NumberLimits::Bound> bound) {
    if (bound && !bound->value.digits.empty()) bound->value.negative = !bound->value.negative;
    return bound;
  }

  /// Bounds of the magnitude of numbers that are not negative; false if there is none.
  static bool set_bounds(Magnitudes& bounds, const std::optional<NumberLimits::Bound>& lower,
                         const std::optional<NumberLimits::Bound>& upper, const NumberLimits::Bound& largest) {
    if (upper && upper->value.negative) return false;
    if (lower && !lower->value.negative) bounds[0] = {true, lower->exclusive, lower->value};
    const NumberLimits::Bound& least = upper && compare(upper->value, largest.value) <= 0 ? *upper : largest;
    bounds[1] = {true, least.exclusive, least.value};
    return true;
  }

  std::optional<Progress> first_digit(Progress p, char c) const {
    if (!is_digit(c)) return std::nullopt;
    p.phase = c == '0' ? Phase::Zero : Phase::Integer;
    p.integer_digits = 1;
    p.scientific = c != '0' && !limits_.integer;
    return digit(p, c);
  }

  Progress digit(Progress p, char c) const {
    const Magnitudes& bounds = bounds_[p.negative ? 1 : 0];
    for (std::size_t i = 0; i < 2; ++i) {
      if (!bounds[i].present) continue;
      if (p.plain[i] == 0) p.plain[i] = signum(c - bounds[i].plain_digit(p.place));
      if (p.normalized[i] == 0) p.normalized[i] = signum(c - bounds[i].scientific_digit(p.place));
    }
    p.remainder = (p.remainder * 10 + static_cast<std::uint32_t>(c - '0')) % limits_.multiple_of;
    ++p.place;
    return forget(p);
  }

  /// What can no longer matter.
  Progress forget(Progress p) const {
    if (!p.scientific) p.normalized = {};
    p.place = std::min(p.place, last_place_ + 1);
    bool undecided = p.phase != Phase::Fraction;
    for (std::size_t i = 0; i < 2; ++i) {
      undecided |= bounds_[p.negative ? 1 : 0][i].present && (p.plain[i] == 0 || (p.scientific && p.normalized[i] == 0));
    }
    if (!undecided) p.place = 0;
    return p;
  }

  static int order_of_integer(const Progress& p, const MagnitudeBound& bound, int order_of_digits) {
    if (p.integer_digits != bound.integer_digits()) return p.integer_digits < bound.integer_digits() ? -1 : 1;
    return order_of_digits;
  }

  Progress point(Progress p) const {
    const Magnitudes& bounds = bounds_[p.negative ? 1 : 0];
    for (std::size_t i = 0; i < 2; ++i) {
      if (bounds[i].present) p.plain[i] = order_of_integer(p, bounds[i], p.plain[i]);
    }
    p.integer_digits = 0;
    p.phase = Phase::Point;
    return p;
  }

  std::optional<Progress> begin_exponent(const Progress& p) const {
    if (!p.scientific) return std::nullopt;
    Progress result;
    result.phase = Phase::Exponent;
    result.negative = p.negative;
    result.exponents = {kLeastExponent, 0};
    const Magnitudes& bounds = bounds_[p.negative ? 1 : 0];
    for (std::size_t i = 0; i < 2; ++i) {
      const MagnitudeBound& bound = bounds[i];
      if (!bound.present) continue;
      if (bound.is_zero()) {
        if (i == 1) return std::nullopt;
        continue;
      }
      int order = p.normalized[i];
      if (order == 0 && p.place < bound.num_scientific()) order = -1;
      const bool same_will_do = order == 0 ? !bound.exclusive : (order < 0) == (i == 1);
      const int exponent = bound.value.exponent - 1;
      if (i == 0) result.exponents[0] = std::max(kLeastExponent, same_will_do ? exponent : exponent + 1);
      if (i == 1) result.exponents[1] = same_will_do ? exponent : exponent - 1;
    }
    return result;
  }

  static bool is_in(const Progress& p, int exponent) { return exponent >= p.exponents[0] && exponent <= p.exponents[1]; }

  static std::optional<Progress> exponent_digit(Progress p, char c) {
    if (!is_digit(c) || p.exponent_digits == kExponentDigits) return std::nullopt;
    ++p.exponent_digits;
    if (p.phase == Phase::ExponentAny) return p;
    p.phase = Phase::ExponentDigits;
    p.exponent = p.exponent * 10 + (c - '0');
    bool any = true;
    for (int left = kExponentDigits - p.exponent_digits, scale = 1; left >= 0; --left, scale *= 10) {
      const int first = p.exponent * scale, last = first + scale - 1;
      any = any && is_in(p, p.negative_exponent ? -first : first) && is_in(p, p.negative_exponent ? -last : last);
    }
    if (!any) return p;
    Progress result;
    result.phase = Phase::ExponentAny;
    result.exponent_digits = p.exponent_digits;
    return result;
  }

  NumberLimits limits_;
  std::array<Magnitudes, 2> bounds_{};  // of positive and of negative numbers
  bool positive_possible_ = true, negative_possible_ = true;
  int last_place_ = 1;
};

Automaton build_automaton(const NumberLimits& limits, std::string_view where, Budget& budget) {
  const NumberReader reader(limits);
  std::map<Progress, std::uint32_t> numbers;
  std::vector<Progress> states;
  const auto number_of = [&](const Progress& progress) {
    const auto [place, is_new] = numbers.emplace(progress, static_cast<std::uint32_t>(states.size()));
    if (is_new) {
      if (states.size() >= kMaxAutomatonStates)
        fail("{}: these limits of a number need more than {} states", where, kMaxAutomatonStates);
      states.push_back(progress);
    }
    return place->second;
  };
  number_of({});
  Automaton result;
  // NOLINTNEXTLINE(modernize-loop-convert): number_of() adds states meanwhile
  for (std::size_t i = 0; i < states.size(); ++i) {
    budget.spend(30, where);
    std::vector<Automaton::Edge> edges;
    for (const char c : std::string_view("+-.0123456789Ee")) {
      const std::optional<Progress> next = reader.next(states[i], c);
      if (!next) continue;
      const auto code = static_cast<char32_t>(c);
      const std::uint32_t target = number_of(*next);
      if (!edges.empty() && edges.back().target == target && edges.back().last + 1 == code) {
        edges.back().last = code;
      } else {
        edges.push_back({code, code, target});
      }
    }
    result.add_state(edges, reader.accepts(states[i]) ? 0 : Automaton::kNoTag);
  }
  return without_dead_ends(result);
}

}  // namespace

Decimal decimal_of(std::string_view text) {
  Decimal result;
  result.negative = text.starts_with('-');
  if (result.negative) text.remove_prefix(1);
  const std::size_t mark = std::min(text.find_first_of("eE"), text.size());
  std::string_view mantissa = text.substr(0, mark);
  if (mark < text.size()) result.exponent = std::stoi(std::string(text.substr(mark + 1)));
  const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
  result.digits = std::string(mantissa.substr(0, point));
  if (point < mantissa.size()) result.digits += mantissa.substr(point + 1);
  result.exponent += static_cast<int>(point);
  const std::size_t first = std::min(result.digits.find_first_not_of('0'), result.digits.size());
  result.digits.erase(0, first);
  result.exponent -= static_cast<int>(first);
  while (result.digits.ends_with('0')) result.digits.pop_back();
  if (result.digits.empty()) return {};
  return result;
}

int compare(const Decimal& a, const Decimal& b) {
  const auto sign = [](const Decimal& d) { return d.digits.empty() ? 0 : d.negative ? -1 : 1; };
  if (sign(a) != sign(b) || sign(a) == 0) return signum(sign(a) - sign(b));
  if (a.exponent != b.exponent) return (a.exponent < b.exponent) == a.negative ? 1 : -1;
  return signum(a.digits.compare(b.digits)) * sign(a);
}

bool NumberLimits::admits(const Decimal& value) const {
  if (lower) {
    const int order = compare(value, lower->value);
    if (order < 0 || (order == 0 && lower->exclusive)) return false;
  }
  if (upper) {
    const int order = compare(value, upper->value);
    if (order > 0 || (order == 0 && upper->exclusive)) return false;
  }
  const bool is_integer = static_cast<int>(value.digits.size()) <= value.exponent || value.digits.empty();
  if (integer && !is_integer) return false;
  if (multiple_of == 1 || value.digits.empty()) return true;
  std::uint64_t remainder = 0;
  for (int i = 0; i < value.exponent; ++i) {
    const auto place = static_cast<std::size_t>(i);
    const int digit = place < value.digits.size() ? value.digits[place] - '0' : 0;
    remainder = (remainder * 10 + static_cast<std::uint64_t>(digit)) % multiple_of;
  }
  return remainder == 0;
}

Automaton automaton_of_numbers(const NumberLimits& limits, std::string_view where, Budget& budget) {
  if (limits.lower || limits.upper || limits.multiple_of > 1) return build_automaton(limits, where, budget);
  // The most frequent ones, and among the largest.
  const auto any = [](bool integer) {
    NumberLimits none;
    none.integer = integer;
    Budget own;
    return build_automaton(none, "numbers", own);
  };
  static const Automaton numbers = any(false), integers = any(true);
  return limits.integer ? integers : numbers;
}

}  // namespace calandra::grammar
