#pragma once
// JSON Schema to a program of the grammar engine.
//
// A schema becomes alternatives without "and" (schema_constraints.h): those of anyOf and oneOf, each with all that $ref and
// allOf add. What alternatives say of members is kept as lists of schemas, compiled once for each list, so that recursive
// schemas end.

#include "text/grammar.h"
#include "text/grammar_program.h"

#include <string_view>

namespace calandra::grammar {

/// Throws Error "WHERE: POINTER: ..." for what is malformed, not supported or too large, and for a schema that nothing fits.
Program program_of_schema(std::string_view schema, std::string_view where);

/// Calls whose arguments fit the schemas of their tools. The same errors, and for names that a call cannot hold.
Program program_of_calls(const CallRules& rules);

}  // namespace calandra::grammar
