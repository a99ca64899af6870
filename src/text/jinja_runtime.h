#pragma once
// What runs a template: the objects that are neither data nor text, the budget, and the built-in filters, tests, methods
// and functions, which know nothing of the syntax tree.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja.h"
#include "text/jinja_syntax.h"
#include "text/jinja_value.h"

namespace calandra::jinja {

struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// The arguments of a built-in in the order of `names`, undefined where none was given. Fails for surplus or unknown ones.
List bind(const Arguments& arguments, std::initializer_list<std::string_view> names);

class Object {
 public:
  virtual ~Object() = default;
  virtual Value attribute(Runtime& runtime, std::string_view name);
  virtual Value call(Runtime& runtime, const Arguments& arguments);
  virtual bool callable() const { return false; }
};

/// Names and their values. Most are few, and templates make many tables: only a long one is looked up by a tree.
class NameTable {
 public:
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);

 private:
  std::size_t place_of(std::string_view name) const;

  std::vector<std::pair<std::string, Value>> values_;
  std::map<std::string, std::size_t, std::less<>> places_;  ///< empty while values_ is short
};

class Namespace : public Object {
 public:
  Value attribute(Runtime& runtime, std::string_view name) override;
  void set(std::string_view name, Value value) { values_.set(name, std::move(value)); }

 private:
  NameTable values_;
};

/// A built-in function, or a method with the value it belongs to.
class Function : public Object {
 public:
  explicit Function(std::function<Value(Runtime&, const Arguments&)> function) : function_(std::move(function)) {}
  Value call(Runtime& runtime, const Arguments& arguments) override { return function_(runtime, arguments); }
  bool callable() const override { return true; }

 private:
  std::function<Value(Runtime&, const Arguments&)> function_;
};

/// One render: owns every object made during it, and counts what it costs.
class Runtime : public Budget {
 public:
  explicit Runtime(const JinjaOptions& options) : Budget(options.max_work), options_(options) {}

  const JinjaOptions& options() const { return options_; }

  template <class T, class... Parts>
  T* make(Parts&&... parts) {
    spend(sizeof(T) + 256);
    auto object = std::make_unique<T>(std::forward<Parts>(parts)...);
    T* result = object.get();
    objects_.push_back(std::move(object));
    return result;
  }

 private:
  const JinjaOptions& options_;
  std::vector<std::unique_ptr<Object>> objects_;
};

/// value.name, and value[index] with what is written after the dot or between the brackets.
Value attribute(Runtime& runtime, const Value& value, std::string_view name);
Value subscript(Runtime& runtime, const Value& value, const Value& index);
Value call(Runtime& runtime, const Value& callee, const Arguments& arguments);

Value operate(Runtime& runtime, BinaryOperator operation, const Value& a, const Value& b);
/// text % values
std::string format_text(Budget& budget, std::string_view format, const List& values);

/// Null if there is none of this name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);
using Method = Value (*)(Runtime&, const Value& self, const Arguments&);
Method find_method(const Value& self, std::string_view name);
/// True for a method that would change its object, which a template must not do.
bool is_mutating_method(const Value& self, std::string_view name);

/// range, dict, namespace, raise_exception, strftime_now
using GlobalFunction = Value (*)(Runtime&, const Arguments&);
GlobalFunction find_function(std::string_view name);

}  // namespace calandra::jinja
