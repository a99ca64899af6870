#pragma once
// The syntax tree of a template, made by the parser and read by the interpreter. Filters and tests are resolved when the
// tree is built, so that an unknown one is an error of the template and not of a request.

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja_value.h"

namespace calandra::jinja {

enum class TokenKind { Text, BeginOutput, EndOutput, BeginBlock, EndBlock, Name, Number, String, Symbol, End };

struct Token {
  TokenKind kind;
  std::string text;  ///< of a string: its value; of a symbol: its characters
  Value number;
  int line = 1;
};

/// Cuts a template into tokens; white space around tags is already dealt with. Throws Error with `where` and the line.
std::vector<Token> tokenize(std::string_view source, const std::string& where);

class Runtime;
struct Arguments;
using Filter = Value (*)(Runtime&, const Value& input, const Arguments&);
using Test = bool (*)(Runtime&, const Value& input, const Arguments&);

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional;  ///< *expression
  ExpressionPtr more_named;       ///< **expression
};

struct Literal {
  Value value;
};
struct NameRef {
  std::string name;
};
struct ListDisplay {
  std::vector<ExpressionPtr> items;
  bool is_tuple;
};
struct DictDisplay {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
struct AttributeRef {
  ExpressionPtr object;
  std::string name;
};
struct Subscript {
  ExpressionPtr object, index;
};
struct SliceOf {
  ExpressionPtr object, start, stop, step;
};
struct CallOf {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterOf {
  ExpressionPtr input;  ///< null in a filter block
  Filter filter;
  CallArguments arguments;
};
struct TestOf {
  ExpressionPtr input;
  Test test;
  CallArguments arguments;
};
enum class UnaryOperator { Plus, Minus, LogicalNot };
struct Unary {
  UnaryOperator operation;
  ExpressionPtr operand;
};
enum class BinaryOperator { Add, Subtract, Multiply, Divide, FloorDivide, Modulo, Power };
struct Binary {
  BinaryOperator operation;
  ExpressionPtr left, right;
};
struct Logic {
  bool is_and;
  ExpressionPtr left, right;
};
enum class Relation { Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, In, NotIn };
struct Comparison {
  ExpressionPtr first;
  std::vector<std::pair<Relation, ExpressionPtr>> others;
};
struct Concatenation {
  std::vector<ExpressionPtr> parts;
};
struct Conditional {
  ExpressionPtr condition, then, otherwise;  ///< otherwise may be null
};

struct Expression {
  std::variant<Literal, NameRef, ListDisplay, DictDisplay, AttributeRef, Subscript, SliceOf, CallOf, FilterOf, TestOf, Unary,
               Binary, Logic, Comparison, Concatenation, Conditional>
      node;
  int line;
};

struct Statement;
using Body = std::vector<Statement>;

/// What `set` and `for` write to: a name, an attribute of a namespace, or several targets that a value is unpacked into.
struct Target {
  std::string name;
  std::string attribute;  ///< not empty: of the namespace `name`
  bool unpack = false;
  std::vector<Target> parts;
};

struct TextOut {
  std::string text;
};
struct Output {
  ExpressionPtr value;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
/// The filter's innermost input is the body's text; without a filter it is null.
struct SetBlock {
  Target target;
  ExpressionPtr filter;
  Body body;
};
struct FilterBlock {
  ExpressionPtr filter;
  Body body;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct For {
  Target target;
  ExpressionPtr items, condition;
  bool recursive;
  Body body, otherwise;
};
struct Parameter {
  std::string name;
  ExpressionPtr fallback;
};
struct MacroDefinition {
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  /// Of varargs, kwargs and caller, those that the body reads: a macro takes only what it asks for.
  std::set<std::string> reads;
};
struct Macro {
  std::shared_ptr<const MacroDefinition> definition;
};
struct CallBlock {
  ExpressionPtr call;
  std::shared_ptr<const MacroDefinition> caller;
};
/// A block with names of its own.
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Body body;
};
struct Break {};
struct Continue {};

struct Statement {
  std::variant<TextOut, Output, Set, SetBlock, FilterBlock, If, For, Macro, CallBlock, With, Break, Continue> node;
  int line;
};

struct Program {
  std::string where;
  Body body;
  std::set<std::string> variables;  ///< read from the context
};

/// Throws Error that names `where`, the line and what is wrong there.
Program parse_program(std::string_view source, std::string where);

/// The value of a text that is nothing but a Python literal, such as {'a': [1, None]}.
std::optional<Value> parse_literal(Budget& budget, std::string_view source);

/// Names that the program may read before it has surely set them itself.
std::set<std::string> read_variables(const Body& body);

}  // namespace calandra::jinja
