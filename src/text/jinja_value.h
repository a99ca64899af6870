#pragma once
// The data of a template: Python's values, as far as a template can tell the difference. Values are immutable and shared,
// so copies are cheap and cycles cannot be built. Text is UTF-8, counted in code points.

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja_budget.h"

namespace calandra::jinja {

class Value;
using List = std::vector<Value>;
using Entries = std::vector<std::pair<Value, Value>>;

/// Nesting that data may reach: what walks it recursively stays within a small stack.
inline constexpr int kMaxNesting = 500;

/// A list, or a tuple: they print and compare differently.
struct Sequence {
  List items;
  bool is_tuple = false;
  int nesting = 1;
};

/// A dict in insertion order, keys unique.
struct Mapping {
  Entries entries;
  int nesting = 1;
  std::unordered_multimap<std::size_t, std::size_t> places;  ///< by the key's hash; empty for a few entries
};

/// What is neither data nor text: functions, macros, namespaces, loops. Owned by the render, never by a value.
class Object;

/// A missing thing. Prints as nothing; what else is done with it fails with its reason.
struct Undefined {
  std::shared_ptr<const std::string> reason;
};
struct None {};

/// An integer beyond 64 bits: it is compared and printed, but not calculated with.
struct BigInteger {
  std::shared_ptr<const std::string> digits;  ///< with a minus sign, without leading zeros
};

class Value {
 public:
  Value() = default;
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(None none) : data_(none) {}
  Value(bool boolean) : data_(boolean) {}
  Value(std::int64_t integer) : data_(integer) {}
  Value(double real) : data_(real) {}
  Value(std::string text) : data_(std::make_shared<const std::string>(std::move(text))) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(BigInteger integer) : data_(std::move(integer)) {}
  Value(Object* object) : data_(object) {}

  /// Both fail when the nesting grows beyond kMaxNesting.
  static Value list(List items, bool is_tuple = false);
  static Value tuple(List items) { return list(std::move(items), true); }
  /// Of equal keys the last value counts, at the place of the first.
  static Value dict(Budget& budget, const Entries& entries);
  static Value from_json(const nlohmann::ordered_json& json) { return from_json(json, 0); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_text() const { return std::holds_alternative<Text>(data_); }
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const std::string* text() const;
  const Sequence* sequence() const;
  const Mapping* mapping() const;
  Object* object() const;
  const std::string* big_integer() const;
  /// An integer of 64 bits or a boolean, which Python counts as one.
  std::optional<std::int64_t> integer() const;
  /// Any number as a float.
  std::optional<double> number() const;

  bool truth() const;
  /// Why an undefined value is undefined.
  std::string reason() const;
  int nesting() const;

 private:
  static Value from_json(const nlohmann::ordered_json& json, int depth);

  using Text = std::shared_ptr<const std::string>;
  std::variant<Undefined, None, bool, std::int64_t, double, BigInteger, Text, std::shared_ptr<const Sequence>,
               std::shared_ptr<const Mapping>, Object*>
      data_;
};

Value undefined(std::string reason);

/// Python's name of the type: "str", "int", "dict", ...
std::string_view type_name(const Value& value);

// Values are shared, so a small one may stand for a tree without end: whatever walks one charges every step of the walk.

std::string to_text(Budget& budget, const Value& value);  ///< str(value)
std::string to_repr(Budget& budget, const Value& value);  ///< repr(value)
std::string float_text(double number);                    ///< repr of a float

struct JsonStyle {
  bool ascii_only = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  ///< one level of it; unset: all on one line
  std::string between_items = ", ";
  std::string after_key = ": ";
};
/// json.dumps. Fails for what JSON cannot say.
std::string to_json(Budget& budget, const Value& value, const JsonStyle& style = {});

bool equal(Budget& budget, const Value& a, const Value& b);
/// Negative, zero or positive. Fails for types that Python does not order.
int compare(Budget& budget, const Value& a, const Value& b, std::string_view operation);
bool contains(Budget& budget, const Value& container, const Value& part);
/// The same for equal values; nothing for those that Python cannot hash.
std::optional<std::size_t> hash_of(Budget& budget, const Value& value);

/// The items that a loop visits: of a list, the keys of a dict, the characters of a text.
List iterate(Budget& budget, const Value& value);
std::int64_t length(Budget& budget, const Value& value);
const Value* find(Budget& budget, const Mapping& mapping, const Value& key);
const Value* find(const Mapping& mapping, std::string_view key);

/// value[index] for lists, texts and dicts; undefined where there is none.
Value item(Budget& budget, const Value& value, const Value& index);
/// value[start:stop:step]; an absent bound is None.
Value slice(Budget& budget, const Value& value, const Value& start, const Value& stop, const Value& step);

}  // namespace calandra::jinja
