#include "text/grammar_automaton.h"

#include "base/error.h"
#include "text/unicode.h"

#include <algorithm>
#include <map>

namespace calandra::grammar {
namespace {

constexpr CodeRange kSurrogates = {0xD800, 0xDFFF};

[[noreturn]] void refuse_size(std::string_view where) {
  fail("{}: expected a pattern of at most {} states, found one that needs more", where, kMaxAutomatonStates);
}

/// Nondeterministic, with empty edges, as Thompson's construction makes it: one start, one end.
class Nfa {
 public:
  explicit Nfa(std::string_view where) : where_(where) {}

  struct State {
    CharacterSet characters;  // to `target`
    std::uint32_t target = 0;
    std::vector<std::uint32_t> empty_to;
  };
  std::vector<State> states;

  std::uint32_t add_state() {
    if (states.size() >= 4 * kMaxAutomatonStates) refuse_size(where_);
    states.emplace_back();
    return static_cast<std::uint32_t>(states.size() - 1);
  }

  /// Adds what leads from `from` through `expression`; returns where that ends.
  std::uint32_t add(const Expression& expression, std::uint32_t from) {
    switch (expression.kind) {
      case Expression::Kind::Characters: {
        const std::uint32_t start = add_state(), end = add_state();
        states[from].empty_to.push_back(start);
        states[start].characters = expression.characters;
        states[start].target = end;
        return end;
      }
      case Expression::Kind::Sequence:
        for (const Expression& part : expression.parts) from = add(part, from);
        return from;
      case Expression::Kind::Choice: {
        const std::uint32_t end = add_state();
        for (const Expression& part : expression.parts) {
          const std::uint32_t start = add_state();
          states[from].empty_to.push_back(start);
          const std::uint32_t last = add(part, start);
          states[last].empty_to.push_back(end);
        }
        return end;
      }
      case Expression::Kind::Repeat: return add_repeat(expression, from);
      case Expression::Kind::Call: break;
    }
    fail("{}: a pattern cannot call a rule", where_);
  }

 private:
  std::uint32_t add_repeat(const Expression& expression, std::uint32_t from) {
    const Expression& part = expression.parts[0];
    for (std::uint32_t i = 0; i < expression.min; ++i) from = add_counted(part, from);
    const std::uint32_t end = add_state();
    states[from].empty_to.push_back(end);
    if (expression.max == kNoLimit) {
      const std::uint32_t start = add_state();
      states[end].empty_to.push_back(start);
      const std::uint32_t last = add(part, start);
      states[last].empty_to.push_back(end);
      return end;
    }
    for (std::uint32_t i = expression.min; i < expression.max; ++i) {
      from = add_counted(part, from);
      states[from].empty_to.push_back(end);
    }
    return end;
  }

  /// Each round costs a state at least, so that counts of nothing end as well.
  std::uint32_t add_counted(const Expression& part, std::uint32_t from) {
    const std::uint32_t start = add_state();
    states[from].empty_to.push_back(start);
    return add(part, start);
  }

  std::string_view where_;
};

/// Gives each set of states of an Nfa a number and makes the deterministic states in that order.
class Subsets {
 public:
  Subsets(const Nfa& nfa, std::uint32_t end, std::string_view where, Budget& budget)
      : nfa_(nfa), end_(end), where_(where), budget_(budget), seen_(nfa.states.size(), 0) {}

  Automaton run(std::uint32_t start) {
    number_of({start});
    Automaton result;
    for (std::size_t i = 0; i < sets_.size(); ++i) {
      const std::vector<std::uint32_t> set = *sets_[i];
      const bool accepts = std::ranges::binary_search(set, end_);
      result.add_state(edges_of(set), accepts ? 0 : Automaton::kNoTag);
    }
    return without_dead_ends(result);
  }

 private:
  std::uint32_t number_of(const std::vector<std::uint32_t>& from) {
    std::vector<std::uint32_t> set;
    ++epoch_;
    const auto reach = [&](std::uint32_t state) {
      if (seen_[state] == epoch_) return;
      seen_[state] = epoch_;
      set.push_back(state);
    };
    for (const std::uint32_t state : from) reach(state);
    for (std::size_t i = 0; i < set.size(); ++i) {
      const auto& empty_to = nfa_.states[set[i]].empty_to;
      budget_.spend(1 + empty_to.size(), where_);
      for (const std::uint32_t target : empty_to) reach(target);
    }
    std::ranges::sort(set);
    const auto [place, is_new] = numbers_.emplace(std::move(set), static_cast<std::uint32_t>(sets_.size()));
    if (is_new) {
      if (sets_.size() >= kMaxAutomatonStates) refuse_size(where_);
      sets_.push_back(&place->first);
    }
    return place->second;
  }

  std::vector<Automaton::Edge> edges_of(const std::vector<std::uint32_t>& set) {
    // A sweep over the borders of all ranges: between two of them the same states are reached.
    std::vector<std::pair<char32_t, std::int64_t>> borders;  // where a range to target begins (target + 1) or has ended (-)
    for (const std::uint32_t state : set) {
      const Nfa::State& from = nfa_.states[state];
      for (const CodeRange range : from.characters) {
        borders.emplace_back(range.first, std::int64_t{from.target} + 1);
        borders.emplace_back(range.last + 1, -(std::int64_t{from.target} + 1));
      }
    }
    budget_.spend(borders.size(), where_);
    std::ranges::sort(borders);
    std::map<std::uint32_t, int> open;
    std::vector<Automaton::Edge> edges;
    for (std::size_t i = 0; i < borders.size();) {
      const char32_t first = borders[i].first;
      for (; i < borders.size() && borders[i].first == first; ++i) {
        const auto target = static_cast<std::uint32_t>(std::abs(borders[i].second) - 1);
        if ((open[target] += borders[i].second > 0 ? 1 : -1) == 0) open.erase(target);
      }
      if (open.empty()) continue;
      std::vector<std::uint32_t> targets;
      targets.reserve(open.size());
      for (const auto& [target, count] : open) targets.push_back(target);
      budget_.spend(targets.size(), where_);
      const std::uint32_t number = number_of(targets);
      const char32_t last = borders[i].first - 1;
      if (!edges.empty() && edges.back().target == number && edges.back().last + 1 == first) {
        edges.back().last = last;
      } else {
        edges.push_back({first, last, number});
      }
    }
    return edges;
  }

  const Nfa& nfa_;
  std::uint32_t end_;
  std::string_view where_;
  Budget& budget_;
  std::vector<std::uint32_t> seen_;
  std::uint32_t epoch_ = 0;
  std::map<std::vector<std::uint32_t>, std::uint32_t> numbers_;
  std::vector<const std::vector<std::uint32_t>*> sets_;
};

/// Runs both side by side. With `either` one of them may be dead.
Automaton product(const Automaton& a, const Automaton& b, bool either, std::string_view where, Budget& budget) {
  using Pair = std::pair<std::uint32_t, std::uint32_t>;
  std::map<Pair, std::uint32_t> numbers;
  std::vector<Pair> pairs;
  const auto number_of = [&](Pair pair) {
    const auto [place, is_new] = numbers.emplace(pair, static_cast<std::uint32_t>(pairs.size()));
    if (is_new) {
      if (pairs.size() >= kMaxAutomatonStates) refuse_size(where);
      pairs.push_back(pair);
    }
    return place->second;
  };
  const auto edges_of = [](const Automaton& automaton, std::uint32_t state) {
    return state == Automaton::kDead ? std::span<const Automaton::Edge>{} : automaton.edges(state);
  };
  const auto accepts = [](const Automaton& automaton, std::uint32_t state) {
    return state != Automaton::kDead && automaton.accepts(state);
  };
  Automaton result;
  number_of({a.is_empty() ? Automaton::kDead : 0, b.is_empty() ? Automaton::kDead : 0});
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto [state_a, state_b] = pairs[i];
    const auto from_a = edges_of(a, state_a), from_b = edges_of(b, state_b);
    budget.spend(1 + from_a.size() + from_b.size(), where);
    std::vector<Automaton::Edge> edges;
    std::size_t at_a = 0, at_b = 0;
    char32_t position = 0;
    while (at_a < from_a.size() || at_b < from_b.size()) {
      // The next stretch in which neither of the two changes.
      const bool in_a = at_a < from_a.size() && from_a[at_a].first <= position;
      const bool in_b = at_b < from_b.size() && from_b[at_b].first <= position;
      char32_t end = kLastCodePoint + 1;
      if (at_a < from_a.size()) end = std::min<char32_t>(end, in_a ? from_a[at_a].last + 1 : from_a[at_a].first);
      if (at_b < from_b.size()) end = std::min<char32_t>(end, in_b ? from_b[at_b].last + 1 : from_b[at_b].first);
      if (either ? in_a || in_b : in_a && in_b) {
        const std::uint32_t target =
            number_of({in_a ? from_a[at_a].target : Automaton::kDead, in_b ? from_b[at_b].target : Automaton::kDead});
        edges.push_back({position, end - 1, target});
      }
      position = end;
      if (at_a < from_a.size() && from_a[at_a].last < position) ++at_a;
      if (at_b < from_b.size() && from_b[at_b].last < position) ++at_b;
    }
    const bool in_a = accepts(a, state_a), in_b = accepts(b, state_b);
    result.add_state(edges, (either ? in_a || in_b : in_a && in_b) ? 0 : Automaton::kNoTag);
  }
  return without_dead_ends(result);
}

}  // namespace

void Budget::spend(std::size_t work, std::string_view where) {
  if (work > left_) fail("{}: takes too much work to compile", where);
  left_ -= work;
}

CharacterSet normalize(CharacterSet ranges) {
  std::ranges::sort(ranges, {}, &CodeRange::first);
  CharacterSet joined;
  const auto add = [&](char32_t first, char32_t last) {
    if (first > last) return;
    if (!joined.empty() && first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, last);
    } else {
      joined.push_back({first, last});
    }
  };
  for (const CodeRange range : ranges) {
    add(range.first, std::min<char32_t>(range.last, kSurrogates.first - 1));
    add(std::max<char32_t>(range.first, kSurrogates.last + 1), std::min(range.last, kLastCodePoint));
  }
  return joined;
}

CharacterSet complement(const CharacterSet& set) {
  CharacterSet rest;
  char32_t first = 0;
  for (const CodeRange range : set) {
    if (range.first > first) rest.push_back({first, range.first - 1});
    first = range.last + 1;
  }
  if (first <= kLastCodePoint) rest.push_back({first, kLastCodePoint});
  return normalize(std::move(rest));
}

Expression Expression::one_of(CharacterSet characters) {
  Expression result;
  result.kind = Kind::Characters;
  result.characters = std::move(characters);
  return result;
}

Expression Expression::text(std::string_view utf8) {
  Expression result;
  for (const char32_t c : code_points(utf8)) result.parts.push_back(one_of({{c, c}}));
  return result;
}

Expression Expression::sequence(std::vector<Expression> parts) {
  Expression result;
  result.parts = std::move(parts);
  return result;
}

Expression Expression::choice(std::vector<Expression> parts) {
  Expression result;
  result.kind = Kind::Choice;
  result.parts = std::move(parts);
  return result;
}

Expression Expression::repeat(Expression part, std::uint32_t min, std::uint32_t max) {
  Expression result;
  result.kind = Kind::Repeat;
  result.parts.push_back(std::move(part));
  result.min = min;
  result.max = max;
  return result;
}

void Automaton::add_state(const std::vector<Edge>& edges, std::int32_t tag) {
  edges_.insert(edges_.end(), edges.begin(), edges.end());
  begin_.push_back(static_cast<std::uint32_t>(edges_.size()));
  tags_.push_back(tag);
}

const Automaton::Edge* Automaton::find(std::uint32_t state, char32_t c) const {
  const Edge* const begin = edges_.data() + begin_[state];
  const Edge* const end = edges_.data() + begin_[state + 1];
  const Edge* const edge = std::lower_bound(begin, end, c, [](const Edge& e, char32_t wanted) { return e.last < wanted; });
  return edge == end ? nullptr : edge;
}

std::uint32_t Automaton::next(std::uint32_t state, char32_t c) const {
  const Edge* const edge = find(state, c);
  return edge != nullptr && edge->first <= c ? edge->target : kDead;
}

bool Automaton::any_next(std::uint32_t state, char32_t first, char32_t last) const {
  const Edge* const edge = first <= last ? find(state, first) : nullptr;
  return edge != nullptr && edge->first <= last;
}

bool Automaton::matches(std::string_view utf8) const {
  if (is_empty()) return false;
  std::uint32_t state = 0;
  for (const char32_t c : code_points(utf8)) {
    if ((state = next(state, c)) == kDead) return false;
  }
  return accepts(state);
}

Automaton without_dead_ends(const Automaton& automaton) {
  const std::uint32_t size = automaton.num_states();
  std::vector<std::vector<std::uint32_t>> sources(size);
  std::vector<std::uint32_t> useful;
  std::vector<bool> is_useful(size, false);
  const auto use = [&](std::uint32_t state) {
    if (!is_useful[state]) useful.push_back(state);
    is_useful[state] = true;
  };
  for (std::uint32_t state = 0; state < size; ++state) {
    if (automaton.accepts(state)) use(state);
    for (const auto& edge : automaton.edges(state)) sources[edge.target].push_back(state);
  }
  for (std::size_t i = 0; i < useful.size(); ++i) {
    for (const std::uint32_t source : sources[useful[i]]) use(source);
  }
  Automaton result;
  if (size == 0 || !is_useful[0]) return result;
  std::vector<std::uint32_t> number(size, Automaton::kDead), kept = {0};
  number[0] = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    std::vector<Automaton::Edge> edges;
    for (Automaton::Edge edge : automaton.edges(kept[i])) {
      if (!is_useful[edge.target]) continue;
      if (number[edge.target] == Automaton::kDead) {
        number[edge.target] = static_cast<std::uint32_t>(kept.size());
        kept.push_back(edge.target);
      }
      edge.target = number[edge.target];
      edges.push_back(edge);
    }
    result.add_state(edges, automaton.tag(kept[i]));
  }
  return result;
}

Automaton automaton_of(const Expression& expression, std::string_view where, Budget& budget) {
  Nfa nfa(where);
  const std::uint32_t start = nfa.add_state();
  const std::uint32_t end = nfa.add(expression, start);
  return Subsets(nfa, end, where, budget).run(start);
}

Automaton intersection(const Automaton& a, const Automaton& b, std::string_view where, Budget& budget) {
  if (a.is_empty() || b.is_empty()) return {};
  return product(a, b, false, where, budget);
}

Automaton union_of(const Automaton& a, const Automaton& b, std::string_view where, Budget& budget) {
  if (a.is_empty()) return b;
  if (b.is_empty()) return a;
  return product(a, b, true, where, budget);
}

Automaton automaton_of_length(std::uint32_t min, std::uint32_t max, std::string_view where, Budget& budget) {
  Automaton result;
  if (min > max) return result;
  const std::uint32_t last = max == kNoLimit ? min : max;
  budget.spend(last, where);
  if (last >= kMaxAutomatonStates) refuse_size(where);
  for (std::uint32_t length = 0; length <= last; ++length) {
    const std::uint32_t target = length < last ? length + 1 : last;
    std::vector<Automaton::Edge> edges;
    if (length < last || max == kNoLimit) {
      edges = {{0, kSurrogates.first - 1, target}, {kSurrogates.last + 1, kLastCodePoint, target}};
    }
    result.add_state(edges, length >= min ? 0 : Automaton::kNoTag);
  }
  return result;
}

Automaton automaton_of_words(const std::vector<std::u32string>& words,
                             std::vector<std::pair<std::uint32_t, std::uint32_t>>* below) {
  struct Place {
    std::uint32_t first, last;  // the words that begin so
    std::size_t depth;
  };
  Automaton result;
  if (words.empty()) return result;
  std::vector<Place> places = {{0, static_cast<std::uint32_t>(words.size()), 0}};
  for (std::size_t i = 0; i < places.size(); ++i) {
    auto [word, last, depth] = places[i];
    if (below != nullptr) below->emplace_back(word, last);
    std::int32_t tag = Automaton::kNoTag;
    if (words[word].size() == depth) tag = static_cast<std::int32_t>(word++);
    std::vector<Automaton::Edge> edges;
    while (word < last) {
      const char32_t c = words[word][depth];
      std::uint32_t end = word + 1;
      while (end < last && words[end][depth] == c) ++end;
      edges.push_back({c, c, static_cast<std::uint32_t>(places.size())});
      places.push_back({word, end, depth + 1});
      word = end;
    }
    result.add_state(edges, tag);
  }
  return result;
}

std::u32string code_points(std::string_view utf8) {
  std::u32string result;
  while (!utf8.empty()) {
    const Utf8Unit unit = first_utf8_unit(utf8);
    result.push_back(unit.kind == Utf8Unit::Kind::Complete ? decode_utf8(utf8.substr(0, unit.size)) : char32_t{0xFFFD});
    utf8.remove_prefix(unit.size);
  }
  return result;
}

}  // namespace calandra::grammar
