#pragma once
// Regular languages of the grammar engine: expressions, and deterministic automata over code points made from them.
//
// An automaton here never has a dead end: from every state it can still accept. So a mask made of its next steps never
// leads into a place without a way out. The empty language has no state at all. What grows is limited: every function
// that makes an automaton throws Error "WHERE: ..." instead of exceeding kMaxAutomatonStates or the Budget.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra::grammar {

inline constexpr char32_t kLastCodePoint = 0x10FFFF;
inline constexpr std::size_t kMaxAutomatonStates = 20'000;
inline constexpr std::uint32_t kNoLimit = UINT32_MAX;

/// What the compilation of one grammar may do.
class Budget {
 public:
  static constexpr std::size_t kWork = 6'000'000;  // about a second's worth

  explicit Budget(std::size_t work = kWork) : left_(work) {}

  /// Throws Error "WHERE: ..." when it is used up.
  void spend(std::size_t work, std::string_view where);

 private:
  std::size_t left_;
};

struct CodeRange {
  char32_t first, last;
};

/// Ascending, disjoint, without surrogates.
using CharacterSet = std::vector<CodeRange>;

/// Any ranges in any order.
CharacterSet normalize(CharacterSet ranges);
CharacterSet complement(const CharacterSet& set);

/// What a pattern or a rule of a grammar says.
struct Expression {
  enum class Kind : std::uint8_t {
    Characters,  // one of `characters`
    Sequence,    // all `parts` in order; nothing if there are none
    Choice,      // one of `parts`; the empty language if there are none
    Repeat,      // parts[0], `min` to `max` times
    Call,        // the rule `rule` (grammars only)
  };
  Kind kind = Kind::Sequence;
  CharacterSet characters;
  std::vector<Expression> parts;
  std::uint32_t min = 0, max = kNoLimit;
  std::uint32_t rule = 0;

  static Expression one_of(CharacterSet characters);
  static Expression text(std::string_view utf8);
  static Expression sequence(std::vector<Expression> parts);
  static Expression choice(std::vector<Expression> parts);
  static Expression repeat(Expression part, std::uint32_t min, std::uint32_t max);
};

/// A deterministic automaton; state 0 is where it starts.
class Automaton {
 public:
  static constexpr std::uint32_t kDead = UINT32_MAX;
  static constexpr std::int32_t kNoTag = -1;

  struct Edge {
    char32_t first, last;
    std::uint32_t target;
  };

  /// Adds a state; edges must be ascending and disjoint. A tag from 0 on makes it accept.
  void add_state(const std::vector<Edge>& edges, std::int32_t tag);

  std::uint32_t num_states() const { return static_cast<std::uint32_t>(tags_.size()); }
  bool is_empty() const { return tags_.empty(); }
  bool accepts(std::uint32_t state) const { return tags_[state] != kNoTag; }
  std::int32_t tag(std::uint32_t state) const { return tags_[state]; }
  bool has_edges(std::uint32_t state) const { return begin_[state] != begin_[state + 1]; }

  std::uint32_t next(std::uint32_t state, char32_t c) const;
  /// Whether some character from `first` to `last` leads on.
  bool any_next(std::uint32_t state, char32_t first, char32_t last) const;
  std::span<const Edge> edges(std::uint32_t state) const {
    return {edges_.data() + begin_[state], edges_.data() + begin_[state + 1]};
  }

  /// Whether it accepts the whole of well-formed `utf8`.
  bool matches(std::string_view utf8) const;

  /// Memory besides this object; `allocated` says what a block of so many bytes takes.
  std::size_t owned_bytes(std::size_t (*allocated)(std::size_t)) const {
    return allocated(edges_.capacity() * sizeof(Edge)) + allocated(begin_.capacity() * sizeof(std::uint32_t)) +
           allocated(tags_.capacity() * sizeof(std::int32_t));
  }

 private:
  const Edge* find(std::uint32_t state, char32_t c) const;  // the first edge that ends at or after c

  std::vector<Edge> edges_;
  std::vector<std::uint32_t> begin_{0};
  std::vector<std::int32_t> tags_;
};

/// The same language without states from which nothing is accepted, and without those that are never reached.
Automaton without_dead_ends(const Automaton& automaton);

Automaton automaton_of(const Expression& expression, std::string_view where, Budget& budget);
Automaton intersection(const Automaton& a, const Automaton& b, std::string_view where, Budget& budget);
Automaton union_of(const Automaton& a, const Automaton& b, std::string_view where, Budget& budget);

/// All strings of `min` to `max` characters.
Automaton automaton_of_length(std::uint32_t min, std::uint32_t max, std::string_view where, Budget& budget);

/// Exactly these words, the tag of a word being its index. `words` must be ascending and distinct.
/// `below`, if given, gets for each state the first word that begins so and one past the last.
Automaton automaton_of_words(const std::vector<std::u32string>& words,
                             std::vector<std::pair<std::uint32_t, std::uint32_t>>* below = nullptr);

/// The code points of well-formed `utf8`.
std::u32string code_points(std::string_view utf8);

}  // namespace calandra::grammar
