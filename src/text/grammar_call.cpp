// The machine around and inside of the calls of tools, as the model writes them:
//
//     <tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>
//
// The line's ends may be left out, arguments come in any order, each once. A value is JSON or, where a string may stand, text as it is. Texts
// end where their mark begins; both are followed until the bytes tell.

#include "text/grammar_machine.h"

#include <utility>

namespace calandra::grammar {

void Machine::begin_mark(Frame frame, SetId below, CallMark mark) {
  if (!only_marks_ && (program_.marks_with_token >> static_cast<int>(mark) & 1) != 0) return;
  frame.code = static_cast<std::uint32_t>(mark) + 1;
  frame.left = 1;
  add(frame, below);
}

/// True if a mark is being read, with the next byte of it or without.
bool Machine::step_mark(const Thread& thread, std::uint8_t byte) {
  if (thread.frame.code == 0) return false;
  Frame frame = thread.frame;
  const auto mark = static_cast<CallMark>(frame.code - 1);
  if (byte != static_cast<std::uint8_t>(text_of(mark)[frame.left])) return true;
  if (++frame.left < text_of(mark).size()) {
    add(frame, thread.below);
    return true;
  }
  frame.code = frame.left = 0;
  frame.text = 0;
  end_mark(frame, thread.below, mark);
  return true;
}

void Machine::end_mark(const Frame& frame, SetId below, CallMark mark) {
  Thread next = {frame, below};
  switch (mark) {
    case CallMark::CallBegin: {
      next.frame.expect = Expect::End;
      Frame name;
      name.kind = FrameKind::ToolName;
      return add(name, arena_.add_set({&next, 1}));
    }
    case CallMark::CallEnd: return give_back(below, frame, kValueEnd);
    case CallMark::KeyBegin: {
      if (frame.spec == kNone) return begin_own_arguments(frame, below);
      Frame key;
      key.kind = FrameKind::RawKey;
      key.spec = frame.spec;
      key.seen = frame.seen;
      key.state = program_.objects[frame.spec].names.is_empty() ? Automaton::kDead : 0;
      if (is_open(key)) key.text = kEmptyText;
      next.frame.expect = Expect::Key;
      return add(key, arena_.add_set({&next, 1}));
    }
    case CallMark::KeyEnd: next.frame.expect = Expect::Colon; return add(next.frame, below);
    case CallMark::ValueBegin: return begin_argument(frame, below);
    case CallMark::ValueEnd: next.frame.expect = Expect::Next; return add(next.frame, below);
  }
}

/// Between calls: what is read of the next one, if there may be one.
void Machine::step_calls(const Thread& thread, std::uint8_t byte) {
  if (step_mark(thread, byte)) return;
  Frame frame = thread.frame;
  const bool is_first = frame.expect == Expect::Value;
  if (!is_first && !program_.several_calls) return;
  if (byte == '<') return begin_mark(frame, thread.below, CallMark::CallBegin);
  if (byte != '\n' || is_first || frame.text != 0) return;
  frame.text = 1;
  add(frame, thread.below);
}

void Machine::step_tool_name(const Thread& thread, std::uint8_t byte) {
  Frame frame = thread.frame;
  if (const std::int32_t tool = program_.tool_names.tag(frame.state);
      tool != Automaton::kNoTag && (byte == '\n' || byte == '<')) {
    begin_arguments(program_.tools[static_cast<std::size_t>(tool)], thread.below, byte);
  }
  frame.state = program_.tool_names.next(frame.state, byte);
  if (frame.state != Automaton::kDead) add(frame, thread.below);
}

void Machine::begin_arguments(const ToolSpec& tool, SetId below, std::uint8_t byte) {
  Frame call;
  call.kind = FrameKind::Call;
  call.expect = Expect::Next;
  call.text = byte == '\n' ? 1 : 0;
  for (const std::uint32_t object : tool.objects) {
    call.spec = object;
    if (byte == '\n') {
      add(call, below);
    } else {
      step_call({call, below}, byte);
    }
  }
  if (tool.raw == kNone) return;
  call.spec = kNone;
  call.state = tool.raw;
  call.text = 0;
  if (byte == '\n') return begin_own_arguments(call, below);
  // Anything else would be read as more of the name.
  begin_mark(call, below, CallMark::KeyBegin);
  begin_mark(call, below, CallMark::CallEnd);
}

/// Of a tool without a schema; `call.state` is its text, which ends where the call does.
void Machine::begin_own_arguments(Frame call, SetId below) {
  const std::uint32_t raw = std::exchange(call.state, 0);
  call.expect = Expect::Comma;
  const Thread waiting = {call, below};
  add(raw_frame(raw), arena_.add_set({&waiting, 1}));
}

void Machine::step_call(const Thread& thread, std::uint8_t byte) {
  if (step_mark(thread, byte)) return;
  Frame frame = thread.frame;
  const bool may_break = frame.expect == Expect::Next || frame.expect == Expect::Colon;
  if (byte == '\n' && may_break && frame.text == 0) {
    frame.text = 1;
    return add(frame, thread.below);
  }
  if (frame.expect == Expect::Value) {
    const ArgumentForms& forms = forms_of(frame);
    const std::uint32_t value = value_of(frame);
    frame.expect = Expect::Comma;
    frame.state = 0;
    return begin_value(value, byte, {frame, thread.below}, forms);
  }
  if (byte != '<') return;
  if (frame.expect == Expect::Colon) return begin_mark(frame, thread.below, CallMark::ValueBegin);
  if (frame.expect == Expect::Comma) return begin_mark(frame, thread.below, CallMark::ValueEnd);
  const ObjectSpec& object = program_.objects[frame.spec];
  const Arena::Seen& seen = arena_.seen(frame.seen);
  if (has_more(object, seen)) begin_mark(frame, thread.below, CallMark::KeyBegin);
  if (is_complete(object, seen)) begin_mark(frame, thread.below, CallMark::CallEnd);
}

const ArgumentForms& Machine::forms_of(const Frame& call) const {
  const ObjectSpec& object = program_.objects[call.spec];
  return call.state == kNone ? object.additional_forms : object.properties[call.state].forms;
}

std::uint32_t Machine::value_of(const Frame& call) const {
  const ObjectSpec& object = program_.objects[call.spec];
  return call.state == kNone ? object.additional : object.properties[call.state].value;
}

/// Texts begin at once, so that their masks are those that are kept; JSON shows with its first byte.
void Machine::begin_argument(const Frame& call, SetId below) {
  Frame frame = call;
  frame.expect = Expect::Value;
  add(frame, below);
  const std::vector<std::uint32_t>& raws = forms_of(frame).raws;
  if (raws.empty()) return;
  frame.expect = Expect::Comma;
  frame.state = 0;
  const Thread waiting = {frame, below};
  const SetId set = arena_.add_set({&waiting, 1});
  for (const std::uint32_t raw : raws) add(raw_frame(raw), set);
}

Frame Machine::raw_frame(std::uint32_t spec) const {
  Frame raw;
  raw.kind = FrameKind::Raw;
  raw.spec = spec;
  raw.text = program_.raws[spec].guard == kNone ? kGuardFree : 0;
  return raw;
}

void Machine::step_raw(const Thread& thread, std::uint8_t byte) {
  const Frame& frame = thread.frame;
  if (frame.character != Character::Whole) return step_string(thread, byte);
  if (frame.kind == FrameKind::RawKey) {
    if (byte == '<') {
      if (frame.text != kEmptyText) close(frame, thread.below);
    } else if (byte >= 0x80) {
      begin_utf8(frame, thread.below, byte);
    } else if (can_take(frame, byte, byte)) {
      take(frame, byte, thread.below);
    }
    return;
  }
  const RawSpec& raw = program_.raws[frame.spec];
  const bool guard_accepts = frame.text == kGuardFree || program_.automata[raw.guard].accepts(frame.text);
  if (byte == '<' && guard_accepts && may_close(frame)) give_back(thread.below, frame, kTextEnd);
  // Marks are never text, but in arguments that are the model's own.
  if (only_marks_ && raw.end != CallMark::CallEnd) return;
  if (byte < 0x80) {
    begin_text_character(frame, thread.below, byte, raw.end);
  } else {
    begin_utf8(frame, thread.below, byte);
  }
}

/// An ASCII character that does not complete `mark`, of which the text before it may be a beginning.
void Machine::begin_text_character(Frame frame, SetId below, std::uint8_t byte, CallMark mark) {
  const std::string_view text = text_of(mark);
  // A < is only a mark's first byte, so one that does not go on can begin anew with this byte or not at all.
  const bool goes_on = byte == static_cast<std::uint8_t>(text[frame.left]);
  const int progress = goes_on ? frame.left + 1 : byte == '<' ? 1 : 0;
  if (static_cast<std::size_t>(progress) == text.size() || !can_take(frame, byte, byte)) return;
  take(frame, byte, below, static_cast<std::uint8_t>(progress));
}

}  // namespace calandra::grammar
