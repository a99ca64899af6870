#include "text/jinja_interpreter.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace calandra {
namespace jinja {
namespace {

/// Nodes of the tree inside each other, macros' bodies included: bounds the stack.
constexpr int kMaxDepth = 1000;

class MacroObject : public Object {
 public:
  MacroObject(Interpreter& interpreter, std::shared_ptr<const MacroDefinition> definition, ScopePtr scope)
      : interpreter_(interpreter), definition_(std::move(definition)), scope_(std::move(scope)) {}

  Value attribute(Runtime& runtime, std::string_view name) override {
    if (name == "name") return definition_->name;
    return Object::attribute(runtime, name);
  }
  Value call(Runtime&, const Arguments& arguments) override { return interpreter_.call_macro(*definition_, scope_, arguments); }
  bool callable() const override { return true; }

 private:
  Interpreter& interpreter_;
  std::shared_ptr<const MacroDefinition> definition_;
  ScopePtr scope_;
};

/// The variable `loop`.
class Loop : public Object {
 public:
  Loop(Interpreter& interpreter, const For& statement, List items, ScopePtr scope, int depth)
      : interpreter_(interpreter), statement_(statement), items_(std::move(items)), scope_(std::move(scope)), depth_(depth) {}

  const List& items() const { return items_; }
  void set_index(std::size_t index) { index_ = index; }
  /// Lets go of what only a running loop needs: the object itself lives as long as the render.
  void finish() {
    items_.clear();
    scope_.reset();
  }

  Value attribute(Runtime& runtime, std::string_view name) override {
    const auto index = static_cast<std::int64_t>(index_);
    const auto size = static_cast<std::int64_t>(items_.size());
    if (name == "index") return index + 1;
    if (name == "index0") return index;
    if (name == "revindex") return size - index;
    if (name == "revindex0") return size - index - 1;
    if (name == "first") return index == 0;
    if (name == "last") return index + 1 == size;
    if (name == "length") return size;
    if (name == "depth") return std::int64_t{depth_};
    if (name == "depth0") return std::int64_t{depth_ - 1};
    if (name == "previtem") return neighbour(index - 1, "there is no previous item");
    if (name == "nextitem") return neighbour(index + 1, "there is no next item");
    if (name == "cycle") return runtime.make<Function>([this](Runtime&, const Arguments& arguments) { return cycle(arguments); });
    if (name == "changed")
      return runtime.make<Function>([this](Runtime& inner, const Arguments& arguments) { return changed(inner, arguments); });
    return Object::attribute(runtime, name);
  }

  Value call(Runtime&, const Arguments& arguments) override {
    if (!statement_.recursive) fail("'loop' can be called in a recursive loop only");
    if (!scope_) fail("'loop' was called after its loop ended");
    const Value inner = bind(arguments, {"items"})[0];
    return interpreter_.capture([&] { interpreter_.run_loop(statement_, inner, scope_, depth_ + 1); });
  }
  bool callable() const override { return true; }

 private:
  Value neighbour(std::int64_t index, const char* reason) const {
    if (index < 0 || index >= static_cast<std::int64_t>(items_.size())) return undefined(reason);
    return items_[static_cast<std::size_t>(index)];
  }
  Value cycle(const Arguments& arguments) const {
    if (arguments.positional.empty()) fail("no items for cycling given");
    return arguments.positional[index_ % arguments.positional.size()];
  }
  Value changed(Runtime& runtime, const Arguments& arguments) {
    const Value values = Value::tuple(arguments.positional);
    const bool differs = !equal(runtime, last_, values);
    last_ = values;
    return differs;
  }

  Interpreter& interpreter_;
  const For& statement_;
  List items_;
  ScopePtr scope_;
  int depth_;
  std::size_t index_ = 0;
  Value last_;
};

ScopePtr inner_scope(const ScopePtr& parent) { return std::make_shared<Scope>(Scope{parent, {}}); }

bool holds(Budget& budget, Relation relation, const Value& a, const Value& b) {
  switch (relation) {
    case Relation::Equal: return equal(budget, a, b);
    case Relation::NotEqual: return !equal(budget, a, b);
    case Relation::Less: return compare(budget, a, b, "<") < 0;
    case Relation::LessEqual: return compare(budget, a, b, "<=") <= 0;
    case Relation::Greater: return compare(budget, a, b, ">") > 0;
    case Relation::GreaterEqual: return compare(budget, a, b, ">=") >= 0;
    case Relation::In: return contains(budget, b, a);
    case Relation::NotIn: return !contains(budget, b, a);
  }
  return false;
}

}  // namespace

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope; scope = scope->parent.get()) {
    if (const Value* value = scope->values.find(name)) return value;
  }
  return nullptr;
}

class Interpreter::Depth {
 public:
  explicit Depth(int& depth) : depth_(depth) {
    if (depth_ >= kMaxDepth) fail("calls or loops are nested too deep");
    ++depth_;
  }
  ~Depth() { --depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  int& depth_;
};

Interpreter::Interpreter(const Program& program, const nlohmann::ordered_json& context, const JinjaOptions& options)
    : program_(program), context_(Value::from_json(context)), runtime_(options) {
  if (!context_.mapping()) fail("{}: the context must be an object", program.where);
}

std::string Interpreter::run() {
  try {
    return capture([&] { run_body(program_.body, inner_scope(nullptr)); });
  } catch (const Error& error) {
    fail("{}:{}: {}", program_.where, line_, error.what());
  } catch (const std::bad_alloc&) {
    fail("{}:{}: not enough memory", program_.where, line_);
  }
}

// --- statements

Interpreter::Flow Interpreter::run_body(const Body& body, const ScopePtr& scope) {
  for (const Statement& statement : body) {
    const Flow flow = run_statement(statement, scope);
    if (flow != Flow::Next) return flow;
  }
  return Flow::Next;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement, const ScopePtr& scope) {
  const Depth depth(depth_);
  line_ = statement.line;
  runtime_.spend_step();
  const auto& node = statement.node;
  if (const auto* text = std::get_if<TextOut>(&node)) {
    write(text->text);
  } else if (const auto* output = std::get_if<Output>(&node)) {
    write(to_text(runtime_, evaluate(*output->value, scope)));
  } else if (const auto* set = std::get_if<Set>(&node)) {
    assign(set->target, evaluate(*set->value, scope), *scope);
  } else if (const auto* set_block = std::get_if<SetBlock>(&node)) {
    std::string inner = capture([&] { run_body(set_block->body, inner_scope(scope)); });
    assign(set_block->target, apply_filters(set_block->filter, std::move(inner), scope), *scope);
  } else if (const auto* filter_block = std::get_if<FilterBlock>(&node)) {
    std::string inner = capture([&] { run_body(filter_block->body, inner_scope(scope)); });
    write(to_text(runtime_, apply_filters(filter_block->filter, std::move(inner), scope)));
  } else if (const auto* condition = std::get_if<If>(&node)) {
    return run_if(*condition, scope);
  } else if (const auto* loop = std::get_if<For>(&node)) {
    run_for(*loop, scope);
  } else if (const auto* macro = std::get_if<Macro>(&node)) {
    scope->set(macro->definition->name, runtime_.make<MacroObject>(*this, macro->definition, scope));
  } else if (const auto* call_block = std::get_if<CallBlock>(&node)) {
    run_call_block(*call_block, scope);
  } else if (const auto* with = std::get_if<With>(&node)) {
    run_with(*with, scope);
  } else {
    return std::holds_alternative<Break>(node) ? Flow::LeaveLoop : Flow::NextRound;
  }
  return Flow::Next;
}

Interpreter::Flow Interpreter::run_if(const If& statement, const ScopePtr& scope) {
  for (const auto& [condition, body] : statement.branches) {
    if (evaluate(*condition, scope).truth()) return run_body(body, scope);
  }
  return run_body(statement.otherwise, scope);
}

void Interpreter::run_for(const For& statement, const ScopePtr& scope) {
  run_loop(statement, evaluate(*statement.items, scope), scope, 1);
}

void Interpreter::run_loop(const For& statement, const Value& items, const ScopePtr& scope, int depth) {
  List chosen = iterate(runtime_, items);
  if (statement.condition) {
    List kept;
    for (Value& value : chosen) {
      const ScopePtr round = inner_scope(scope);
      assign(statement.target, value, *round);
      if (evaluate(*statement.condition, round).truth()) kept.push_back(std::move(value));
    }
    chosen = std::move(kept);
  }
  if (chosen.empty()) {
    run_body(statement.otherwise, inner_scope(scope));
    return;
  }
  Loop* const loop = runtime_.make<Loop>(*this, statement, std::move(chosen), scope, depth);
  for (std::size_t i = 0; i < loop->items().size(); ++i) {
    runtime_.spend_step();
    loop->set_index(i);
    const ScopePtr round = inner_scope(scope);
    round->set("loop", static_cast<Object*>(loop));
    assign(statement.target, loop->items()[i], *round);
    if (run_body(statement.body, round) == Flow::LeaveLoop) break;
  }
  loop->finish();
}

void Interpreter::run_with(const With& statement, const ScopePtr& scope) {
  const ScopePtr inner = inner_scope(scope);
  for (const auto& [target, value] : statement.values) assign(target, evaluate(*value, scope), *inner);
  run_body(statement.body, inner);
}

void Interpreter::run_call_block(const CallBlock& statement, const ScopePtr& scope) {
  const auto& node = std::get<CallOf>(statement.call->node);
  Arguments arguments = evaluate_arguments(node.arguments, scope);
  arguments.named.emplace_back("caller", runtime_.make<MacroObject>(*this, statement.caller, scope));
  write(to_text(runtime_, evaluate_call(node, arguments, scope)));
}

Value Interpreter::call_macro(const MacroDefinition& macro, const ScopePtr& scope, const Arguments& arguments) {
  const Depth depth(depth_);
  const ScopePtr inner = inner_scope(scope);
  std::vector<bool> used(arguments.named.size(), false);
  runtime_.spend(macro.parameters.size() * arguments.named.size());
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    std::optional<Value> value;
    if (i < arguments.positional.size()) value = arguments.positional[i];
    for (std::size_t k = 0; k < used.size(); ++k) {
      if (arguments.named[k].first != parameter.name) continue;
      if (value) fail("macro '{}' got two values for '{}'", macro.name, parameter.name);
      value = arguments.named[k].second;
      used[k] = true;
    }
    if (!value && parameter.fallback) value = evaluate(*parameter.fallback, inner);
    if (!value) value = undefined(fmt::format("parameter '{}' was not provided", parameter.name));
    inner->set(parameter.name, *value);
  }
  const std::size_t num_taken = std::min(macro.parameters.size(), arguments.positional.size());
  if (macro.reads.contains("varargs")) {
    const auto first = arguments.positional.begin() + static_cast<std::ptrdiff_t>(num_taken);
    inner->set("varargs", Value::tuple({first, arguments.positional.end()}));
  } else if (num_taken < arguments.positional.size()) {
    fail("macro '{}' takes not more than {} arguments, found {}", macro.name, num_taken, arguments.positional.size());
  }
  Entries rest;
  for (std::size_t k = 0; k < used.size(); ++k) {
    const auto& [name, value] = arguments.named[k];
    if (used[k]) continue;
    if (name == "caller" && macro.reads.contains("caller")) {
      inner->set("caller", value);
    } else if (name != "caller" && macro.reads.contains("kwargs")) {
      rest.emplace_back(name, value);
    } else {
      fail("macro '{}' takes no argument '{}'", macro.name, name);
    }
  }
  if (macro.reads.contains("kwargs")) inner->set("kwargs", Value::dict(runtime_, rest));
  return capture([&] { run_body(macro.body, inner); });
}

void Interpreter::assign(const Target& target, const Value& value, Scope& scope) {
  if (!target.attribute.empty()) {
    auto* space = dynamic_cast<Namespace*>(lookup(target.name, scope).object());
    if (!space) fail("cannot assign attribute on non-namespace object '{}'", target.name);
    space->set(target.attribute, value);
  } else if (!target.unpack) {
    scope.set(target.name, value);
  } else {
    const List parts = iterate(runtime_, value);
    if (parts.size() != target.parts.size()) {
      fail("cannot unpack {} values into {} names", parts.size(), target.parts.size());
    }
    for (std::size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], parts[i], scope);
  }
}

Value Interpreter::lookup(const std::string& name, const Scope& scope) {
  if (const Value* value = scope.find(name)) return *value;
  if (const Value* value = find(*context_.mapping(), std::string_view(name))) return *value;
  if (const GlobalFunction function = find_function(name)) return runtime_.make<Function>(function);
  return undefined(fmt::format("'{}' is undefined", name));
}

void Interpreter::write(const std::string& text) {
  runtime_.spend(text.size());
  const std::size_t limit = runtime_.options().max_output_bytes;
  if (text.size() > limit || out_->size() > limit - text.size()) fail("the output exceeds {} bytes", limit);
  *out_ += text;
}

// --- expressions

Value Interpreter::evaluate(const Expression& expression, const ScopePtr& scope) {
  const Depth depth(depth_);
  line_ = expression.line;
  runtime_.spend_step();
  return std::visit([&](const auto& node) { return evaluate_node(node, scope); }, expression.node);
}

Value Interpreter::evaluate_node(const Literal& node, const ScopePtr&) { return node.value; }
Value Interpreter::evaluate_node(const NameRef& node, const ScopePtr& scope) { return lookup(node.name, *scope); }

Value Interpreter::evaluate_node(const ListDisplay& node, const ScopePtr& scope) {
  List items;
  for (const auto& part : node.items) items.push_back(evaluate(*part, scope));
  return Value::list(std::move(items), node.is_tuple);
}

Value Interpreter::evaluate_node(const DictDisplay& node, const ScopePtr& scope) {
  Entries entries;
  for (const auto& [key, value] : node.entries) {
    Value name = evaluate(*key, scope);
    entries.emplace_back(std::move(name), evaluate(*value, scope));
  }
  return Value::dict(runtime_, entries);
}

Value Interpreter::evaluate_node(const AttributeRef& node, const ScopePtr& scope) {
  return attribute(runtime_, evaluate(*node.object, scope), node.name);
}

Value Interpreter::evaluate_node(const Subscript& node, const ScopePtr& scope) {
  const Value object = evaluate(*node.object, scope);
  return subscript(runtime_, object, evaluate(*node.index, scope));
}

Value Interpreter::evaluate_node(const SliceOf& node, const ScopePtr& scope) {
  const Value object = evaluate(*node.object, scope);
  const Value start = evaluate(*node.start, scope);
  const Value stop = evaluate(*node.stop, scope);
  return slice(runtime_, object, start, stop, evaluate(*node.step, scope));
}

Value Interpreter::evaluate_node(const CallOf& node, const ScopePtr& scope) {
  return evaluate_call(node, evaluate_arguments(node.arguments, scope), scope);
}

Value Interpreter::evaluate_call(const CallOf& node, const Arguments& arguments, const ScopePtr& scope) {
  // A method of data is called without making an object of it first: almost all calls are of this kind.
  if (const auto* member = std::get_if<AttributeRef>(&node.callee->node)) {
    const Value self = evaluate(*member->object, scope);
    if (const Method method = find_method(self, member->name)) return method(runtime_, self, arguments);
    return call(runtime_, attribute(runtime_, self, member->name), arguments);
  }
  return call(runtime_, evaluate(*node.callee, scope), arguments);
}

Value Interpreter::evaluate_node(const FilterOf& node, const ScopePtr& scope) {
  const Value input = node.input ? evaluate(*node.input, scope) : filter_inputs_.back();
  return node.filter(runtime_, input, evaluate_arguments(node.arguments, scope));
}

Value Interpreter::evaluate_node(const TestOf& node, const ScopePtr& scope) {
  const Value input = evaluate(*node.input, scope);
  return node.test(runtime_, input, evaluate_arguments(node.arguments, scope));
}

Value Interpreter::evaluate_node(const Unary& node, const ScopePtr& scope) {
  Value value = evaluate(*node.operand, scope);
  if (node.operation == UnaryOperator::LogicalNot) return !value.truth();
  if (value.is_undefined()) fail("{}", value.reason());
  if (!value.number()) fail("bad operand type for unary operator: '{}'", type_name(value));
  if (const std::string* digits = value.big_integer()) {
    if (node.operation == UnaryOperator::Plus) return value;
    const bool negative = digits->front() == '-';
    return BigInteger{std::make_shared<const std::string>(negative ? digits->substr(1) : '-' + *digits)};
  }
  return operate(runtime_, node.operation == UnaryOperator::Minus ? BinaryOperator::Subtract : BinaryOperator::Add,
                 value.real() ? Value(-0.0) : Value(std::int64_t{0}), value);
}

Value Interpreter::evaluate_node(const Binary& node, const ScopePtr& scope) {
  const Value left = evaluate(*node.left, scope);
  return operate(runtime_, node.operation, left, evaluate(*node.right, scope));
}

Value Interpreter::evaluate_node(const Logic& node, const ScopePtr& scope) {
  Value left = evaluate(*node.left, scope);
  return left.truth() == node.is_and ? evaluate(*node.right, scope) : left;
}

Value Interpreter::evaluate_node(const Comparison& node, const ScopePtr& scope) {
  Value left = evaluate(*node.first, scope);
  for (const auto& [relation, operand] : node.others) {
    Value right = evaluate(*operand, scope);
    if (!holds(runtime_, relation, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_node(const Concatenation& node, const ScopePtr& scope) {
  std::string text;
  std::size_t charged = 0;
  for (const auto& part : node.parts) {
    text += to_text(runtime_, evaluate(*part, scope));
    runtime_.grow(charged, text.size());
  }
  return text;
}

Value Interpreter::evaluate_node(const Conditional& node, const ScopePtr& scope) {
  if (evaluate(*node.condition, scope).truth()) return evaluate(*node.then, scope);
  if (node.otherwise) return evaluate(*node.otherwise, scope);
  return undefined("the inline if-expression evaluated to false and no else section was defined");
}

Arguments Interpreter::evaluate_arguments(const CallArguments& arguments, const ScopePtr& scope) {
  Arguments result;
  for (const auto& value : arguments.positional) result.positional.push_back(evaluate(*value, scope));
  for (const auto& [name, value] : arguments.named) result.named.emplace_back(name, evaluate(*value, scope));
  if (arguments.more_positional) {
    for (Value& value : iterate(runtime_, evaluate(*arguments.more_positional, scope)))
      result.positional.push_back(std::move(value));
  }
  if (arguments.more_named) {
    const Value more = evaluate(*arguments.more_named, scope);
    if (!more.mapping()) fail("argument after ** must be a mapping, not {}", type_name(more));
    runtime_.make_room(more.mapping()->entries.size(), sizeof(Value) + sizeof(std::string));
    for (const auto& [name, value] : more.mapping()->entries) result.named.emplace_back(to_text(runtime_, name), value);
  }
  return result;
}

Value Interpreter::apply_filters(const ExpressionPtr& filter, std::string text, const ScopePtr& scope) {
  if (!filter) return text;
  filter_inputs_.emplace_back(std::move(text));
  Value result = evaluate(*filter, scope);
  filter_inputs_.pop_back();
  return result;
}

}  // namespace jinja

JinjaTemplate JinjaTemplate::parse(std::string_view source, std::string where) {
  JinjaTemplate result;
  result.program_ = std::make_shared<const jinja::Program>(jinja::parse_program(source, std::move(where)));
  return result;
}

std::string JinjaTemplate::render(const nlohmann::ordered_json& context, const JinjaOptions& options) const {
  check_nesting(context, program_->where + ": the context");
  return jinja::Interpreter(*program_, context, options).run();
}

const std::set<std::string>& JinjaTemplate::variables() const { return program_->variables; }

}  // namespace calandra
