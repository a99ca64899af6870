// Which names a template reads from its context: those that it reads where it has not surely set them itself.

#include <algorithm>
#include <iterator>

#include "text/jinja_runtime.h"
#include "text/jinja_syntax.h"

namespace calandra::jinja {
namespace {

class VariableReader {
 public:
  std::set<std::string> run(const Body& body) {
    read(body);
    return std::move(found_);
  }

 private:
  using Names = std::set<std::string>;

  /// What `walk` sets is unknown again after it.
  template <class Walk>
  void inside(Walk&& walk) {
    const Names before = known_;
    walk();
    known_ = before;
  }

  void read(const Body& body) {
    for (const Statement& statement : body) {
      std::visit([this](const auto& node) { read_node(node); }, statement.node);
    }
  }

  void set(const Target& target) {
    for (const Target& part : target.parts) set(part);
    if (!target.attribute.empty()) {
      name(target.name);
    } else if (!target.unpack) {
      known_.insert(target.name);
    }
  }

  void name(const std::string& name) {
    if (!known_.contains(name) && !find_function(name)) found_.insert(name);
  }

  void read_node(const TextOut&) {}
  void read_node(const Break&) {}
  void read_node(const Continue&) {}
  void read_node(const Output& node) { read(node.value); }
  void read_node(const Set& node) {
    read(node.value);
    set(node.target);
  }
  void read_node(const SetBlock& node) {
    read(node.filter);
    inside([&] { read(node.body); });
    set(node.target);
  }
  void read_node(const FilterBlock& node) {
    read(node.filter);
    inside([&] { read(node.body); });
  }
  void read_node(const With& node) {
    for (const auto& [target, value] : node.values) read(value);
    inside([&] {
      for (const auto& [target, value] : node.values) set(target);
      read(node.body);
    });
  }
  void read_node(const For& node) {
    read(node.items);
    inside([&] {
      set(node.target);
      read(node.condition);
      known_.insert("loop");
      read(node.body);
    });
    inside([&] { read(node.otherwise); });
  }
  void read_node(const Macro& node) {
    known_.insert(node.definition->name);
    read_macro(*node.definition);
  }
  void read_node(const CallBlock& node) {
    read(node.call);
    read_macro(*node.caller);
  }
  void read_macro(const MacroDefinition& macro) {
    inside([&] {
      known_.insert({"varargs", "kwargs", "caller"});
      for (const Parameter& parameter : macro.parameters) {
        read(parameter.fallback);
        known_.insert(parameter.name);
      }
      read(macro.body);
    });
  }

  /// After an if, what all of its branches have set is known.
  void read_node(const If& node) {
    const Names before = known_;
    std::vector<Names> ends;
    for (const auto& [condition, body] : node.branches) {
      read(condition);
      const Names reached = known_;
      read(body);
      ends.push_back(known_);
      known_ = reached;
    }
    read(node.otherwise);
    for (const Names& end : ends) {
      Names both;
      std::set_intersection(known_.begin(), known_.end(), end.begin(), end.end(), std::inserter(both, both.end()));
      known_ = std::move(both);
    }
  }

  void read(const ExpressionPtr& expression) {
    if (expression) std::visit([this](const auto& node) { read_part(node); }, expression->node);
  }
  template <class List>
  void read_all(const List& parts) {
    for (const auto& part : parts) read(part);
  }
  void read(const CallArguments& arguments) {
    read_all(arguments.positional);
    for (const auto& [label, value] : arguments.named) read(value);
    read(arguments.more_positional);
    read(arguments.more_named);
  }

  void read_part(const Literal&) {}
  void read_part(const NameRef& node) { name(node.name); }
  void read_part(const ListDisplay& node) { read_all(node.items); }
  void read_part(const DictDisplay& node) {
    for (const auto& [key, value] : node.entries) {
      read(key);
      read(value);
    }
  }
  void read_part(const AttributeRef& node) { read(node.object); }
  void read_part(const Subscript& node) {
    read(node.object);
    read(node.index);
  }
  void read_part(const SliceOf& node) {
    for (const auto* part : {&node.object, &node.start, &node.stop, &node.step}) read(*part);
  }
  void read_part(const CallOf& node) {
    read(node.callee);
    read(node.arguments);
  }
  void read_part(const FilterOf& node) {
    read(node.input);
    read(node.arguments);
  }
  void read_part(const TestOf& node) {
    read(node.input);
    read(node.arguments);
  }
  void read_part(const Unary& node) { read(node.operand); }
  void read_part(const Binary& node) {
    read(node.left);
    read(node.right);
  }
  void read_part(const Logic& node) {
    read(node.left);
    read(node.right);
  }
  void read_part(const Comparison& node) {
    read(node.first);
    for (const auto& [relation, operand] : node.others) read(operand);
  }
  void read_part(const Concatenation& node) { read_all(node.parts); }
  void read_part(const Conditional& node) {
    read(node.condition);
    read(node.then);
    read(node.otherwise);
  }

  Names known_;
  Names found_;
};

}  // namespace

std::set<std::string> read_variables(const Body& body) { return VariableReader().run(body); }

}  // namespace calandra::jinja
