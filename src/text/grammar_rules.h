#pragma once
// Rules that call each other, as expressions, to a program of the grammar engine.

#include "text/grammar_automaton.h"
#include "text/grammar_program.h"

#include <string>
#include <string_view>
#include <vector>

namespace calandra::grammar {

struct RuleSyntax {
  std::string name;
  Expression expression;
};

/// Throws Error "WHERE: ..." for rules that begin with themselves, that never end, or that are too large.
Program program_of_rules(const std::vector<RuleSyntax>& rules, std::uint32_t root, std::string_view where);

}  // namespace calandra::grammar
