#pragma once
// Numbers as JSON text, within bounds, as automata.
//
// Which texts: no leading zeros; a fraction of any length; an exponent only after one digit from 1 to 9 (with or without a
// fraction), as every serialiser writes it. Nothing beyond the range of double, since readers make infinity of it.
// Texts are compared with the bounds digit by digit as decimals, and the bounds are taken as their shortest decimal form.

#include "text/grammar_automaton.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace calandra::grammar {

/// A decimal number: 0.D1D2D3... x 10^exponent, no zero at either end of the digits; no digits: zero.
struct Decimal {
  bool negative = false;
  std::string digits;
  int exponent = 0;
};

/// `text` is a number as JSON writes it.
Decimal decimal_of(std::string_view text);
/// -1, 0 or 1.
int compare(const Decimal& a, const Decimal& b);

struct NumberLimits {
  struct Bound {
    Decimal value;
    bool exclusive = false;
  };
  std::optional<Bound> lower, upper;
  bool integer = false;           // without fraction and exponent
  std::uint32_t multiple_of = 1;  // of integers; above 1 they have at most 15 digits

  bool admits(const Decimal& value) const;
};

Automaton automaton_of_numbers(const NumberLimits& limits, std::string_view where, Budget& budget);

}  // namespace calandra::grammar
