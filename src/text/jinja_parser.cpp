// Builds the syntax tree of a template by recursive descent. Depth is limited here, of what is nested and of chains such as
// a + b + c alike, so that whatever walks the tree later stays within a small stack.

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "text/jinja_runtime.h"
#include "text/jinja_syntax.h"

namespace calandra::jinja {
namespace {

constexpr int kMaxNesting = 120;

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& where) : tokens_(std::move(tokens)), where_(where) {}

  Body parse_template() {
    Body body = parse_body({});
    if (current().kind != TokenKind::End) reject(fmt::format("unexpected '{}'", current().text));
    return body;
  }

  /// The tokens are those of one output tag.
  ExpressionPtr parse_single_expression() {
    expect(TokenKind::BeginOutput);
    ExpressionPtr result = parse_tuple();
    expect(TokenKind::EndOutput);
    expect(TokenKind::End);
    return result;
  }

 private:
  /// Forgets, when it ends, the levels that were counted since it began.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser), before_(parser.depth_) {}
    ~Level() { parser_.depth_ = before_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    void grow() {
      if (++parser_.depth_ > kMaxNesting) parser_.reject(fmt::format("nested or chained more than {} deep", kMaxNesting));
    }

   private:
    Parser& parser_;
    int before_;
  };

  // --- tokens

  [[noreturn]] void reject(std::string_view what) const { fail("{}:{}: {}", where_, current().line, what); }
  const Token& current() const { return tokens_[place_]; }
  const Token& next() const { return tokens_[std::min(place_ + 1, tokens_.size() - 1)]; }
  Token take() {
    Token token = tokens_[place_];
    if (place_ + 1 < tokens_.size()) ++place_;
    return token;
  }
  bool is(TokenKind kind, std::string_view text) const { return current().kind == kind && current().text == text; }
  bool is_symbol(std::string_view text) const { return is(TokenKind::Symbol, text); }
  bool is_word(std::string_view text) const { return is(TokenKind::Name, text); }
  bool accept_symbol(std::string_view text) { return is_symbol(text) && (take(), true); }
  bool accept_word(std::string_view text) { return is_word(text) && (take(), true); }
  void expect(TokenKind kind) {
    if (current().kind != kind) reject(fmt::format("unexpected '{}'", current().text));
    take();
  }
  void expect_symbol(std::string_view text) {
    if (!accept_symbol(text)) reject(fmt::format("expected '{}', found '{}'", text, current().text));
  }
  void expect_word(std::string_view text) {
    if (!accept_word(text)) reject(fmt::format("expected '{}', found '{}'", text, current().text));
  }
  std::string expect_name() {
    if (current().kind != TokenKind::Name) reject(fmt::format("expected a name, found '{}'", current().text));
    return take().text;
  }

  template <class Node>
  ExpressionPtr make(int line, Node node) const {
    return std::make_unique<const Expression>(Expression{std::move(node), line});
  }

  // --- statements

  /// Up to a tag whose word is one of `ends`, which stays the current token; or to the end of the template.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    Level level(*this);
    level.grow();
    Body body;
    while (true) {
      const int line = current().line;
      if (current().kind == TokenKind::Text) {
        body.push_back({TextOut{take().text}, line});
      } else if (current().kind == TokenKind::BeginOutput) {
        take();
        body.push_back({Output{parse_tuple()}, line});
        expect(TokenKind::EndOutput);
      } else if (current().kind == TokenKind::BeginBlock) {
        if (next().kind == TokenKind::Name && std::find(ends.begin(), ends.end(), next().text) != ends.end()) {
          take();
          return body;
        }
        take();
        parse_statement(body, line);
      } else {
        if (ends.size() > 0) reject(fmt::format("expected '{}' before the end of the template", *(ends.end() - 1)));
        return body;
      }
    }
  }

  Body parse_block(std::string_view end) {
    expect(TokenKind::EndBlock);
    Body body = parse_body({end});
    take();
    return body;
  }

  void parse_statement(Body& body, int line) {
    const std::string word = expect_name();
    if (word == "set") {
      parse_set(body, line);
    } else if (word == "if") {
      parse_if(body, line);
    } else if (word == "for") {
      parse_for(body, line);
    } else if (word == "macro") {
      parse_macro(body, line);
    } else if (word == "call") {
      parse_call_block(body, line);
    } else if (word == "filter") {
      ExpressionPtr filter = parse_filters(nullptr, true);
      body.push_back({FilterBlock{std::move(filter), parse_block("endfilter")}, line});
    } else if (word == "with") {
      parse_with(body, line);
    } else if (word == "generation") {
      body.push_back({With{{}, parse_block("endgeneration")}, line});
    } else if ((word == "break" || word == "continue") && loops_ > 0) {
      if (word == "break") body.push_back({Break{}, line});
      if (word == "continue") body.push_back({Continue{}, line});
    } else if (word == "break" || word == "continue") {
      reject(fmt::format("'{}' outside of a loop", word));
    } else {
      reject(fmt::format("unknown tag '{}'", word));
    }
    if (current().kind != TokenKind::EndBlock) reject(fmt::format("expected '%}}', found '{}'", current().text));
    take();
  }

  /// "a", "a, (b, c)" or, where an attribute may be set, "space.a".
  Target parse_target(bool may_be_attribute) {
    Target first = parse_target_part();
    if (may_be_attribute && first.parts.empty() && accept_symbol(".")) {
      first.attribute = expect_name();
      return first;
    }
    if (!is_symbol(",")) return first;
    return parse_more_targets(std::move(first));
  }

  /// Those after the first and its comma.
  Target parse_more_targets(Target first) {
    Target target;
    target.unpack = true;
    target.parts.push_back(std::move(first));
    while (accept_symbol(",")) {
      if ((current().kind != TokenKind::Name && !is_symbol("(")) || is_word("in")) break;
      target.parts.push_back(parse_target_part());
    }
    return target;
  }

  Target parse_target_part() {
    Level level(*this);
    level.grow();
    if (accept_symbol("(")) {
      Target inner = parse_target(false);
      expect_symbol(")");
      return inner;
    }
    Target target;
    target.name = parse_target_name();
    return target;
  }

  static bool assigns(const Target& target, std::string_view name) {
    return target.name == name ||
           std::any_of(target.parts.begin(), target.parts.end(), [&](const Target& part) { return assigns(part, name); });
  }

  std::string parse_target_name() {
    constexpr std::string_view kConstants[] = {"true", "True", "false", "False", "none", "None"};
    if (std::find(std::begin(kConstants), std::end(kConstants), current().text) != std::end(kConstants)) {
      reject(fmt::format("cannot assign to '{}'", current().text));
    }
    return expect_name();
  }

  void parse_set(Body& body, int line) {
    Target target = parse_target(true);
    if (accept_symbol("=")) {
      body.push_back({Set{std::move(target), parse_tuple()}, line});
      return;
    }
    ExpressionPtr filter;
    if (is_symbol("|")) filter = parse_filters(nullptr, false);
    body.push_back({SetBlock{std::move(target), std::move(filter), parse_block("endset")}, line});
  }

  void parse_if(Body& body, int line) {
    If statement;
    while (true) {
      ExpressionPtr condition = parse_tuple(false);
      expect(TokenKind::EndBlock);
      Body branch = parse_body({"elif", "else", "endif"});
      statement.branches.emplace_back(std::move(condition), std::move(branch));
      if (!accept_word("elif")) break;
    }
    if (accept_word("else")) {
      statement.otherwise = parse_block("endif");
    } else {
      take();
    }
    body.push_back({std::move(statement), line});
  }

  void parse_for(Body& body, int line) {
    For statement;
    statement.target = parse_target(false);
    if (assigns(statement.target, "loop")) reject("cannot assign to 'loop' in a loop");
    expect_word("in");
    statement.items = parse_tuple(false);
    if (accept_word("if")) statement.condition = parse_expression();
    statement.recursive = accept_word("recursive");
    expect(TokenKind::EndBlock);
    ++loops_;
    statement.body = parse_body({"else", "endfor"});
    --loops_;
    if (accept_word("else")) {
      statement.otherwise = parse_block("endfor");
    } else {
      take();
    }
    body.push_back({std::move(statement), line});
  }

  std::vector<Parameter> parse_parameters() {
    std::vector<Parameter> parameters;
    expect_symbol("(");
    while (!is_symbol(")")) {
      if (!parameters.empty()) expect_symbol(",");
      if (is_symbol(")")) break;
      Parameter parameter{parse_target_name(), nullptr};
      if (accept_symbol("=")) {
        parameter.fallback = parse_expression();
      } else if (!parameters.empty() && parameters.back().fallback) {
        reject("a parameter without default follows one with a default");
      }
      parameters.push_back(std::move(parameter));
    }
    take();
    return parameters;
  }

  /// A macro's body is no part of the loop around it.
  void parse_macro_body(MacroDefinition& macro, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    macro.body = parse_block(end);
    loops_ = loops;
    for (const std::string& name : read_variables(macro.body)) {
      if (name == "varargs" || name == "kwargs" || name == "caller") macro.reads.insert(name);
    }
  }

  void parse_macro(Body& body, int line) {
    auto macro = std::make_shared<MacroDefinition>();
    macro->name = parse_target_name();
    macro->parameters = parse_parameters();
    parse_macro_body(*macro, "endmacro");
    body.push_back({Macro{std::move(macro)}, line});
  }

  void parse_call_block(Body& body, int line) {
    auto caller = std::make_shared<MacroDefinition>();
    caller->name = "caller";
    if (is_symbol("(")) caller->parameters = parse_parameters();
    ExpressionPtr callee = parse_expression();
    if (!std::holds_alternative<CallOf>(callee->node)) reject("expected a call");
    parse_macro_body(*caller, "endcall");
    body.push_back({CallBlock{std::move(callee), std::move(caller)}, line});
  }

  void parse_with(Body& body, int line) {
    With statement;
    while (current().kind != TokenKind::EndBlock) {
      if (!statement.values.empty()) expect_symbol(",");
      Target target = parse_target(false);
      expect_symbol("=");
      statement.values.emplace_back(std::move(target), parse_expression());
    }
    statement.body = parse_block("endwith");
    body.push_back({std::move(statement), line});
  }

  // --- expressions, loosest first

  /// One expression, or several with commas: a tuple.
  ExpressionPtr parse_tuple(bool with_conditional = true) {
    const int line = current().line;
    const auto parse_item = [&] { return with_conditional ? parse_expression() : parse_or(); };
    const auto ends = [&] {
      return current().kind == TokenKind::EndBlock || current().kind == TokenKind::EndOutput || is_symbol(")") || is_word("in") ||
             is_word("recursive") || is_word("if");
    };
    ExpressionPtr first = parse_item();
    if (!is_symbol(",")) return first;
    ListDisplay tuple{{}, true};
    tuple.items.push_back(std::move(first));
    while (accept_symbol(",") && !ends()) tuple.items.push_back(parse_item());
    return make(line, std::move(tuple));
  }

  ExpressionPtr parse_expression() {
    Level level(*this);
    level.grow();
    const int line = current().line;
    ExpressionPtr result = parse_or();
    while (accept_word("if")) {
      level.grow();
      ExpressionPtr condition = parse_or();
      ExpressionPtr otherwise = accept_word("else") ? parse_expression() : nullptr;
      result = make(line, Conditional{std::move(condition), std::move(result), std::move(otherwise)});
    }
    return result;
  }

  ExpressionPtr parse_or() {
    Level level(*this);
    const int line = current().line;
    ExpressionPtr left = parse_and();
    while (accept_word("or")) {
      level.grow();
      left = make(line, Logic{false, std::move(left), parse_and()});
    }
    return left;
  }

  ExpressionPtr parse_and() {
    Level level(*this);
    const int line = current().line;
    ExpressionPtr left = parse_not();
    while (accept_word("and")) {
      level.grow();
      left = make(line, Logic{true, std::move(left), parse_not()});
    }
    return left;
  }

  ExpressionPtr parse_not() {
    const int line = current().line;
    if (!is_word("not")) return parse_comparison();
    Level level(*this);
    level.grow();
    take();
    return make(line, Unary{UnaryOperator::LogicalNot, parse_not()});
  }

  std::optional<Relation> accept_relation() {
    constexpr std::pair<std::string_view, Relation> kRelations[] = {
        {"==", Relation::Equal},     {"!=", Relation::NotEqual}, {"<", Relation::Less},
        {"<=", Relation::LessEqual}, {">", Relation::Greater},   {">=", Relation::GreaterEqual},
    };
    for (const auto& [symbol, relation] : kRelations) {
      if (accept_symbol(symbol)) return relation;
    }
    if (accept_word("in")) return Relation::In;
    if (is_word("not") && next().kind == TokenKind::Name && next().text == "in") {
      take();
      take();
      return Relation::NotIn;
    }
    return std::nullopt;
  }

  ExpressionPtr parse_comparison() {
    const int line = current().line;
    Comparison comparison;
    comparison.first = parse_sum();
    while (const auto relation = accept_relation()) comparison.others.emplace_back(*relation, parse_sum());
    if (comparison.others.empty()) return std::move(comparison.first);
    return make(line, std::move(comparison));
  }

  using Operators = std::initializer_list<std::pair<std::string_view, BinaryOperator>>;
  template <class Operand>
  ExpressionPtr parse_binary(Operators operators, Operand&& parse_operand) {
    Level level(*this);
    const int line = current().line;
    ExpressionPtr left = parse_operand();
    while (true) {
      const auto found =
          std::find_if(operators.begin(), operators.end(), [&](const auto& entry) { return is_symbol(entry.first); });
      if (found == operators.end()) return left;
      take();
      level.grow();
      left = make(line, Binary{found->second, std::move(left), parse_operand()});
    }
  }

  ExpressionPtr parse_sum() {
    return parse_binary({{"+", BinaryOperator::Add}, {"-", BinaryOperator::Subtract}}, [&] { return parse_concatenation(); });
  }

  ExpressionPtr parse_concatenation() {
    const int line = current().line;
    Concatenation concatenation;
    concatenation.parts.push_back(parse_product());
    while (accept_symbol("~")) concatenation.parts.push_back(parse_product());
    if (concatenation.parts.size() == 1) return std::move(concatenation.parts.front());
    return make(line, std::move(concatenation));
  }

  ExpressionPtr parse_product() {
    return parse_binary({{"*", BinaryOperator::Multiply},
                         {"/", BinaryOperator::Divide},
                         {"//", BinaryOperator::FloorDivide},
                         {"%", BinaryOperator::Modulo}},
                        [&] {
                          return parse_binary({{"**", BinaryOperator::Power}}, [&] { return parse_unary(true); });
                        });
  }

  ExpressionPtr parse_unary(bool with_filters) {
    Level level(*this);
    if (!with_filters) level.grow();
    const int line = current().line;
    ExpressionPtr result;
    if (accept_symbol("-")) {
      result = make(line, Unary{UnaryOperator::Minus, parse_unary(false)});
    } else if (accept_symbol("+")) {
      result = make(line, Unary{UnaryOperator::Plus, parse_unary(false)});
    } else {
      result = parse_postfix(parse_primary());
    }
    return with_filters ? parse_filters(std::move(result), false) : std::move(result);
  }

  ExpressionPtr parse_primary() {
    const Token token = take();
    switch (token.kind) {
      case TokenKind::Name: return parse_name(token);
      case TokenKind::Number: return make(token.line, Literal{token.number});
      case TokenKind::String: {
        std::string text = token.text;
        while (current().kind == TokenKind::String) text += take().text;
        return make(token.line, Literal{std::move(text)});
      }
      case TokenKind::Symbol:
        if (token.text == "(") return parse_parentheses(token.line);
        if (token.text == "[") return parse_list(token.line);
        if (token.text == "{") return parse_dict(token.line);
        break;
      default: break;
    }
    fail("{}:{}: unexpected '{}'", where_, token.line, token.text);
  }

  ExpressionPtr parse_name(const Token& token) {
    const std::string& name = token.text;
    if (name == "true" || name == "True") return make(token.line, Literal{true});
    if (name == "false" || name == "False") return make(token.line, Literal{false});
    if (name == "none" || name == "None") return make(token.line, Literal{None{}});
    return make(token.line, NameRef{name});
  }

  ExpressionPtr parse_parentheses(int line) {
    if (accept_symbol(")")) return make(line, ListDisplay{{}, true});
    ExpressionPtr inner = parse_tuple();
    expect_symbol(")");
    return inner;
  }

  ExpressionPtr parse_list(int line) {
    ListDisplay list{{}, false};
    while (!accept_symbol("]")) {
      if (!list.items.empty()) expect_symbol(",");
      if (accept_symbol("]")) break;
      list.items.push_back(parse_expression());
    }
    return make(line, std::move(list));
  }

  ExpressionPtr parse_dict(int line) {
    DictDisplay dict;
    while (!accept_symbol("}")) {
      if (!dict.entries.empty()) expect_symbol(",");
      if (accept_symbol("}")) break;
      ExpressionPtr key = parse_expression();
      expect_symbol(":");
      dict.entries.emplace_back(std::move(key), parse_expression());
    }
    return make(line, std::move(dict));
  }

  ExpressionPtr parse_postfix(ExpressionPtr object) {
    Level level(*this);
    while (true) {
      const int line = current().line;
      if (accept_symbol(".")) {
        object = parse_attribute(std::move(object), line);
      } else if (accept_symbol("[")) {
        object = parse_subscript(std::move(object), line);
      } else if (is_symbol("(")) {
        object = make(line, CallOf{std::move(object), parse_arguments()});
      } else {
        return object;
      }
      level.grow();
    }
  }

  ExpressionPtr parse_attribute(ExpressionPtr object, int line) {
    if (current().kind == TokenKind::Number) return make(line, Subscript{std::move(object), make(line, Literal{take().number})});
    return make(line, AttributeRef{std::move(object), expect_name()});
  }

  ExpressionPtr parse_subscript(ExpressionPtr object, int line) {
    const auto parse_bound = [&]() -> ExpressionPtr {
      if (is_symbol(":") || is_symbol("]")) return make(line, Literal{None{}});
      return parse_expression();
    };
    if (is_symbol("]")) reject("expected an index");
    ExpressionPtr start = parse_bound();
    if (accept_symbol("]")) return make(line, Subscript{std::move(object), std::move(start)});
    expect_symbol(":");
    ExpressionPtr stop = parse_bound();
    ExpressionPtr step = accept_symbol(":") ? parse_bound() : make(line, Literal{None{}});
    expect_symbol("]");
    return make(line, SliceOf{std::move(object), std::move(start), std::move(stop), std::move(step)});
  }

  CallArguments parse_arguments() {
    CallArguments arguments;
    expect_symbol("(");
    for (bool first = true; !accept_symbol(")"); first = false) {
      if (!first) expect_symbol(",");
      if (accept_symbol(")")) break;
      if (accept_symbol("**")) {
        if (arguments.more_named) reject("more than one '**'");
        arguments.more_named = parse_expression();
      } else if (accept_symbol("*")) {
        if (arguments.more_positional) reject("more than one '*'");
        arguments.more_positional = parse_expression();
      } else if (current().kind == TokenKind::Name && next().kind == TokenKind::Symbol && next().text == "=") {
        std::string name = take().text;
        take();
        arguments.named.emplace_back(std::move(name), parse_expression());
      } else {
        if (!arguments.named.empty() || arguments.more_named) reject("a positional argument follows a named one");
        arguments.positional.push_back(parse_expression());
      }
    }
    return arguments;
  }

  /// Filters and tests after `input`. `begins_with_name`: as in a filter block, no '|' comes before the first.
  ExpressionPtr parse_filters(ExpressionPtr input, bool begins_with_name) {
    Level level(*this);
    while (true) {
      if (begins_with_name || accept_symbol("|")) {
        input = parse_filter(std::move(input));
      } else if (input && is_word("is")) {
        input = parse_test(std::move(input));
      } else if (input && is_symbol("(")) {
        const int line = current().line;
        input = make(line, CallOf{std::move(input), parse_arguments()});
      } else {
        return input;
      }
      begins_with_name = false;
      level.grow();
    }
  }

  ExpressionPtr parse_filter(ExpressionPtr input) {
    const int line = current().line;
    const std::string name = expect_name();
    const Filter filter = find_filter(name);
    if (!filter) reject(fmt::format("unknown filter '{}'", name));
    CallArguments arguments;
    if (is_symbol("(")) arguments = parse_arguments();
    return make(line, FilterOf{std::move(input), filter, std::move(arguments)});
  }

  ExpressionPtr parse_test(ExpressionPtr input) {
    const int line = current().line;
    expect_word("is");
    const bool negated = accept_word("not");
    const std::string name = expect_name();
    const Test test = find_test(name);
    if (!test) reject(fmt::format("unknown test '{}'", name));
    CallArguments arguments;
    if (is_symbol("(")) {
      arguments = parse_arguments();
    } else if (begins_test_argument()) {
      arguments.positional.push_back(parse_postfix(parse_primary()));
    }
    ExpressionPtr result = make(line, TestOf{std::move(input), test, std::move(arguments)});
    return negated ? make(line, Unary{UnaryOperator::LogicalNot, std::move(result)}) : std::move(result);
  }

  /// `x is divisibleby 3` has an argument without parentheses.
  bool begins_test_argument() const {
    if (current().kind == TokenKind::String || current().kind == TokenKind::Number) return true;
    if (is_symbol("[") || is_symbol("{")) return true;
    if (current().kind != TokenKind::Name) return false;
    if (is_word("is")) reject("tests cannot be chained with 'is'");
    constexpr std::string_view kOperators[] = {"else", "or", "and", "if", "in", "not", "recursive"};
    return std::find(std::begin(kOperators), std::end(kOperators), current().text) == std::end(kOperators);
  }

  std::vector<Token> tokens_;
  const std::string& where_;
  std::size_t place_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

/// The value of a tree of literals; nothing if there is anything else in it.
std::optional<Value> literal_value(Budget& budget, const Expression& expression) {
  if (const auto* literal = std::get_if<Literal>(&expression.node)) return literal->value;
  if (const auto* display = std::get_if<ListDisplay>(&expression.node)) {
    List items;
    for (const auto& part : display->items) {
      auto item_value = literal_value(budget, *part);
      if (!item_value) return std::nullopt;
      items.push_back(std::move(*item_value));
    }
    return Value::list(std::move(items), display->is_tuple);
  }
  if (const auto* display = std::get_if<DictDisplay>(&expression.node)) {
    Entries entries;
    for (const auto& [key, part] : display->entries) {
      auto key_value = literal_value(budget, *key);
      auto part_value = literal_value(budget, *part);
      if (!key_value || !part_value) return std::nullopt;
      entries.emplace_back(std::move(*key_value), std::move(*part_value));
    }
    return Value::dict(budget, entries);
  }
  const auto* unary = std::get_if<Unary>(&expression.node);
  if (!unary || unary->operation == UnaryOperator::LogicalNot) return std::nullopt;
  auto operand = literal_value(budget, *unary->operand);
  if (!operand || operand->boolean() || !operand->number()) return std::nullopt;
  if (unary->operation == UnaryOperator::Plus) return operand;
  if (operand->big_integer()) return BigInteger{std::make_shared<const std::string>('-' + *operand->big_integer())};
  return operand->real() ? Value(-*operand->real()) : Value(-*operand->integer());
}

}  // namespace

Program parse_program(std::string_view source, std::string where) {
  Program program;
  program.where = std::move(where);
  program.body = Parser(tokenize(source, program.where), program.where).parse_template();
  program.variables = read_variables(program.body);
  return program;
}

std::optional<Value> parse_literal(Budget& budget, std::string_view source) {
  const std::string where = "literal";
  try {
    std::string text = "{{ ";
    text.append(source).append(" }}");
    return literal_value(budget, *Parser(tokenize(text, where), where).parse_single_expression());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace calandra::jinja
