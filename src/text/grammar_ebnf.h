#pragma once
// Grammar texts to programs of the grammar engine. docs/grammar.md has the syntax.

#include "text/grammar_program.h"

#include <string_view>

namespace calandra::grammar {

/// Throws Error "WHERE:LINE:COLUMN: ..." for what is malformed or too large, for rules that begin with themselves and for
/// rules that never end.
Program program_of_ebnf(std::string_view text, std::string_view where);

}  // namespace calandra::grammar
