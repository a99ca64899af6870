// The machine inside of a JSON string. A character may be written in several ways, as UTF-8 or as an escape; while it is
// being read, what is known of it is a range of code points, and a byte is allowed as long as the string can take one of them.

#include "text/grammar_machine.h"

#include <algorithm>

namespace calandra::grammar {
namespace {

constexpr char32_t kHighSurrogate = 0xD800, kLowSurrogate = 0xDC00, kAfterSurrogates = 0xE000, kFirstOfPairs = 0x10000;

int hex_value(std::uint8_t byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
  if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
  return -1;
}

}  // namespace

const StringSpec& Machine::string_of(const Frame& frame) const {
  return frame.kind == FrameKind::Raw ? program_.raws[frame.spec].string : program_.strings[frame.spec];
}

const Automaton* Machine::automaton_of_string(const Frame& frame) const {
  if (frame.spec == kExtraString) return extra_;
  const std::uint32_t automaton = string_of(frame).automaton;
  return automaton == kNone ? nullptr : &program_.automata[automaton];
}

/// Whether the string can go on with a character from `first` to `last`.
bool Machine::can_take(const Frame& frame, char32_t first, char32_t last) const {
  if (first > last) return false;
  if (frame.kind == FrameKind::String || frame.kind == FrameKind::Raw) {
    // A guard forbids none but characters of one byte, of which only one is asked for.
    if (frame.kind == FrameKind::Raw && frame.text != kGuardFree) {
      const Automaton& guard = program_.automata[program_.raws[frame.spec].guard];
      if (!guard.any_next(frame.text, first, last)) return false;
    }
    const Automaton* const automaton = automaton_of_string(frame);
    return automaton != nullptr ? automaton->any_next(frame.state, first, last) : frame.state < string_of(frame).max;
  }
  // Names of arguments have no blanks, which their reader would take off.
  if (is_open(frame) && (frame.kind == FrameKind::Key || last > ' ')) return true;
  if (frame.state == Automaton::kDead) return false;
  const ObjectSpec& object = program_.objects[frame.spec];
  const Arena::Seen& seen = arena_.seen(frame.seen);
  for (const Automaton::Edge& edge : object.names.edges(frame.state)) {
    if (edge.last < first || edge.first > last) continue;
    const auto [begin, end] = object.below[edge.target];
    for (std::uint32_t property = begin; property < end; ++property) {
      if (may_add(object, seen, property)) return true;
    }
  }
  return false;
}

/// The same for what one \uXXXX from `first` to `last` begins.
bool Machine::can_take_unit(const Frame& frame, char32_t first, char32_t last) const {
  if (can_take(frame, first, std::min<char32_t>(last, kHighSurrogate - 1))) return true;
  if (can_take(frame, std::max(first, kAfterSurrogates), last)) return true;
  const char32_t high_first = std::max(first, kHighSurrogate), high_last = std::min<char32_t>(last, kLowSurrogate - 1);
  return high_first <= high_last && can_take(frame, kFirstOfPairs + ((high_first - kHighSurrogate) << 10),
                                             kFirstOfPairs + ((high_last - kHighSurrogate) << 10) + 0x3FF);
}

/// The same for the beginning of a character in UTF-8, which must be its shortest form.
bool Machine::can_take_utf8(const Frame& frame) const {
  const int shift = 6 * frame.left;
  const char32_t first = frame.code << shift, last = first + (char32_t{1} << shift) - 1;
  if (frame.character == Character::Utf8Of2) return can_take(frame, std::max<char32_t>(first, 0x80), last);
  if (frame.character == Character::Utf8Of4) {
    return can_take(frame, std::max(first, kFirstOfPairs), std::min(last, kLastCodePoint));
  }
  return can_take(frame, std::max<char32_t>(first, 0x800), std::min<char32_t>(last, kHighSurrogate - 1)) ||
         can_take(frame, std::max(first, kAfterSurrogates), last);
}

/// Ends the character `c`.
void Machine::take(const Frame& frame, char32_t c, SetId below, std::uint8_t mark_progress) {
  Frame after = frame;
  after.character = Character::Whole;
  after.left = mark_progress;
  after.code = 0;
  if (frame.kind == FrameKind::Raw && frame.text != kGuardFree)
    after.text = program_.automata[program_.raws[frame.spec].guard].next(frame.text, c);
  if (frame.kind == FrameKind::Key || frame.kind == FrameKind::RawKey) {
    if (after.state != Automaton::kDead) after.state = program_.objects[frame.spec].names.next(after.state, c);
    if (after.text != kNoText) after.text = arena_.add_text(after.text, c);
  } else if (const Automaton* const automaton = automaton_of_string(frame); automaton != nullptr) {
    after.state = automaton->next(after.state, c);
  } else {
    // Beyond what limits look at, all counts are alike.
    const StringSpec& string = string_of(frame);
    const std::uint32_t limit = string.max == kNoLimit ? string.min : string.max;
    after.state = std::min(after.state + 1, limit);
  }
  add(after, below);
}

/// Whether a string may end here.
bool Machine::may_close(const Frame& frame) const {
  const Automaton* const automaton = automaton_of_string(frame);
  return automaton != nullptr ? automaton->accepts(frame.state) : frame.state >= string_of(frame).min;
}

void Machine::close(const Frame& frame, SetId below) {
  if (frame.kind == FrameKind::String) {
    if (may_close(frame)) give_back(below, frame, kValueEnd);
    return;
  }
  const ObjectSpec& object = program_.objects[frame.spec];
  const std::int32_t property = frame.state == Automaton::kDead ? kAdditional : object.names.tag(frame.state);
  if (property != kAdditional || is_open(frame)) give_back(below, frame, property);
}

void Machine::step_string(const Thread& thread, std::uint8_t byte) {
  if (only_marks_) return;
  Frame frame = thread.frame;
  switch (frame.character) {
    case Character::Whole: return begin_character(frame, thread.below, byte);
    case Character::Escape: return begin_escape(frame, thread.below, byte);
    case Character::Hex:
    case Character::PairHex: return continue_hex(frame, thread.below, byte);
    case Character::PairEscape:
      if (byte != '\\') return;
      frame.character = Character::PairU;
      return add(frame, thread.below);
    case Character::PairU:
      if (byte != 'u') return;
      frame.character = Character::PairHex;
      frame.left = 4;
      return add(frame, thread.below);
    case Character::Utf8Of2:
    case Character::Utf8Of3:
    case Character::Utf8Of4:
      if ((byte & 0xC0) != 0x80) return;
      frame.code = frame.code << 6 | (byte & 0x3F);
      --frame.left;
      if (!can_take_utf8(frame)) return;
      return frame.left == 0 ? take(frame, frame.code, thread.below) : add(frame, thread.below);
  }
}

void Machine::begin_character(Frame frame, SetId below, std::uint8_t byte) {
  if (byte == '"') return close(frame, below);
  if (byte < 0x20) return;
  if (byte == '\\') {
    if (!can_take(frame, 0, kLastCodePoint)) return;
    frame.character = Character::Escape;
    frame.left = 0;
    return add(frame, below);
  }
  if (byte < 0x80) {
    // A call's value ends at its mark, wherever that stands. No string needs it: every character has an escape.
    if (program_.is_of_calls()) return begin_text_character(frame, below, byte, CallMark::ValueEnd);
    if (can_take(frame, byte, byte)) take(frame, byte, below);
    return;
  }
  begin_utf8(frame, below, byte);
}

void Machine::begin_utf8(Frame frame, SetId below, std::uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) {
    frame.character = Character::Utf8Of2;
    frame.left = 1;
    frame.code = byte & 0x1F;
  } else if (byte >= 0xE0 && byte <= 0xEF) {
    frame.character = Character::Utf8Of3;
    frame.left = 2;
    frame.code = byte & 0x0F;
  } else if (byte >= 0xF0 && byte <= 0xF4) {
    frame.character = Character::Utf8Of4;
    frame.left = 3;
    frame.code = byte & 0x07;
  } else {
    return;
  }
  if (can_take_utf8(frame)) add(frame, below);
}

void Machine::begin_escape(Frame frame, SetId below, std::uint8_t byte) {
  char32_t c = 0;
  switch (byte) {
    case '"':
    case '\\':
    case '/': c = byte; break;
    case 'b': c = '\b'; break;
    case 'f': c = '\f'; break;
    case 'n': c = '\n'; break;
    case 'r': c = '\r'; break;
    case 't': c = '\t'; break;
    case 'u':
      frame.character = Character::Hex;
      frame.left = 4;
      return add(frame, below);
    default: return;
  }
  if (can_take(frame, c, c)) take(frame, c, below);
}

void Machine::continue_hex(Frame frame, SetId below, std::uint8_t byte) {
  const int digit = hex_value(byte);
  if (digit < 0) return;
  --frame.left;
  frame.code = frame.code << 4 | static_cast<char32_t>(digit);
  const int shift = 4 * frame.left;
  const char32_t mask = (char32_t{1} << shift) - 1;
  if (frame.character == Character::Hex) {
    const char32_t first = frame.code << shift;
    if (!can_take_unit(frame, first, first + mask)) return;
    if (frame.left > 0) return add(frame, below);
    if (frame.code < kHighSurrogate || frame.code >= kAfterSurrogates) return take(frame, frame.code, below);
    frame.character = Character::PairEscape;
    return add(frame, below);
  }
  // The second half: its digits follow those of the first in `code`.
  const char32_t high = frame.code >> (16 - shift);
  const char32_t low = (frame.code & (0xFFFF >> shift)) << shift;
  const char32_t first = std::max(low, kLowSurrogate), last = std::min<char32_t>(low + mask, kAfterSurrogates - 1);
  const char32_t base = kFirstOfPairs + ((high - kHighSurrogate) << 10);
  if (first > last || !can_take(frame, base + (first - kLowSurrogate), base + (last - kLowSurrogate))) return;
  if (frame.left > 0) return add(frame, below);
  take(frame, base + (first - kLowSurrogate), below);
}

}  // namespace calandra::grammar
