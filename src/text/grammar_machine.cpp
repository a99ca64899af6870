#include "text/grammar_machine.h"

#include "base/error.h"
#include "base/sort_unique.h"

#include <algorithm>
#include <tuple>

namespace calandra::grammar {
namespace {

// White space between the parts of JSON, as serialisers write it: one space, or the end of a line and its indentation. The
// steps of a gap, kept in Frame::left: none, a space, a carriage return, and from kGapLine on a line with so many blanks.
constexpr std::uint8_t kGapSpace = 1, kGapReturn = 2, kGapLine = 3;
constexpr std::uint8_t kMaxIndentation = 64;

bool continue_gap(std::uint8_t& gap, std::uint8_t byte) {
  if (byte == '\n' && (gap == 0 || gap == kGapReturn)) {
    gap = kGapLine;
  } else if (byte == '\r' && gap == 0) {
    gap = kGapReturn;
  } else if (byte == ' ' && gap == 0) {
    gap = kGapSpace;
  } else if ((byte == ' ' || byte == '\t') && gap >= kGapLine && gap < kGapLine + kMaxIndentation) {
    ++gap;
  } else {
    return false;
  }
  return true;
}

std::uint32_t properties_left(const ObjectSpec& object, const Arena::Seen& seen) {
  const std::uint32_t count = seen.num_required + seen.num_optional + seen.num_additional;
  const std::uint32_t missing = object.num_required - seen.num_required;
  return object.max == kNoLimit ? kNoLimit : object.max - count - missing;
}

}  // namespace

bool Machine::is_complete(const ObjectSpec& object, const Arena::Seen& seen) {
  return seen.num_required == object.num_required && seen.num_required + seen.num_optional + seen.num_additional >= object.min;
}

// ---------------------------------------------------------------- sets of threads

void Machine::spend(std::uint64_t work) {
  if (work > work_left_) fail("the grammar is too ambiguous: one token needs more work than its limit allows");
  work_left_ -= work;
}

void Machine::add(const Frame& frame, SetId below) {
  spend(1 + pairs_.size() / 8);
  const Thread thread = {frame, below};
  if (std::ranges::find(pairs_, thread) == pairs_.end()) pairs_.push_back(thread);
}

void Machine::give_back(SetId below, const Frame& frame, std::int32_t result) {
  if (below == kOutside) {
    exits_->push_back(result);
    return;
  }
  const std::size_t count = arena_.set(below).size();
  spend(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Thread waiting = arena_.set(below)[i];  // a copy: sets move when the arena grows
    if (result == kValueEnd) {
      add(waiting.frame, waiting.below);
    } else if (result == kTextEnd) {
      begin_mark(waiting.frame, waiting.below, waiting.frame.spec == kNone ? CallMark::CallEnd : CallMark::ValueEnd);
    } else {
      after_key(waiting, frame, result);
    }
  }
}

/// Returns from all that has ended, and makes one thread of those that differ only in what is below.
void Machine::finish(std::vector<Thread>& to) {
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const Thread thread = pairs_[i];
    const bool ended =
        (thread.frame.kind == FrameKind::Bare && program_.automata[thread.frame.spec].accepts(thread.frame.state)) ||
        (thread.frame.kind == FrameKind::Rule && program_.rule_states[thread.frame.spec].accepts);
    if (ended) give_back(thread.below, thread.frame, kValueEnd);
  }
  std::erase_if(pairs_, [&](const Thread& thread) {
    return (thread.frame.kind == FrameKind::Bare && !program_.automata[thread.frame.spec].has_edges(thread.frame.state)) ||
           (thread.frame.kind == FrameKind::Rule && program_.rule_states[thread.frame.spec].is_last());
  });
  to.clear();
  std::vector<Thread> joined;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const Frame frame = pairs_[i].frame;
    const auto is_same = [&](const Thread& other) { return other.frame == frame; };
    if (std::ranges::any_of(to, is_same)) continue;
    spend(pairs_.size() / 8);
    SetId below = pairs_[i].below;
    if (std::any_of(pairs_.begin() + static_cast<std::ptrdiff_t>(i) + 1, pairs_.end(), is_same)) {
      joined.clear();
      for (std::size_t j = i; j < pairs_.size(); ++j) {
        if (!is_same(pairs_[j])) continue;
        for (const Thread& thread : arena_.set(pairs_[j].below)) {
          if (std::ranges::find(joined, thread) == joined.end()) joined.push_back(thread);
        }
        spend(joined.size());
      }
      below = arena_.add_set(joined);
    }
    to.push_back({frame, below});
  }
}

std::vector<Thread> Machine::start() {
  pairs_.clear();
  Frame root;
  root.expect = Expect::Value;
  add(root, kNothing);
  if (program_.root_rule != kNone && program_.rules[program_.root_rule].nullable) {
    root.expect = Expect::End;
    add(root, kNothing);
  }
  return pairs_;
}

void Machine::step(std::span<const Thread> from, std::uint8_t byte, std::vector<Thread>& to, std::vector<std::int32_t>* exits) {
  pairs_.clear();
  calls_.clear();
  exits_ = exits;
  for (const Thread& thread : from) step_thread(thread, byte);
  if (!calls_.empty()) run_calls(byte);
  finish(to);
}

void Machine::resume(const Frame& frame, SetId below, std::int32_t result, std::vector<Thread>& to) {
  pairs_.clear();
  give_back(below, frame, result);
  finish(to);
}

bool Machine::can_end(std::span<const Thread> threads) {
  return std::ranges::any_of(threads, [](const Thread& thread) {
    return thread.frame.kind == FrameKind::Root && thread.frame.expect == Expect::End && thread.frame.code == 0;
  });
}

void Machine::step_thread(const Thread& thread, std::uint8_t byte) {
  spend(1);
  switch (thread.frame.kind) {
    case FrameKind::Root: {
      if (program_.is_of_calls()) return step_calls(thread, byte);
      if (thread.frame.expect == Expect::End) return;
      Thread waiting = thread;
      waiting.frame.expect = Expect::End;
      if (program_.root_value != kNone) return begin_value(program_.root_value, byte, waiting);
      const Rule& root = program_.rules[program_.root_rule];
      if (root.first[byte]) step_rule(root.start, arena_.add_set({&waiting, 1}), byte);
      return;
    }
    case FrameKind::Bare: {
      Frame frame = thread.frame;
      frame.state = program_.automata[frame.spec].next(frame.state, byte);
      if (frame.state != Automaton::kDead) add(frame, thread.below);
      return;
    }
    case FrameKind::String:
    case FrameKind::Key: return step_string(thread, byte);
    case FrameKind::Object: return step_object(thread, byte);
    case FrameKind::Array: return step_array(thread, byte);
    case FrameKind::Rule: return step_rule(thread.frame.spec, thread.below, byte);
    case FrameKind::ToolName: return step_tool_name(thread, byte);
    case FrameKind::Call: return step_call(thread, byte);
    case FrameKind::Raw:
    case FrameKind::RawKey: return step_raw(thread, byte);
  }
}

// ---------------------------------------------------------------- rules

void Machine::step_rule(std::uint32_t state, SetId below, std::uint8_t byte) {
  const RuleState& from = program_.rule_states[state];
  spend(from.bytes.size() + from.calls.size());
  Frame frame;
  frame.kind = FrameKind::Rule;
  for (const RuleState::Bytes& bytes : from.bytes) {
    if (byte < bytes.first || byte > bytes.last) continue;
    frame.spec = bytes.target;
    add(frame, below);
  }
  for (const RuleState::Call& c : from.calls) {
    if (program_.rules[c.rule].first[byte]) call(c.rule, c.target, below);
  }
}

void Machine::call(std::uint32_t rule, std::uint32_t target, SetId below) {
  auto calls = std::ranges::find(calls_, rule, &Calls::rule);
  if (calls == calls_.end()) calls = calls_.insert(calls_.end(), {rule, {}});
  spend(1 + calls_.size() / 8);
  if (below != kOutside && program_.rule_states[target].is_last()) {
    // Nothing is left to do after the call: it returns to our caller, so that what repeats by calling itself stays flat.
    const auto waiting = arena_.set(below);
    calls->waiting.insert(calls->waiting.end(), waiting.begin(), waiting.end());
    return;
  }
  Frame frame;
  frame.kind = FrameKind::Rule;
  frame.spec = target;
  calls->waiting.push_back({frame, below});
}

/// Enters the called rules, callers first: when a rule's turn comes, all who wait for it are known.
void Machine::run_calls(std::uint8_t byte) {
  std::vector<Thread> waiting;
  while (!calls_.empty()) {
    const auto next = std::ranges::min_element(calls_, {}, [&](const Calls& c) { return program_.rules[c.rule].rank; });
    waiting.clear();
    spend(next->waiting.size() * (1 + next->waiting.size() / 8));
    for (const Thread& thread : next->waiting) {
      if (std::ranges::find(waiting, thread) == waiting.end()) waiting.push_back(thread);
    }
    const std::uint32_t start = program_.rules[next->rule].start;
    calls_.erase(next);
    step_rule(start, arena_.add_set(waiting), byte);
  }
}

// ---------------------------------------------------------------- JSON

void Machine::begin_value(std::uint32_t value, std::uint8_t byte, const Thread& waiting, const ArgumentForms& forms) {
  const ValueSpec& spec = program_.values[value];
  SetId below = kNothing;
  const auto push = [&](FrameKind kind, std::uint32_t of, std::uint32_t state) {
    if (below == kNothing) below = arena_.add_set({&waiting, 1});
    Frame frame;
    frame.kind = kind;
    frame.spec = of;
    frame.state = state;
    add(frame, below);
  };
  if (byte == '"' && forms.strings) {
    for (const std::uint32_t string : spec.strings) push(FrameKind::String, string, 0);
  } else if (byte == '{' && forms.objects) {
    for (const std::uint32_t object : spec.objects) push(FrameKind::Object, object, 0);
  } else if (byte == '[' && forms.arrays) {
    for (const std::uint32_t array : spec.arrays) push(FrameKind::Array, array, 0);
  } else if (spec.bare != kNone && forms.bare) {
    const std::uint32_t state = program_.automata[spec.bare].next(0, byte);
    if (state != Automaton::kDead) push(FrameKind::Bare, spec.bare, state);
  }
}

void Machine::step_object(const Thread& thread, std::uint8_t byte) {
  const ObjectSpec& object = program_.objects[thread.frame.spec];
  const Arena::Seen& seen = arena_.seen(thread.frame.seen);
  Frame frame = thread.frame;
  const bool may_end = (frame.expect == Expect::First || frame.expect == Expect::Comma) && is_complete(object, seen);
  if (frame.expect != Expect::Colon && (frame.expect != Expect::Comma || may_end) && continue_gap(frame.left, byte)) {
    return add(frame, thread.below);
  }
  if (frame.left == kGapReturn) return;
  const bool in_gap = std::exchange(frame.left, 0) != 0;
  if (byte == '}' && may_end) return give_back(thread.below, frame, kValueEnd);
  switch (frame.expect) {
    case Expect::First:
    case Expect::Next: {
      if (byte != '"' || !has_more(object, seen)) return;
      Frame key;
      key.kind = FrameKind::Key;
      key.spec = frame.spec;
      key.seen = frame.seen;
      key.state = object.names.is_empty() ? Automaton::kDead : 0;
      if (is_open(key)) key.text = kEmptyText;
      frame.expect = Expect::Key;
      const Thread waiting = {frame, thread.below};
      return add(key, arena_.add_set({&waiting, 1}));
    }
    case Expect::Colon:
      if (byte != ':') return;
      frame.expect = Expect::Value;
      return add(frame, thread.below);
    case Expect::Value: {
      const std::uint32_t value = std::exchange(frame.state, 0);
      frame.expect = Expect::Comma;
      return begin_value(value, byte, {frame, thread.below});
    }
    case Expect::Comma:
      if (byte != ',' || in_gap || !has_more(object, seen)) return;
      frame.expect = Expect::Next;
      return add(frame, thread.below);
    default: return;
  }
}

void Machine::step_array(const Thread& thread, std::uint8_t byte) {
  const ArraySpec& array = program_.arrays[thread.frame.spec];
  Frame frame = thread.frame;
  const std::uint32_t count = frame.state;
  const bool may_end = frame.expect != Expect::Next && count >= array.min;
  if ((frame.expect != Expect::Comma || may_end) && continue_gap(frame.left, byte)) return add(frame, thread.below);
  if (frame.left == kGapReturn) return;
  const bool in_gap = std::exchange(frame.left, 0) != 0;
  if (byte == ']' && may_end) return give_back(thread.below, frame, kValueEnd);
  const std::uint32_t value = count < array.max ? array.value_at(count) : kNone;
  if (value == kNone) return;
  if (frame.expect == Expect::Comma) {
    if (byte != ',' || in_gap) return;
    frame.expect = Expect::Next;
    return add(frame, thread.below);
  }
  // Beyond what limits look at, all counts are alike.
  const std::uint32_t limit =
      std::max<std::uint32_t>({static_cast<std::uint32_t>(array.first.size()), array.min, array.max == kNoLimit ? 0 : array.max});
  frame.state = std::min(count + 1, limit);
  frame.expect = Expect::Comma;
  begin_value(value, byte, {frame, thread.below});
}

// ---------------------------------------------------------------- keys

bool Machine::may_add_more(const ObjectSpec& object, const Arena::Seen& seen) const {
  return object.additional != kNone && properties_left(object, seen) > 0;
}

bool Machine::is_open(const Frame& key) const { return may_add_more(program_.objects[key.spec], arena_.seen(key.seen)); }

bool Machine::may_add(const ObjectSpec& object, const Arena::Seen& seen, std::uint32_t property) const {
  const ObjectSpec::Property& of = object.properties[property];
  return of.value != kNone && !seen.has(property) && (of.required || properties_left(object, seen) > 0);
}

bool Machine::has_more(const ObjectSpec& object, const Arena::Seen& seen) const {
  if (seen.num_required < object.num_required || may_add_more(object, seen)) return true;
  return seen.num_optional < object.num_optional && properties_left(object, seen) > 0;
}

void Machine::after_key(const Thread& waiting, const Frame& key, std::int32_t property) {
  const ObjectSpec& object = program_.objects[waiting.frame.spec];
  Arena::Seen seen = arena_.seen(waiting.frame.seen);
  Frame frame = waiting.frame;
  const bool is_call = frame.kind == FrameKind::Call;
  frame.expect = Expect::Colon;
  if (property == kAdditional) {
    if (!may_add_more(object, seen)) return;
    for (std::uint32_t keys = seen.keys; keys != 0; keys = arena_.key(keys).next) {
      const std::uint32_t text = arena_.key(keys).text;
      if (text == kNoText) in_doubt_ = true;
      if (text != kNoText && key.text != kNoText && arena_.same_text(text, key.text)) return;
      spend(1);
    }
    ++seen.num_additional;
    seen.keys = arena_.add_key(key.text, seen.keys);
    frame.state = is_call ? kNone : object.additional;
  } else {
    const auto index = static_cast<std::uint32_t>(property);
    if (!may_add(object, seen, index)) return;
    seen.declared.resize((object.properties.size() + 63) / 64);
    seen.declared[index / 64] |= std::uint64_t{1} << (index % 64);
    ++(object.properties[index].required ? seen.num_required : seen.num_optional);
    frame.state = is_call ? index : object.properties[index].value;
  }
  frame.seen = arena_.add_seen(std::move(seen));
  if (is_call) return begin_mark(frame, waiting.below, CallMark::KeyEnd);
  add(frame, waiting.below);
}

std::vector<std::u32string> Machine::rest_of_seen_keys(const Frame& key) const {
  std::vector<std::u32string> rest;
  const Arena::Seen& seen = arena_.seen(key.seen);
  if (seen.keys == 0) return rest;
  const std::u32string begun = arena_.text(key.text);
  for (std::uint32_t keys = seen.keys; keys != 0; keys = arena_.key(keys).next) {
    const std::u32string name = arena_.text(arena_.key(keys).text);
    if (name.starts_with(begun)) rest.push_back(name.substr(begun.size()));
  }
  sort_unique(rest);
  return rest;
}

}  // namespace calandra::grammar
