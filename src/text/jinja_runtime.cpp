#include "text/jinja_runtime.h"

#include <fmt/printf.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "text/jinja_text.h"

namespace calandra::jinja {
namespace {

[[noreturn]] void refuse(std::string_view symbol, const Value& a, const Value& b) {
  for (const Value& value : {a, b}) {
    if (value.is_undefined()) fail("{}", value.reason());
  }
  fail("unsupported operand types for {}: '{}' and '{}'", symbol, type_name(a), type_name(b));
}

std::string_view symbol_of(BinaryOperator operation) {
  switch (operation) {
    case BinaryOperator::Add: return "+";
    case BinaryOperator::Subtract: return "-";
    case BinaryOperator::Multiply: return "*";
    case BinaryOperator::Divide: return "/";
    case BinaryOperator::FloorDivide: return "//";
    case BinaryOperator::Modulo: return "%";
    case BinaryOperator::Power: return "**";
  }
  return "";
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

double float_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

std::int64_t integer_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) fail("integer overflow");
  }
  return result;
}

Value operate_integers(BinaryOperator operation, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  switch (operation) {
    case BinaryOperator::Add: overflow = __builtin_add_overflow(a, b, &result); break;
    case BinaryOperator::Subtract: overflow = __builtin_sub_overflow(a, b, &result); break;
    case BinaryOperator::Multiply: overflow = __builtin_mul_overflow(a, b, &result); break;
    case BinaryOperator::Divide:
      if (b == 0) fail("division by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    case BinaryOperator::FloorDivide:
    case BinaryOperator::Modulo:
      if (b == 0) fail("integer division or modulo by zero");
      overflow = b == -1 && a == std::numeric_limits<std::int64_t>::min();
      if (!overflow) result = operation == BinaryOperator::Modulo ? a - floor_divide(a, b) * b : floor_divide(a, b);
      break;
    case BinaryOperator::Power:
      if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
      result = integer_power(a, b);
      break;
  }
  if (overflow) fail("integer overflow");
  return result;
}

Value operate_floats(BinaryOperator operation, double a, double b) {
  const bool divides =
      operation == BinaryOperator::Divide || operation == BinaryOperator::FloorDivide || operation == BinaryOperator::Modulo;
  if (divides && b == 0) fail("float division by zero");
  switch (operation) {
    case BinaryOperator::Add: return a + b;
    case BinaryOperator::Subtract: return a - b;
    case BinaryOperator::Multiply: return a * b;
    case BinaryOperator::Divide: return a / b;
    case BinaryOperator::FloorDivide: return std::floor((a - float_modulo(a, b)) / b + 0.5);
    case BinaryOperator::Modulo: return float_modulo(a, b);
    case BinaryOperator::Power: return std::pow(a, b);
  }
  return 0.0;
}

Value repeat(Runtime& runtime, const Value& value, std::int64_t times) {
  auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(0, times));
  const std::size_t size = value.text() ? value.text()->size() : value.sequence()->items.size();
  if (size == 0) count = 0;
  runtime.make_room(count, value.text() ? size : size * sizeof(Value));
  if (value.text()) {
    std::string text;
    const std::size_t total = size * count;
    text.reserve(total);
    if (total > 0) text = *value.text();
    while (text.size() < total) text.append(text, 0, total - text.size());  // at most what there is: doubles
    return text;
  }
  List items;
  items.reserve(size * count);
  for (std::uint64_t i = 0; i < count; ++i) {
    items.insert(items.end(), value.sequence()->items.begin(), value.sequence()->items.end());
  }
  return Value::list(std::move(items), value.sequence()->is_tuple);
}

Value add(Runtime& runtime, const Value& a, const Value& b) {
  if (a.text() && b.text()) {
    runtime.make_room(a.text()->size() + b.text()->size());
    return *a.text() + *b.text();
  }
  if (a.sequence() && b.sequence() && a.sequence()->is_tuple == b.sequence()->is_tuple) {
    runtime.make_room(a.sequence()->items.size() + b.sequence()->items.size(), sizeof(Value));
    List items = a.sequence()->items;
    items.insert(items.end(), b.sequence()->items.begin(), b.sequence()->items.end());
    return Value::list(std::move(items), a.sequence()->is_tuple);
  }
  refuse("+", a, b);
}

/// Whether what stands between % and the letter is flags, width and precision, in this order and none too long.
bool is_conversion(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789";
  constexpr std::size_t kLongest = 6;
  const auto skip = [&text](std::string_view characters) {
    text.remove_prefix(std::min(text.find_first_not_of(characters), text.size()));
  };
  if (text.size() > kLongest) return false;
  skip("+- #0");
  skip(kDigits);
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    skip(kDigits);
  }
  return text.empty();
}

/// What %d makes of a number.
std::int64_t whole_number(const Value& value) {
  if (value.integer()) return *value.integer();
  const double number = std::trunc(*value.number());
  if (!(number >= -0x1p63 && number < 0x1p63)) fail("cannot convert {} to an integer", float_text(number));
  return static_cast<std::int64_t>(number);
}

/// A text in a field: of "-12.3" the minus sign is for blanks on the right, 12 the width, 3 the characters taken.
std::string convert_text(std::string text, std::string_view flags) {
  const bool to_left = flags.find('-') != flags.npos;
  flags.remove_prefix(std::min(flags.find_first_not_of("+- #0"), flags.size()));
  std::int64_t width = 0, precision = 0;
  const char* const end = flags.data() + flags.size();
  const char* place = std::from_chars(flags.data(), end, width).ptr;
  if (place != end) {  // at the dot
    std::from_chars(place + 1, end, precision);
    const std::int64_t size = count_characters(text);
    if (precision < size) text.resize(static_cast<std::size_t>(character_at(text, precision).data() - text.data()));
  }
  const std::int64_t missing = std::max<std::int64_t>(0, width - count_characters(text));
  text.insert(to_left ? text.size() : 0, static_cast<std::size_t>(missing), ' ');
  return text;
}

/// One conversion of text % values: letters, flags, width and precision as C has them.
std::string convert(Budget& budget, char letter, const std::string& flags, const Value& value) {
  switch (letter) {
    case 's':
    case 'r': {
      std::string text = letter == 's' ? to_text(budget, value) : to_repr(budget, value);
      return flags.empty() ? text : convert_text(std::move(text), flags);
    }
    case 'd':
    case 'i':
    case 'x':
    case 'X':
    case 'o': {
      if (!value.number()) fail("%{} format: a number is required, not {}", letter, type_name(value));
      return fmt::sprintf(fmt::format("%{}l{}", flags, letter), whole_number(value));
    }
    case 'f':
    case 'e':
    case 'g':
      if (!value.number()) fail("%{} format: a number is required, not {}", letter, type_name(value));
      return fmt::sprintf(fmt::format("%{}{}", flags, letter), *value.number());
    default: fail("unsupported format character '{}'", letter);
  }
}

}  // namespace

List bind(const Arguments& arguments, std::initializer_list<std::string_view> names) {
  if (arguments.positional.size() > names.size()) {
    fail("takes at most {} arguments, {} given", names.size(), arguments.positional.size());
  }
  List values = arguments.positional;
  values.resize(names.size());
  for (const auto& [name, value] : arguments.named) {
    const auto place = static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (place == names.size()) fail("unexpected argument '{}'", name);
    if (place < arguments.positional.size()) fail("got two values for argument '{}'", name);
    values[place] = value;
  }
  return values;
}

Value Object::attribute(Runtime&, std::string_view name) {
  return undefined(fmt::format("the object has no attribute '{}'", name));
}
Value Object::call(Runtime&, const Arguments&) { fail("the object is not callable"); }

Value Namespace::attribute(Runtime& runtime, std::string_view name) {
  const Value* const value = values_.find(name);
  return value ? *value : Object::attribute(runtime, name);
}

std::size_t NameTable::place_of(std::string_view name) const {
  if (places_.empty()) {
    const auto known = std::find_if(values_.begin(), values_.end(), [&](const auto& entry) { return entry.first == name; });
    return static_cast<std::size_t>(known - values_.begin());
  }
  const auto place = places_.find(name);
  return place == places_.end() ? values_.size() : place->second;
}

const Value* NameTable::find(std::string_view name) const {
  const std::size_t place = place_of(name);
  return place == values_.size() ? nullptr : &values_[place].second;
}

void NameTable::set(std::string_view name, Value value) {
  constexpr std::size_t kMaxUnindexed = 16;
  if (const std::size_t place = place_of(name); place < values_.size()) {
    values_[place].second = std::move(value);
    return;
  }
  values_.emplace_back(name, std::move(value));
  if (values_.size() <= kMaxUnindexed) return;
  for (std::size_t i = places_.size(); i < values_.size(); ++i) places_.emplace(values_[i].first, i);
}

Value attribute(Runtime& runtime, const Value& value, std::string_view name) {
  if (value.is_undefined()) fail("{}", value.reason());
  if (value.object()) return value.object()->attribute(runtime, name);
  if (const Method method = find_method(value, name)) {
    return runtime.make<Function>(
        [method, value](Runtime& inner, const Arguments& arguments) { return method(inner, value, arguments); });
  }
  if (const Mapping* mapping = value.mapping()) {
    if (const Value* found = find(*mapping, name)) return *found;
    if (is_mutating_method(value, name)) return undefined(fmt::format("a template must not change data: dict.{}", name));
    return undefined(fmt::format("'dict object' has no attribute '{}'", name));
  }
  if (is_mutating_method(value, name)) return undefined(fmt::format("a template must not change data: list.{}", name));
  return undefined(fmt::format("'{} object' has no attribute '{}'", value.is_none() ? "None" : type_name(value), name));
}

Value subscript(Runtime& runtime, const Value& value, const Value& index) {
  if (value.is_undefined()) fail("{}", value.reason());
  if (value.object())
    return index.text() ? value.object()->attribute(runtime, *index.text()) : undefined("the object has no items");
  Value found = item(runtime, value, index);
  if (found.is_undefined() && index.text()) return attribute(runtime, value, *index.text());
  return found;
}

Value call(Runtime& runtime, const Value& callee, const Arguments& arguments) {
  runtime.spend_step();
  if (callee.is_undefined()) fail("{}", callee.reason());
  if (!callee.object()) fail("'{}' object is not callable", type_name(callee));
  return callee.object()->call(runtime, arguments);
}

Value operate(Runtime& runtime, BinaryOperator operation, const Value& a, const Value& b) {
  if (a.integer() && b.integer()) return operate_integers(operation, *a.integer(), *b.integer());
  if (a.number() && b.number() && !a.real() && !b.real()) fail("integer overflow: only integers of 64 bits are calculated with");
  if (a.number() && b.number()) return operate_floats(operation, *a.number(), *b.number());
  if (operation == BinaryOperator::Add) return add(runtime, a, b);
  if (operation == BinaryOperator::Multiply) {
    if ((a.text() || a.sequence()) && b.integer()) return repeat(runtime, a, *b.integer());
    if ((b.text() || b.sequence()) && a.integer()) return repeat(runtime, b, *a.integer());
  }
  if (operation == BinaryOperator::Modulo && a.text()) {
    const bool is_tuple = b.sequence() && b.sequence()->is_tuple;
    return format_text(runtime, *a.text(), is_tuple ? iterate(runtime, b) : List{b});
  }
  refuse(symbol_of(operation), a, b);
}

std::string format_text(Budget& budget, std::string_view format, const List& values) {
  budget.spend(format.size());
  std::string out;
  std::size_t charged = 0;
  std::size_t used = 0;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    std::string flags;
    while (++i < format.size() && std::string_view("+- #0123456789.").find(format[i]) != std::string_view::npos)
      flags += format[i];
    if (i >= format.size()) fail("incomplete format");
    if (format[i] == '%') {
      out += '%';
      continue;
    }
    if (!is_conversion(flags)) fail("'%{}' is not supported in a format", flags);
    if (used >= values.size()) fail("not enough arguments for format string");
    out += convert(budget, format[i], flags, values[used++]);
    budget.grow(charged, out.size());
  }
  if (used < values.size() && !(values.size() == 1 && values[0].mapping()))
    fail("not all arguments converted during string formatting");
  budget.grow(charged, out.size());
  return out;
}

}  // namespace calandra::jinja
