#pragma once
// Runs a parsed template on a context. One interpreter is one render.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_runtime.h"

namespace calandra::jinja {

/// Names set in a block. A block sees those around it and sets its own; macros keep the scope that they were defined in.
struct Scope {
  std::shared_ptr<Scope> parent;
  NameTable values;

  void set(const std::string& name, Value value) { values.set(name, std::move(value)); }
  const Value* find(const std::string& name) const;
};
using ScopePtr = std::shared_ptr<Scope>;

class Interpreter {
 public:
  Interpreter(const Program& program, const nlohmann::ordered_json& context, const JinjaOptions& options);

  /// Throws Error with the place in the template.
  std::string run();

  Value call_macro(const MacroDefinition& macro, const ScopePtr& scope, const Arguments& arguments);
  /// One pass over `items`; `depth` counts the passes of a recursive loop inside each other.
  void run_loop(const For& statement, const Value& items, const ScopePtr& scope, int depth);
  /// What `write` puts out, as text.
  template <class Write>
  std::string capture(Write&& write) {
    std::string text;
    std::string* const outer = std::exchange(out_, &text);
    write();
    out_ = outer;
    return text;
  }

 private:
  enum class Flow { Next, LeaveLoop, NextRound };
  class Depth;

  Flow run_body(const Body& body, const ScopePtr& scope);
  Flow run_statement(const Statement& statement, const ScopePtr& scope);
  Flow run_if(const If& statement, const ScopePtr& scope);
  void run_for(const For& statement, const ScopePtr& scope);
  void run_with(const With& statement, const ScopePtr& scope);
  void run_call_block(const CallBlock& statement, const ScopePtr& scope);
  void assign(const Target& target, const Value& value, Scope& scope);
  Value lookup(const std::string& name, const Scope& scope);
  void write(const std::string& text);

  Value evaluate(const Expression& expression, const ScopePtr& scope);
  Value evaluate_node(const Literal& node, const ScopePtr& scope);
  Value evaluate_node(const NameRef& node, const ScopePtr& scope);
  Value evaluate_node(const ListDisplay& node, const ScopePtr& scope);
  Value evaluate_node(const DictDisplay& node, const ScopePtr& scope);
  Value evaluate_node(const AttributeRef& node, const ScopePtr& scope);
  Value evaluate_node(const Subscript& node, const ScopePtr& scope);
  Value evaluate_node(const SliceOf& node, const ScopePtr& scope);
  Value evaluate_node(const CallOf& node, const ScopePtr& scope);
  Value evaluate_node(const FilterOf& node, const ScopePtr& scope);
  Value evaluate_node(const TestOf& node, const ScopePtr& scope);
  Value evaluate_node(const Unary& node, const ScopePtr& scope);
  Value evaluate_node(const Binary& node, const ScopePtr& scope);
  Value evaluate_node(const Logic& node, const ScopePtr& scope);
  Value evaluate_node(const Comparison& node, const ScopePtr& scope);
  Value evaluate_node(const Concatenation& node, const ScopePtr& scope);
  Value evaluate_node(const Conditional& node, const ScopePtr& scope);

  Arguments evaluate_arguments(const CallArguments& arguments, const ScopePtr& scope);
  Value evaluate_call(const CallOf& node, const Arguments& arguments, const ScopePtr& scope);
  /// A filter whose innermost input is `text`: those of filter blocks and of set blocks.
  Value apply_filters(const ExpressionPtr& filter, std::string text, const ScopePtr& scope);

  const Program& program_;
  Value context_;
  Runtime runtime_;
  std::string* out_ = nullptr;
  std::vector<Value> filter_inputs_;  ///< of the filter blocks being closed, innermost last
  int depth_ = 0;
  int line_ = 1;  ///< being run, for errors
};

}  // namespace calandra::jinja
