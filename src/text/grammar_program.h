#pragma once
// A compiled grammar: what JSON Schema and grammar texts become, and what the machine (grammar_machine.h) runs. Plain data,
// never changed once made.
//
// No part of it is a dead end: values that no text satisfies have been taken out, so that whatever the machine allows next
// can be completed.

#include "text/grammar_automaton.h"

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra::grammar {

inline constexpr std::uint32_t kNone = UINT32_MAX;

/// A JSON string.
struct StringSpec {
  std::uint32_t automaton = kNone;        // of its characters, after escapes; kNone: any characters, counted
  std::uint32_t min = 0, max = kNoLimit;  // without an automaton only
};

/// What stands around the parts of a tool's call (docs/model.md 8.3).
enum class CallMark : std::uint8_t { CallBegin, CallEnd, KeyBegin, KeyEnd, ValueBegin, ValueEnd };

inline constexpr std::array<std::string_view, 6> kCallMarks = {"<tool_call>", "</tool_call>", "<arg_key>",
                                                               "</arg_key>",  "<arg_value>",  "</arg_value>"};

constexpr std::string_view text_of(CallMark mark) { return kCallMarks[static_cast<std::size_t>(mark)]; }

/// Text that stands as it is, up to a mark that does not come in it.
struct RawSpec {
  StringSpec string;
  std::uint32_t guard = kNone;  // a second automaton, of guard_of_text() and its like; kNone: none
  CallMark end = CallMark::ValueEnd;
};

/// How an argument's value may be written.
struct ArgumentForms {
  bool bare = true, strings = true, objects = true, arrays = true;  // as JSON
  std::vector<std::uint32_t> raws = {};                             // a string as it is
};

/// A JSON object, or the arguments of a call. Properties come in any order, each at most once.
struct ObjectSpec {
  struct Property {
    std::string name;
    std::uint32_t value = kNone;  // kNone: may not be there
    bool required = false;
    ArgumentForms forms = {};  // of arguments
  };
  std::vector<Property> properties;  // ascending by name
  std::uint32_t additional = kNone;  // the value of any other property; kNone: there is none
  ArgumentForms additional_forms = {};
  std::uint32_t min = 0, max = kNoLimit;

  // Of the names: tags are indices of properties; `below` has for each state the properties whose names begin so.
  Automaton names;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> below;
  std::uint32_t num_required = 0, num_optional = 0;  // without those that may not be there
};

struct ArraySpec {
  std::vector<std::uint32_t> first;  // values of the first items
  std::uint32_t items = kNone;       // of those after them; kNone: there are none
  std::uint32_t min = 0, max = kNoLimit;

  std::uint32_t value_at(std::uint32_t index) const { return index < first.size() ? first[index] : items; }
};

/// What may stand where JSON has a value: one of all these.
struct ValueSpec {
  std::uint32_t bare = kNone;  // automaton of numbers, true, false, null
  std::vector<std::uint32_t> strings, objects, arrays;
};

/// A state of a rule of a grammar text.
struct RuleState {
  struct Bytes {
    std::uint8_t first, last;
    std::uint32_t target;
  };
  struct Call {
    std::uint32_t rule;
    std::uint32_t target;  // where it goes on after it
  };
  std::vector<Bytes> bytes;
  std::vector<Call> calls;
  bool accepts = false;
  bool is_last() const { return accepts && bytes.empty() && calls.empty(); }
};

struct Rule {
  std::string name;
  std::uint32_t start = 0;
  std::uint32_t rank = 0;  // a rule that begins with a call of another has a lower rank
  std::bitset<256> first;  // the bytes it can begin with
  bool nullable = false;   // calls of it have a way around them
};

/// A tool that may be called.
struct ToolSpec {
  std::vector<std::uint32_t> objects = {};  // its arguments fit one of these
  std::uint32_t raw = kNone;                // or are any text
};

struct Program {
  std::vector<Automaton> automata;
  std::vector<StringSpec> strings;
  std::vector<ObjectSpec> objects;
  std::vector<ArraySpec> arrays;
  std::vector<ValueSpec> values;
  std::vector<RuleState> rule_states;
  std::vector<Rule> rules;
  std::vector<RawSpec> raws;
  std::vector<ToolSpec> tools;
  Automaton tool_names;  // over bytes; tags are indices of tools
  bool several_calls = true;
  std::uint8_t marks_with_token = 0;                    // a bit for each CallMark that is written as its token only
  std::uint32_t root_value = kNone, root_rule = kNone;  // one of them, or there are tools: then the text is their calls

  bool is_of_calls() const { return !tools.empty(); }
};

/// The memory that it takes, about.
std::size_t bytes_of(const Program& program);

}  // namespace calandra::grammar
