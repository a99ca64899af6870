#include "text/grammar_text.h"

#include <array>
#include <map>

namespace calandra::grammar {
namespace {

constexpr std::string_view kBlanks = " \t\n\r";

/// Where some characters lead, kDead among them, and all others to `rest`.
std::vector<Automaton::Edge> edges_of(const std::map<char32_t, std::uint32_t>& some, std::uint32_t rest) {
  constexpr CodeRange kSurrogates = {0xD800, 0xDFFF};
  std::vector<Automaton::Edge> edges;
  const auto add = [&](char32_t first, char32_t last, std::uint32_t target) {
    if (first <= last && target != Automaton::kDead) edges.push_back({first, last, target});
  };
  char32_t first = 0;
  for (const auto& [c, target] : some) {
    if (c > first) add(first, c - 1, rest);
    add(c, c, target);
    first = c + 1;
  }
  add(first, kSurrogates.first - 1, rest);
  add(kSurrogates.last + 1, kLastCodePoint, rest);
  return edges;
}

}  // namespace

bool can_be_written(std::string_view name) {
  if (name.empty() || name.find("\\n") != std::string_view::npos) return false;
  for (const char c : name) {
    if (c == '<' || (c >= 0 && c <= ' ')) return false;
  }
  return true;
}

Automaton guard_of_text() {
  constexpr std::uint32_t kFree = 1;
  Automaton guard;
  guard.add_state(edges_of({{U'"', Automaton::kDead}}, kFree), 0);
  guard.add_state(edges_of({}, kFree), 0);
  return guard;
}

Automaton guard_of_untyped_text() {
  constexpr std::uint32_t kFree = 1;
  constexpr std::array<std::string_view, 3> kWords = {"true", "false", "null"};
  std::map<char32_t, std::uint32_t> begin, blank;
  for (const char c : std::string_view("\"{[-0123456789 \t\n\r")) begin[static_cast<char32_t>(c)] = Automaton::kDead;
  for (const char c : kBlanks) blank[static_cast<char32_t>(c)] = Automaton::kDead;
  std::uint32_t next = 2;
  for (const std::string_view word : kWords) {
    begin[static_cast<char32_t>(word[0])] = next;
    next += static_cast<std::uint32_t>(word.size()) + 1;
  }
  Automaton guard;
  guard.add_state(edges_of(begin, kFree), 0);
  guard.add_state(edges_of({}, kFree), 0);
  for (const std::string_view word : kWords) {
    // A state for each beginning, then one for a blank after the word, where only something else makes it text.
    for (std::size_t i = 1; i < word.size(); ++i)
      guard.add_state(edges_of({{static_cast<char32_t>(word[i]), guard.num_states() + 1}}, kFree), 0);
    const std::uint32_t after = guard.num_states() + 1;
    for (auto& [c, target] : blank) target = after;
    guard.add_state(edges_of(blank, kFree), Automaton::kNoTag);
    for (auto& [c, target] : blank) target = Automaton::kDead;
    guard.add_state(edges_of(blank, kFree), Automaton::kNoTag);
  }
  return guard;
}

Automaton automaton_without(std::string_view mark) {
  Automaton without;
  for (std::uint32_t i = 0; i < mark.size(); ++i) {
    const std::uint32_t next = i + 1 < mark.size() ? i + 1 : Automaton::kDead;
    std::map<char32_t, std::uint32_t> some = {{U'<', 1}};
    some[static_cast<char32_t>(mark[i])] = next;
    without.add_state(edges_of(some, 0), 0);
  }
  return without;
}

}  // namespace calandra::grammar
