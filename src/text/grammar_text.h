#pragma once
// Arguments of calls that are text as it is, without the quotes and escapes of JSON: what such a text may hold so that its reader
// (argument_types.h) takes it for the string that it is.

#include "text/grammar_automaton.h"

#include <cstdint>
#include <string_view>

namespace calandra::grammar {

/// Whether a name of a tool or an argument comes out of a call as it went in: readers take off blanks, and look for marks.
bool can_be_written(std::string_view name);

/// All texts but those that begin with a quote. In its state 1, as in that of the other guard, everything may follow.
Automaton guard_of_text();

/// All texts but those that may be JSON of any kind, told by their first character, or, of true, false and null, by the two after them.
Automaton guard_of_untyped_text();

/// With fewer characters that guard may have no way to an end.
inline constexpr std::uint32_t kLeastUntypedText = 7;

/// All texts in which `mark` does not come; only its first character is a <.
Automaton automaton_without(std::string_view mark);

}  // namespace calandra::grammar
