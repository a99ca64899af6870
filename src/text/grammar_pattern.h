#pragma once
// The regular part of ECMA-262's regular expressions (with its flag u), as the keyword `pattern` uses them, and the formats
// that are checked.
//
// Done: alternatives, groups, classes with ranges and escapes, . \d \w \s and their opposites, \p of general categories,
// * + ? {n} {n,} {n,m} also lazy, ^ and $ at the ends of a top-level alternative. Refused by name: anchors elsewhere, \b,
// look-around, back-references, named groups, other properties.

#include "text/grammar_automaton.h"

#include <optional>
#include <string>
#include <string_view>

namespace calandra::grammar {

/// All strings in which the pattern is found: a pattern without ^ and $ may stand anywhere. Throws Error "WHERE: ...".
Expression pattern_expression(std::string_view pattern, std::string_view where, Budget& budget);

/// The strings of a format; nothing for a format that is not checked.
std::optional<Expression> format_expression(std::string_view format, Budget& budget);

/// The formats that format_expression knows, for messages.
std::string known_formats();

}  // namespace calandra::grammar
