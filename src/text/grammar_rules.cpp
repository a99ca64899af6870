#include "text/grammar_rules.h"

#include "base/error.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace calandra::grammar {
namespace {

constexpr std::size_t kMaxRuleStates = 50'000;
constexpr std::size_t kMaxInlineStates = 1'000;  // of a rule that is written out where it is called
constexpr std::uint32_t kMaxInlineDepth = 20;

/// A state while a rule is put together: with empty edges.
struct DraftState {
  std::vector<RuleState::Bytes> bytes;
  std::vector<RuleState::Call> calls;
  std::vector<std::uint32_t> empty_to;
};

struct DraftRule {
  std::uint32_t start = 0, end = 0;
};

/// The forms of the characters of a range in UTF-8: sequences of byte ranges.
using ByteRange = std::pair<std::uint8_t, std::uint8_t>;

void add_utf8_ranges(char32_t first, char32_t last, std::vector<std::vector<ByteRange>>& out) {
  // Cut where the number of bytes changes, then where the first bytes differ but the last do not run from 80 to BF.
  for (const char32_t limit : {char32_t{0x7F}, char32_t{0x7FF}, char32_t{0xFFFF}}) {
    if (first <= limit && last > limit) {
      add_utf8_ranges(first, limit, out);
      return add_utf8_ranges(limit + 1, last, out);
    }
  }
  const int num_following = last <= 0x7F ? 0 : last <= 0x7FF ? 1 : last <= 0xFFFF ? 2 : 3;
  for (int i = 1; i <= num_following; ++i) {
    const char32_t mask = (char32_t{1} << (6 * i)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      add_utf8_ranges(first, first | mask, out);
      return add_utf8_ranges((first | mask) + 1, last, out);
    }
    if ((last & mask) != mask) {
      add_utf8_ranges(first, (last & ~mask) - 1, out);
      return add_utf8_ranges(last & ~mask, last, out);
    }
  }
  constexpr std::array<std::uint8_t, 4> kLead = {0, 0xC0, 0xE0, 0xF0};
  std::vector<ByteRange> bytes;
  const int lead_shift = 6 * num_following;
  const auto lead = kLead[static_cast<std::size_t>(num_following)];
  bytes.emplace_back(lead | (first >> lead_shift), lead | (last >> lead_shift));
  for (int shift = lead_shift - 6; shift >= 0; shift -= 6) {
    bytes.emplace_back(0x80 | ((first >> shift) & 0x3F), 0x80 | ((last >> shift) & 0x3F));
  }
  out.push_back(std::move(bytes));
}

class RuleCompiler {
 public:
  RuleCompiler(const std::vector<RuleSyntax>& rules, std::string_view where) : rules_(rules), where_(where) {}

  Program compile(std::uint32_t root) {
    find_inlined();
    drafts_.resize(rules_.size());
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      drafts_[i].start = add_state();
      drafts_[i].end = add(rules_[i].expression, drafts_[i].start);
    }
    find_nullable();
    find_productive();
    Program program;
    program.root_rule = root;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      Rule rule;
      rule.name = rules_[i].name;
      rule.nullable = nullable_[i];
      rule.start = add_rule(drafts_[i], program.rule_states);
      program.rules.push_back(std::move(rule));
    }
    order(program);
    return program;
  }

 private:
  std::uint32_t add_state() {
    if (states_.size() >= kMaxRuleStates) fail("{}: needs more than {} states", where_, kMaxRuleStates);
    states_.emplace_back();
    return static_cast<std::uint32_t>(states_.size() - 1);
  }

  // --- which rules are written out where they are called: those that lead to no recursion, and are small

  struct Inline {
    bool possible = false;
    std::size_t states = 0;
    std::uint32_t depth = 0;
  };

  void find_inlined() {
    inlined_.resize(rules_.size());
    std::vector<std::set<std::uint32_t>> called(rules_.size());
    std::vector<std::vector<std::uint32_t>> callers(rules_.size());
    std::vector<std::uint32_t> ready;
    for (std::uint32_t i = 0; i < rules_.size(); ++i) {
      find_calls(rules_[i].expression, called[i]);
      for (const std::uint32_t rule : called[i]) callers[rule].push_back(i);
      if (called[i].empty()) ready.push_back(i);
    }
    // A rule is ready when all it calls has been looked at; those that lead to a recursion never are.
    for (std::size_t i = 0; i < ready.size(); ++i) {
      Inline& own = inlined_[ready[i]];
      own.states = measure(rules_[ready[i]].expression, own);
      own.possible = own.states <= kMaxInlineStates && own.depth <= kMaxInlineDepth;
      for (const std::uint32_t caller : callers[ready[i]]) {
        called[caller].erase(ready[i]);
        if (called[caller].empty()) ready.push_back(caller);
      }
    }
  }

  void find_calls(const Expression& expression, std::set<std::uint32_t>& calls) {
    budget_.spend(1, where_);
    if (expression.kind == Expression::Kind::Call) calls.insert(expression.rule);
    for (const Expression& part : expression.parts) find_calls(part, calls);
  }

  /// States it needs, at most.
  std::size_t measure(const Expression& expression, Inline& of) const {
    std::size_t states = 2;
    switch (expression.kind) {
      case Expression::Kind::Characters: return 2 + 4 * expression.characters.size();
      case Expression::Kind::Call: {
        const Inline& called = inlined_[expression.rule];
        if (!called.possible) return states;
        of.depth = std::max(of.depth, called.depth + 1);
        return called.states;
      }
      case Expression::Kind::Sequence:
      case Expression::Kind::Choice:
        for (const Expression& part : expression.parts) states = std::min(states + measure(part, of), kMaxRuleStates);
        return states;
      case Expression::Kind::Repeat: {
        const std::size_t rounds = std::max<std::size_t>(expression.max == kNoLimit ? expression.min + 1 : expression.max, 1);
        return std::min((2 + measure(expression.parts[0], of)) * rounds, kMaxRuleStates);
      }
    }
    return states;
  }

  // --- from expressions to states

  std::uint32_t add(const Expression& expression, std::uint32_t from) {
    switch (expression.kind) {
      case Expression::Kind::Characters: return add_characters(expression.characters, from);
      case Expression::Kind::Sequence:
        for (const Expression& part : expression.parts) from = add(part, from);
        return from;
      case Expression::Kind::Choice: {
        const std::uint32_t end = add_state();
        for (const Expression& part : expression.parts) connect(add(part, connect(from)), end);
        return end;
      }
      case Expression::Kind::Repeat: {
        const Expression& part = expression.parts[0];
        for (std::uint32_t i = 0; i < expression.min; ++i) from = add(part, connect(from));
        const std::uint32_t end = add_state();
        connect(from, end);
        if (expression.max == kNoLimit) {
          connect(add(part, connect(end)), end);
          return end;
        }
        for (std::uint32_t i = expression.min; i < expression.max; ++i) {
          from = add(part, connect(from));
          connect(from, end);
        }
        return end;
      }
      case Expression::Kind::Call: break;
    }
    if (inlined_[expression.rule].possible) return add(rules_[expression.rule].expression, connect(from));
    const std::uint32_t end = add_state();
    states_[from].calls.push_back({expression.rule, end});
    return end;
  }

  /// An empty edge to a new state, or to a given one.
  std::uint32_t connect(std::uint32_t from) {
    const std::uint32_t to = add_state();
    connect(from, to);
    return to;
  }
  void connect(std::uint32_t from, std::uint32_t to) { states_[from].empty_to.push_back(to); }

  std::uint32_t add_characters(const CharacterSet& characters, std::uint32_t from) {
    const std::uint32_t start = connect(from), end = add_state();
    std::vector<std::vector<ByteRange>> forms;
    for (const CodeRange range : characters) add_utf8_ranges(range.first, range.last, forms);
    budget_.spend(forms.size(), where_);
    for (const auto& form : forms) {
      std::uint32_t at = start;
      for (std::size_t i = 0; i < form.size(); ++i) {
        const std::uint32_t to = i + 1 < form.size() ? add_state() : end;
        states_[at].bytes.push_back({form[i].first, form[i].second, to});
        at = to;
      }
    }
    return end;
  }

  // --- what rules can do

  /// All states that `from` reaches without a byte.
  std::vector<std::uint32_t> closure(std::vector<std::uint32_t> from) {
    ++epoch_;
    seen_.resize(states_.size(), 0);
    std::vector<std::uint32_t> set;
    const auto reach = [&](std::uint32_t state) {
      if (seen_[state] != epoch_) set.push_back(state);
      seen_[state] = epoch_;
    };
    for (const std::uint32_t state : from) reach(state);
    for (std::size_t i = 0; i < set.size(); ++i) {
      for (const std::uint32_t to : states_[set[i]].empty_to) reach(to);
      for (const RuleState::Call& call : states_[set[i]].calls) {
        if (nullable_[call.rule]) reach(call.target);
      }
      budget_.spend(1 + states_[set[i]].empty_to.size() + states_[set[i]].calls.size(), where_);
    }
    std::ranges::sort(set);
    return set;
  }

  void find_nullable() {
    nullable_.assign(rules_.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t i = 0; i < rules_.size(); ++i) {
        if (nullable_[i] || !std::ranges::binary_search(closure({drafts_[i].start}), drafts_[i].end)) continue;
        nullable_[i] = changed = true;
      }
    }
  }

  /// Refuses rules that never end, and marks the states from which their rule can end.
  void find_productive() {
    std::vector<bool> productive(rules_.size(), false);
    useful_.assign(states_.size(), false);
    for (const DraftRule& rule : drafts_) useful_[rule.end] = true;
    for (bool changed = true; changed;) {
      changed = false;
      budget_.spend(states_.size(), where_);
      for (std::size_t i = states_.size(); i-- > 0;) {
        if (useful_[i]) continue;
        const DraftState& state = states_[i];
        useful_[i] =
            std::ranges::any_of(state.empty_to, [&](std::uint32_t to) { return useful_[to]; }) ||
            std::ranges::any_of(state.bytes, [&](const auto& bytes) { return useful_[bytes.target]; }) ||
            std::ranges::any_of(state.calls, [&](const auto& call) { return productive[call.rule] && useful_[call.target]; });
        changed = changed || useful_[i];
      }
      for (std::size_t i = 0; i < rules_.size(); ++i) {
        if (productive[i] || !useful_[drafts_[i].start]) continue;
        productive[i] = changed = true;
      }
    }
    const auto endless = std::ranges::find(productive, false);
    if (endless == productive.end()) return;
    fail("{}: no text fits rule '{}': it never ends", where_,
         rules_[static_cast<std::size_t>(endless - productive.begin())].name);
  }

  /// Makes the states of one rule deterministic, as far as calls allow: each byte and each call leads to one state.
  std::uint32_t add_rule(const DraftRule& rule, std::vector<RuleState>& out) {
    std::map<std::vector<std::uint32_t>, std::uint32_t> numbers;
    std::vector<std::vector<std::uint32_t>> sets;
    const auto first = static_cast<std::uint32_t>(out.size());
    const auto number_of = [&](std::vector<std::uint32_t> from) {
      std::vector<std::uint32_t> set = closure(std::move(from));
      std::erase_if(set, [&](std::uint32_t state) { return !useful_[state]; });
      const auto [place, is_new] = numbers.emplace(set, first + static_cast<std::uint32_t>(sets.size()));
      if (is_new) {
        if (place->second >= kMaxRuleStates) fail("{}: needs more than {} states", where_, kMaxRuleStates);
        sets.push_back(std::move(set));
      }
      return place->second;
    };
    number_of({rule.start});
    for (std::size_t i = 0; i < sets.size(); ++i) {
      RuleState state;
      std::map<std::uint32_t, std::vector<std::uint32_t>> calls;
      std::array<std::vector<std::uint32_t>, 256> targets;
      for (const std::uint32_t draft : sets[i]) {
        state.accepts = state.accepts || draft == rule.end;
        for (const RuleState::Call& call : states_[draft].calls) {
          if (useful_[call.target]) calls[call.rule].push_back(call.target);
        }
        for (const RuleState::Bytes& bytes : states_[draft].bytes) {
          if (!useful_[bytes.target]) continue;
          budget_.spend(static_cast<std::size_t>(bytes.last) - bytes.first + 1, where_);
          for (std::size_t byte = bytes.first; byte <= bytes.last; ++byte) targets[byte].push_back(bytes.target);
        }
      }
      budget_.spend(targets.size(), where_);
      for (std::size_t byte = 0; byte < targets.size();) {
        std::size_t end = byte + 1;
        while (end < targets.size() && targets[end] == targets[byte]) ++end;
        if (!targets[byte].empty()) {
          const std::uint32_t target = number_of(targets[byte]);
          state.bytes.push_back({static_cast<std::uint8_t>(byte), static_cast<std::uint8_t>(end - 1), target});
        }
        byte = end;
      }
      for (auto& [called, after] : calls) state.calls.push_back({called, number_of(std::move(after))});
      out.push_back(std::move(state));
    }
    return first;
  }

  /// Ranks the rules, callers first, by what they begin with; finds their first bytes.
  void order(Program& program) {
    std::vector<std::uint32_t> finished;
    enum class Mark : std::uint8_t { New, Active, Done };
    std::vector<Mark> marks(rules_.size(), Mark::New);
    struct Visit {
      std::uint32_t rule;
      std::size_t next_call;
    };
    std::vector<Visit> stack;
    for (std::uint32_t root = 0; root < rules_.size(); ++root) {
      if (marks[root] != Mark::New) continue;
      stack.push_back({root, 0});
      marks[root] = Mark::Active;
      while (!stack.empty()) {
        Visit& visit = stack.back();
        const std::uint32_t current = visit.rule;
        const RuleState& start = program.rule_states[program.rules[current].start];
        if (visit.next_call < start.calls.size()) {
          const std::uint32_t called = start.calls[visit.next_call++].rule;
          if (marks[called] == Mark::Active) {
            fail("{}: rule '{}' begins with itself (left recursion), expected a repetition or a call at the end", where_,
                 rules_[called].name);
          }
          if (marks[called] == Mark::New) {
            marks[called] = Mark::Active;
            stack.push_back({called, 0});
          }
          continue;
        }
        marks[current] = Mark::Done;
        for (const RuleState::Bytes& bytes : start.bytes) {
          for (std::size_t byte = bytes.first; byte <= bytes.last; ++byte) program.rules[current].first.set(byte);
        }
        for (const RuleState::Call& call : start.calls) program.rules[current].first |= program.rules[call.rule].first;
        finished.push_back(current);
        stack.pop_back();
      }
    }
    for (std::size_t i = 0; i < finished.size(); ++i) {
      program.rules[finished[i]].rank = static_cast<std::uint32_t>(finished.size() - 1 - i);
    }
  }

  const std::vector<RuleSyntax>& rules_;
  std::string_view where_;
  Budget budget_;
  std::vector<DraftState> states_;
  std::vector<DraftRule> drafts_;
  std::vector<Inline> inlined_;
  std::vector<bool> nullable_, useful_;
  std::vector<std::uint32_t> seen_;
  std::uint32_t epoch_ = 0;
};

}  // namespace

Program program_of_rules(const std::vector<RuleSyntax>& rules, std::uint32_t root, std::string_view where) {
  return RuleCompiler(rules, where).compile(root);
}

}  // namespace calandra::grammar
