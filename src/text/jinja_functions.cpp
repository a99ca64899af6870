// The tests of `x is name`, and the functions that every template has.

#include <algorithm>
#include <array>
#include <ctime>

#include "base/error.h"
#include "text/jinja_runtime.h"
#include "text/jinja_text.h"

namespace calandra::jinja {
namespace {

bool is_equal(Runtime& r, const Value& v, const Arguments& a) { return equal(r, v, bind(a, {"other"})[0]); }
bool is_not_equal(Runtime& r, const Value& v, const Arguments& a) { return !equal(r, v, bind(a, {"other"})[0]); }
bool is_less(Runtime& r, const Value& v, const Arguments& a) { return compare(r, v, bind(a, {"other"})[0], "<") < 0; }
bool is_less_equal(Runtime& r, const Value& v, const Arguments& a) { return compare(r, v, bind(a, {"other"})[0], "<=") <= 0; }
bool is_greater(Runtime& r, const Value& v, const Arguments& a) { return compare(r, v, bind(a, {"other"})[0], ">") > 0; }
bool is_greater_equal(Runtime& r, const Value& v, const Arguments& a) { return compare(r, v, bind(a, {"other"})[0], ">=") >= 0; }

bool is_divisible(Runtime& runtime, const Value& value, const Value& by) {
  return equal(runtime, operate(runtime, BinaryOperator::Modulo, value, by), std::int64_t{0});
}

bool is_countable(const Value& v) { return v.text() || v.sequence() || v.mapping() || v.is_undefined(); }

bool same_kind_and_equal(Runtime& runtime, const Value& a, const Value& b) {
  return type_name(a) == type_name(b) && equal(runtime, a, b);
}

using FunctionEntry = std::pair<std::string_view, Test>;
constexpr FunctionEntry kTests[] = {
    {"!=", is_not_equal},
    {"<", is_less},
    {"<=", is_less_equal},
    {"==", is_equal},
    {">", is_greater},
    {">=", is_greater_equal},
    {"boolean", [](Runtime&, const Value& v, const Arguments&) { return v.boolean() != nullptr; }},
    {"callable", [](Runtime&, const Value& v, const Arguments&) { return v.object() && v.object()->callable(); }},
    {"defined", [](Runtime&, const Value& v, const Arguments&) { return !v.is_undefined(); }},
    {"divisibleby", [](Runtime& r, const Value& v, const Arguments& a) { return is_divisible(r, v, bind(a, {"num"})[0]); }},
    {"eq", is_equal},
    {"equalto", is_equal},
    {"even", [](Runtime& r, const Value& v, const Arguments&) { return is_divisible(r, v, std::int64_t{2}); }},
    {"false", [](Runtime&, const Value& v, const Arguments&) { return v.boolean() && !*v.boolean(); }},
    {"filter", [](Runtime&, const Value& v, const Arguments&) { return v.text() && find_filter(*v.text()) != nullptr; }},
    {"float", [](Runtime&, const Value& v, const Arguments&) { return v.real() != nullptr; }},
    {"ge", is_greater_equal},
    {"greaterthan", is_greater},
    {"gt", is_greater},
    {"in", [](Runtime& r, const Value& v, const Arguments& a) { return contains(r, bind(a, {"seq"})[0], v); }},
    {"integer", [](Runtime&, const Value& v, const Arguments&) { return (v.integer() && !v.boolean()) || v.big_integer(); }},
    {"iterable", [](Runtime&, const Value& v, const Arguments&) { return is_countable(v); }},
    {"le", is_less_equal},
    {"lessthan", is_less},
    {"lower", [](Runtime& r, const Value& v, const Arguments&) { return is_lower(to_text(r, v)); }},
    {"lt", is_less},
    {"mapping", [](Runtime&, const Value& v, const Arguments&) { return v.mapping() != nullptr; }},
    {"ne", is_not_equal},
    {"none", [](Runtime&, const Value& v, const Arguments&) { return v.is_none(); }},
    {"number", [](Runtime&, const Value& v, const Arguments&) { return v.number().has_value(); }},
    {"odd", [](Runtime& r, const Value& v,
               const Arguments&) { return equal(r, operate(r, BinaryOperator::Modulo, v, std::int64_t{2}), std::int64_t{1}); }},
    {"sameas", [](Runtime& r, const Value& v, const Arguments& a) { return same_kind_and_equal(r, v, bind(a, {"other"})[0]); }},
    {"sequence", [](Runtime&, const Value& v, const Arguments&) { return is_countable(v); }},
    {"string", [](Runtime&, const Value& v, const Arguments&) { return v.is_text(); }},
    {"test", [](Runtime&, const Value& v, const Arguments&) { return v.text() && find_test(*v.text()) != nullptr; }},
    {"true", [](Runtime&, const Value& v, const Arguments&) { return v.boolean() && *v.boolean(); }},
    {"undefined", [](Runtime&, const Value& v, const Arguments&) { return v.is_undefined(); }},
    {"upper", [](Runtime& r, const Value& v, const Arguments&) { return is_upper(to_text(r, v)); }},
};

// --- functions

std::int64_t range_bound(const Value& value) {
  if (!value.integer()) fail("'{}' object cannot be interpreted as an integer", type_name(value));
  return std::clamp<std::int64_t>(*value.integer(), -(std::int64_t{1} << 60), std::int64_t{1} << 60);
}

/// More numbers than this are refused, as the sandbox of Hugging Face's renderer does.
constexpr std::int64_t kMaxRange = 100'000;

Value make_range(Runtime& runtime, const Arguments& arguments) {
  const List values = bind(arguments, {"start", "stop", "step"});
  const bool has_start = arguments.positional.size() > 1;
  const std::int64_t start = has_start ? range_bound(values[0]) : 0;
  const std::int64_t stop = range_bound(values[has_start ? 1 : 0]);
  const std::int64_t step = values[2].is_undefined() ? 1 : range_bound(values[2]);
  if (step == 0) fail("range() arg 3 must not be zero");
  const std::int64_t distance = step > 0 ? stop - start : start - stop;
  const std::int64_t stride = step > 0 ? step : -step;
  const std::int64_t size = distance <= 0 ? 0 : (distance - 1) / stride + 1;
  if (size > kMaxRange) fail("range too big, the longest is {}", kMaxRange);
  runtime.spend(static_cast<std::uint64_t>(size) * sizeof(Value));
  List items;
  items.reserve(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) items.push_back(start + i * step);
  return Value::list(std::move(items));
}

/// The entries that dict() and namespace() are given: of a mapping or of pairs, and named ones.
Entries given_entries(Runtime& runtime, const Arguments& arguments) {
  Entries entries;
  if (arguments.positional.size() > 1) fail("takes at most 1 positional argument");
  for (const Value& source : arguments.positional) {
    if (source.mapping()) {
      runtime.make_room(source.mapping()->entries.size(), 2 * sizeof(Value));
      entries = source.mapping()->entries;
      continue;
    }
    for (const Value& pair : iterate(runtime, source)) {
      const List parts = iterate(runtime, pair);
      if (parts.size() != 2) fail("dict() takes pairs, found {} values", parts.size());
      entries.emplace_back(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) entries.emplace_back(name, value);
  return entries;
}

Value make_dict(Runtime& runtime, const Arguments& arguments) { return Value::dict(runtime, given_entries(runtime, arguments)); }

Value make_namespace(Runtime& runtime, const Arguments& arguments) {
  auto* space = runtime.make<Namespace>();
  for (const auto& [name, value] : given_entries(runtime, arguments)) space->set(to_text(runtime, name), value);
  return static_cast<Object*>(space);
}

Value raise_exception(Runtime& runtime, const Arguments& arguments) {
  fail("{}", to_text(runtime, bind(arguments, {"message"})[0]));
}

Value strftime_now(Runtime& runtime, const Arguments& arguments) {
  const Value format = bind(arguments, {"format"})[0];
  if (!format.text()) fail("strftime_now() takes a str, not {}", type_name(format));
  std::tm now{};
  if (runtime.options().clock) {
    now = runtime.options().clock();
  } else {
    const std::time_t seconds = std::time(nullptr);
    localtime_r(&seconds, &now);
  }
  if (format.text()->empty()) return "";
  if (format.text()->size() > 1000) fail("strftime_now() format is too long");
  std::array<char, 16384> buffer;
  return std::string(buffer.data(), std::strftime(buffer.data(), buffer.size(), format.text()->c_str(), &now));
}

constexpr std::pair<std::string_view, GlobalFunction> kFunctions[] = {
    {"dict", make_dict},   {"namespace", make_namespace},  {"raise_exception", raise_exception},
    {"range", make_range}, {"strftime_now", strftime_now},
};

}  // namespace

Test find_test(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kTests), std::end(kTests), [&](const FunctionEntry& entry) { return entry.first == name; });
  return found == std::end(kTests) ? nullptr : found->second;
}

GlobalFunction find_function(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kFunctions), std::end(kFunctions), [&](const auto& entry) { return entry.first == name; });
  return found == std::end(kFunctions) ? nullptr : found->second;
}

}  // namespace calandra::jinja
