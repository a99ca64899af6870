#pragma once
// Runs a compiled grammar over bytes. A nondeterministic pushdown automaton: a set of threads, each with a frame on top and
// the set of those it may return to below. Threads that agree on their top frame are one, so a grammar that cannot decide
// between alternatives costs what it has of them, not two to the power of the depth.
//
// Sets, the properties that objects have seen and the keys being read live in an Arena, which only grows; a mark takes back
// what a trial added. A position in the text is a list of threads and an arena: cheap to copy.

#include "text/grammar_program.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace calandra::grammar {

enum class FrameKind : std::uint8_t { Root, Bare, String, Key, Object, Array, Rule, ToolName, Call, Raw, RawKey };

/// How far the reading of one character of a JSON string has come.
enum class Character : std::uint8_t { Whole, Escape, Hex, PairEscape, PairU, PairHex, Utf8Of2, Utf8Of3, Utf8Of4 };

/// What an object, an array or the root waits for: the first member or the end, the next member, the end of a key that is
/// being read, a colon, a value, a comma or the end. Root: Value, then End. A call of a tool reads the marks of its arguments in the places
/// of these signs.
enum class Expect : std::uint8_t { First, Next, Key, Colon, Value, Comma, End };

struct Frame {
  FrameKind kind = FrameKind::Root;
  Expect expect = Expect::First;
  Character character = Character::Whole;
  std::uint8_t left = 0;  // bytes or digits of the character that are missing; how far a gap has come; how much of a mark is read
  std::uint32_t spec = kNone;  // of the kind's table in Program; Rule: the state; Call: of objects
  std::uint32_t state = 0;     // of the automaton; characters or items so far; Object: the value of the key;
                               // Call: the property, or of raws before a text of the model's own
  std::uint32_t code = 0;      // the character so far; Root, Call: the mark that is being read, from 1 on
  std::uint32_t seen = 0;      // Object, Call, Key: properties seen, in the arena
  std::uint32_t text = 0;      // Key: the key so far, in the arena; Raw: of the guard; Root, Call: whether a line has ended

  bool operator==(const Frame&) const = default;
};

/// A set of threads in the arena.
using SetId = std::uint32_t;
inline constexpr SetId kNothing = 0;  // empty
inline constexpr SetId kOutside = 1;  // stands for a stack that is not known: what returns to it is reported

struct Thread {
  Frame frame;
  SetId below = kNothing;

  bool operator==(const Thread&) const = default;
};

class Arena {
 public:
  Arena();

  struct Mark {
    std::size_t threads, sets, seen, keys, texts;
  };
  Mark mark() const { return {threads_.size(), set_ends_.size(), seen_.size(), keys_.size(), texts_.size()}; }
  /// Forgets what was added since.
  void rewind(const Mark& mark);

  SetId add_set(std::span<const Thread> threads);
  std::span<const Thread> set(SetId id) const {
    const std::size_t begin = id == 0 ? 0 : set_ends_[id - 1];
    return {threads_.data() + begin, set_ends_[id] - begin};
  }

  /// The properties an object has so far. Number 0: none.
  struct Seen {
    std::vector<std::uint64_t> declared;  // a bit for each
    std::uint32_t num_required = 0, num_optional = 0, num_additional = 0;
    std::uint32_t keys = 0;  // the additional ones

    bool has(std::uint32_t property) const {
      return property / 64 < declared.size() && (declared[property / 64] >> (property % 64) & 1) != 0;
    }
  };
  const Seen& seen(std::uint32_t id) const { return seen_[id]; }
  std::uint32_t add_seen(Seen seen);
  /// A list: its first is the key `text`, then the list `next`. Number 0: empty.
  std::uint32_t add_key(std::uint32_t text, std::uint32_t next);
  struct Key {
    std::uint32_t text, next;
  };
  const Key& key(std::uint32_t id) const { return keys_[id]; }

  /// A text one character longer. Number 0: not followed; 1: empty.
  std::uint32_t add_text(std::uint32_t before, char32_t c);
  bool same_text(std::uint32_t a, std::uint32_t b) const;
  std::u32string text(std::uint32_t id) const;

 private:
  struct Text {
    std::uint32_t before, size;
    char32_t last;
    std::uint64_t hash;
  };
  std::vector<Thread> threads_;  // of all sets, one after another
  std::vector<std::size_t> set_ends_;
  std::vector<Seen> seen_;
  std::vector<Key> keys_;
  std::vector<Text> texts_;
};

inline constexpr std::uint32_t kNoText = 0, kEmptyText = 1;
inline constexpr std::int32_t kValueEnd = -2;    // what a value gives back; a key gives its property
inline constexpr std::int32_t kAdditional = -1;  // or this
inline constexpr std::int32_t kTextEnd = -3;     // a text that the first byte of a mark has ended
inline constexpr std::uint32_t kGuardFree = 1;   // a guard's state in which everything may follow

/// Not for two threads of the processor at a time; arena and program must outlive it.
class Machine {
 public:
  Machine(const Program& program, Arena& arena) : program_(program), arena_(arena) {}

  /// The threads before the first byte.
  std::vector<Thread> start();

  /// The threads after one more byte; none if it does not fit. `exits`, if given, gets what returned to kOutside.
  /// Throws Error when the work limit is used up.
  void step(std::span<const Thread> from, std::uint8_t byte, std::vector<Thread>& to, std::vector<std::int32_t>* exits = nullptr);

  /// The threads when `result` returns to the set `below` of a frame.
  void resume(const Frame& frame, SetId below, std::int32_t result, std::vector<Thread>& to);

  static bool can_end(std::span<const Thread> threads);

  /// An automaton for frames of kind String whose spec is kExtraString.
  void set_extra(const Automaton* extra) { extra_ = extra; }
  static constexpr std::uint32_t kExtraString = kNone - 1;

  /// Whether a key may be any text but those seen.
  bool is_open(const Frame& key) const;

  /// What would make an additional key seen before of the key that `key` has begun; ascending, each once.
  std::vector<std::u32string> rest_of_seen_keys(const Frame& key) const;

  /// Whether, in a step since the last call of this, a key was compared with one whose text is not known.
  bool take_doubt() { return std::exchange(in_doubt_, false); }

  /// Whether bytes are those of a token that stands for a mark, and so never text.
  void set_only_marks(bool only_marks) { only_marks_ = only_marks; }

  /// How much may be done until the next call of this; a step of one thread is about 1.
  void allow_work(std::uint64_t work) { work_left_ = work; }

 private:
  void add(const Frame& frame, SetId below);
  void finish(std::vector<Thread>& to);
  void give_back(SetId below, const Frame& frame, std::int32_t result);
  void spend(std::uint64_t work);

  void step_thread(const Thread& thread, std::uint8_t byte);
  void step_string(const Thread& thread, std::uint8_t byte);
  void step_object(const Thread& thread, std::uint8_t byte);
  void step_array(const Thread& thread, std::uint8_t byte);
  void step_rule(std::uint32_t state, SetId below, std::uint8_t byte);
  void call(std::uint32_t rule, std::uint32_t target, SetId below);
  void run_calls(std::uint8_t byte);
  void begin_value(std::uint32_t value, std::uint8_t byte, const Thread& waiting, const ArgumentForms& forms = {});

  void step_calls(const Thread& thread, std::uint8_t byte);
  void step_tool_name(const Thread& thread, std::uint8_t byte);
  void begin_arguments(const ToolSpec& tool, SetId below, std::uint8_t byte);
  void begin_own_arguments(Frame call, SetId below);
  void step_call(const Thread& thread, std::uint8_t byte);
  bool step_mark(const Thread& thread, std::uint8_t byte);
  void begin_mark(Frame frame, SetId below, CallMark mark);
  void end_mark(const Frame& frame, SetId below, CallMark mark);
  void begin_argument(const Frame& call, SetId below);
  void step_raw(const Thread& thread, std::uint8_t byte);
  Frame raw_frame(std::uint32_t spec) const;
  const ArgumentForms& forms_of(const Frame& call) const;
  std::uint32_t value_of(const Frame& call) const;

  bool can_take(const Frame& frame, char32_t first, char32_t last) const;
  bool can_take_unit(const Frame& frame, char32_t first, char32_t last) const;
  bool can_take_utf8(const Frame& frame) const;
  void take(const Frame& frame, char32_t c, SetId below, std::uint8_t mark_progress = 0);
  void close(const Frame& frame, SetId below);
  void begin_character(Frame frame, SetId below, std::uint8_t byte);
  void begin_text_character(Frame frame, SetId below, std::uint8_t byte, CallMark mark);
  void begin_utf8(Frame frame, SetId below, std::uint8_t byte);
  void begin_escape(Frame frame, SetId below, std::uint8_t byte);
  void continue_hex(Frame frame, SetId below, std::uint8_t byte);
  const StringSpec& string_of(const Frame& frame) const;
  const Automaton* automaton_of_string(const Frame& frame) const;
  bool may_close(const Frame& frame) const;

  static bool is_complete(const ObjectSpec& object, const Arena::Seen& seen);
  bool may_add(const ObjectSpec& object, const Arena::Seen& seen, std::uint32_t property) const;
  bool may_add_more(const ObjectSpec& object, const Arena::Seen& seen) const;
  bool has_more(const ObjectSpec& object, const Arena::Seen& seen) const;
  void after_key(const Thread& object, const Frame& key, std::int32_t property);

  const Program& program_;
  Arena& arena_;
  const Automaton* extra_ = nullptr;
  std::vector<Thread> pairs_;  // a frame may be there with several sets
  std::vector<std::int32_t>* exits_ = nullptr;
  struct Calls {
    std::uint32_t rule;
    std::vector<Thread> waiting;
  };
  std::vector<Calls> calls_;  // of this byte
  bool in_doubt_ = false;
  bool only_marks_ = false;
  std::uint64_t work_left_ = UINT64_MAX;
};

}  // namespace calandra::grammar
