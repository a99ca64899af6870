#include "text/grammar_program.h"

#include <algorithm>

namespace calandra::grammar {
namespace {

/// What an allocator takes for a block: most parts of a program are so small that its own bytes matter.
std::size_t allocated(std::size_t bytes) { return bytes == 0 ? 0 : std::max<std::size_t>(32, (bytes + 8 + 15) / 16 * 16); }

/// What hangs on each part, without the part itself. In a class, so that vectors find what comes behind them.
struct Owned {
  template <class Part>
  static std::size_t by(const std::vector<Part>& parts) {
    std::size_t bytes = allocated(parts.capacity() * sizeof(Part));
    for (const Part& part : parts) bytes += by(part);
    return bytes;
  }

  static std::size_t by(std::uint32_t /*index*/) { return 0; }
  static std::size_t by(const std::pair<std::uint32_t, std::uint32_t>& /*range*/) { return 0; }
  static std::size_t by(const RuleState::Bytes& /*bytes*/) { return 0; }
  static std::size_t by(const RuleState::Call& /*call*/) { return 0; }
  static std::size_t by(const StringSpec& /*string*/) { return 0; }
  static std::size_t by(const RawSpec& /*raw*/) { return 0; }
  static std::size_t by(const std::string& text) {
    constexpr std::size_t kInside = 15;  // characters that need no block
    return text.capacity() > kInside ? allocated(text.capacity() + 1) : 0;
  }
  static std::size_t by(const Automaton& automaton) { return automaton.owned_bytes(allocated); }
  static std::size_t by(const ArgumentForms& forms) { return by(forms.raws); }
  static std::size_t by(const ObjectSpec::Property& property) { return by(property.name) + by(property.forms); }
  static std::size_t by(const ObjectSpec& object) {
    return by(object.properties) + by(object.additional_forms) + by(object.names) + by(object.below);
  }
  static std::size_t by(const ArraySpec& array) { return by(array.first); }
  static std::size_t by(const ValueSpec& value) { return by(value.strings) + by(value.objects) + by(value.arrays); }
  static std::size_t by(const RuleState& state) { return by(state.bytes) + by(state.calls); }
  static std::size_t by(const Rule& rule) { return by(rule.name); }
  static std::size_t by(const ToolSpec& tool) { return by(tool.objects); }
  static std::size_t by(const Program& p) {
    return by(p.automata) + by(p.strings) + by(p.objects) + by(p.arrays) + by(p.values) + by(p.rule_states) + by(p.rules) +
           by(p.raws) + by(p.tools) + by(p.tool_names);
  }
};

}  // namespace

std::size_t bytes_of(const Program& program) { return sizeof(Program) + Owned::by(program); }

}  // namespace calandra::grammar
