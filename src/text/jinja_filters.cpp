// The filters of `x | name`. tojson is Hugging Face's: json.dumps with separators ", " and ": ", non-ASCII text as it is,
// nothing escaped for HTML.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "text/jinja_runtime.h"
#include "text/jinja_text.h"

namespace calandra::jinja {
namespace {

bool given(const Value& value) { return !value.is_undefined() && !value.is_none(); }
bool truth_or(const Value& value, bool fallback) { return value.is_undefined() ? fallback : value.truth(); }

std::int64_t integer_or(const Value& value, std::int64_t fallback, std::string_view what) {
  if (value.is_undefined()) return fallback;
  if (!value.integer()) fail("{} must be int, not {}", what, type_name(value));
  return *value.integer();
}

/// Text without an error for what is none, as most filters on texts take it.
std::string soft_text(Runtime& runtime, const Value& value) {
  std::string text = to_text(value);
  runtime.spend(text.size() * 4);
  return text;
}

List items_of(Runtime& runtime, const Value& value) {
  List items = iterate(value);
  runtime.spend(items.size() * sizeof(Value));
  return items;
}

/// The value at a path such as "function.name" or an index.
Value attribute_path(Runtime& runtime, Value value, const Value& path) {
  if (!path.text()) return subscript(runtime, value, path);
  for (const auto part : split(*path.text(), ".", -1, false)) {
    std::int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = error == std::errc{} && end == part.data() + part.size();
    value = subscript(runtime, value, is_index ? Value(index) : Value(std::string(part)));
  }
  return value;
}

/// What a value is sorted or compared by.
Value sort_key(Runtime& runtime, const Value& value, const Value& path, bool case_sensitive) {
  Value key = given(path) ? attribute_path(runtime, value, path) : value;
  if (key.text() && !case_sensitive) return lower(*key.text());
  return key;
}

// --- texts

template <std::string (*Map)(std::string_view)>
Value map_text(Runtime& runtime, const Value& input, const Arguments& arguments) {
  bind(arguments, {});
  return Map(soft_text(runtime, input));
}

std::string title_words(std::string_view text) {
  std::string out;
  bool begins = true;
  for (const auto character : characters(text)) {
    out += begins ? upper(character) : lower(character);
    begins =
        is_space(character) || character == "-" || character == "(" || character == "{" || character == "[" || character == "<";
  }
  return out;
}

Value trim_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Value chars = bind(arguments, {"chars"})[0];
  const std::string text = soft_text(runtime, input);
  return std::string(given(chars) ? strip(text, Side::Both, to_text(chars)) : strip(text, Side::Both));
}

Value replace_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"old", "new", "count"});
  Arguments texts{{to_text(values[0]), to_text(values[1])}, {}};
  if (given(values[2])) texts.positional.push_back(values[2]);
  const Value text = soft_text(runtime, input);
  return find_method(text, "replace")(runtime, text, texts);
}

Value indent_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"width", "first", "blank"});
  if (!input.text()) fail("indent takes a str, not {}", type_name(input));
  std::string indent;
  if (values[0].text()) {
    indent = *values[0].text();
  } else {
    indent.assign(static_cast<std::size_t>(std::clamp<std::int64_t>(integer_or(values[0], 4, "width"), 0, 10'000)), ' ');
  }
  const std::string text = *input.text() + '\n';
  const auto lines = split_lines(text, false);
  runtime.spend(text.size() + lines.size() * indent.size());
  std::string out = values[1].truth() ? indent : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (values[2].truth() || !lines[i].empty())) out += indent;
    out += lines[i];
  }
  return out;
}

Value format_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!arguments.named.empty()) fail("format takes no named arguments");
  std::string text = format_text(soft_text(runtime, input), arguments.positional);
  runtime.spend(text.size());
  return text;
}

Value wordcount_filter(Runtime& runtime, const Value& input, const Arguments&) {
  return static_cast<std::int64_t>(split(soft_text(runtime, input), -1, false).size());
}

// --- conversions

Value tojson_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  const Value& indent = values[1];
  JsonStyle style;
  style.ascii_only = values[0].truth();
  style.sort_keys = values[3].truth();
  if (indent.text()) style.indent = *indent.text();
  if (indent.integer())
    style.indent = std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(*indent.integer(), 0, 1000)), ' ');
  if (style.indent) style.between_items = std::string(",");
  if (given(values[2])) {
    const List separators = iterate(values[2]);
    if (separators.size() != 2) fail("tojson: separators must be two texts");
    style.between_items = to_text(separators[0]);
    style.after_key = to_text(separators[1]);
  }
  std::string text = to_json(input, style);
  runtime.spend(text.size());
  return text;
}

Value int_filter(Runtime&, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"default", "base"});
  Value fallback = values[0].is_undefined() ? Value(std::int64_t{0}) : values[0];
  const std::int64_t base = integer_or(values[1], 10, "base");
  if (base != 0 && (base < 2 || base > 36)) fail("int: base must be 2 to 36");
  std::optional<double> real = input.number();
  if (input.integer()) return *input.integer();
  if (input.text()) {
    std::string digits(strip(*input.text(), Side::Both));
    if (digits.starts_with('+')) digits.erase(0, 1);
    if (base == 16 && (digits.starts_with("0x") || digits.starts_with("0X"))) digits.erase(0, 2);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, static_cast<int>(base));
    if (error == std::errc{} && end == digits.data() + digits.size()) return value;
    double parsed = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), parsed);
    if (result.ec == std::errc{} && result.ptr == digits.data() + digits.size()) real = parsed;
  }
  if (!real || !std::isfinite(*real) || std::fabs(*real) > 9.2e18) return fallback;
  return static_cast<std::int64_t>(*real);
}

Value float_filter(Runtime&, const Value& input, const Arguments& arguments) {
  const Value fallback = bind(arguments, {"default"})[0];
  if (input.number()) return *input.number();
  if (input.text()) {
    const std::string digits(strip(*input.text(), Side::Both));
    double parsed = 0;
    const char* begin = digits.data() + (digits.starts_with('+') ? 1 : 0);
    const auto result = std::from_chars(begin, digits.data() + digits.size(), parsed);
    if (result.ec == std::errc{} && result.ptr == digits.data() + digits.size()) return parsed;
  }
  return fallback.is_undefined() ? Value(0.0) : fallback;
}

Value default_filter(Runtime&, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"default_value", "boolean"});
  const bool missing = input.is_undefined() || (values[1].truth() && !input.truth());
  if (!missing) return input;
  return arguments.positional.empty() && arguments.named.empty() ? Value("") : values[0];
}

// --- numbers

Value abs_filter(Runtime& runtime, const Value& input, const Arguments&) {
  if (!input.number()) fail("bad operand type for abs(): '{}'", type_name(input));
  if (input.real()) return std::fabs(*input.real());
  return *input.integer() < 0 ? operate(runtime, BinaryOperator::Subtract, std::int64_t{0}, input) : Value(*input.integer());
}

/// Python's rounding: to even, and correct for the decimal digits.
double round_common(double value, std::int64_t precision) {
  if (!std::isfinite(value)) return value;
  if (precision > 300) return value;
  if (precision >= 0) return std::strtod(fmt::format("{:.{}f}", value, precision).c_str(), nullptr);
  const double unit = std::pow(10.0, static_cast<double>(-std::max<std::int64_t>(precision, -300)));
  return std::nearbyint(value / unit) * unit;
}

Value round_filter(Runtime&, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"precision", "method"});
  const std::int64_t precision = integer_or(values[0], 0, "precision");
  const std::string method = values[1].is_undefined() ? "common" : to_text(values[1]);
  if (!input.number()) fail("round takes a number, not {}", type_name(input));
  if (method != "common" && method != "ceil" && method != "floor") fail("round: method must be common, ceil or floor");
  if (method == "common") {
    const double rounded = round_common(*input.number(), precision);
    return input.integer() ? Value(precision >= 0 ? *input.integer() : static_cast<std::int64_t>(rounded)) : Value(rounded);
  }
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = *input.number() * unit;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit;
}

Value sum_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"attribute", "start"});
  Value total = values[1].is_undefined() ? Value(std::int64_t{0}) : values[1];
  for (const Value& value : items_of(runtime, input)) {
    total = operate(runtime, BinaryOperator::Add, total, given(values[0]) ? attribute_path(runtime, value, values[0]) : value);
  }
  return total;
}

// --- lists

Value first_filter(Runtime& runtime, const Value& input, const Arguments&) {
  const List items = items_of(runtime, input);
  return items.empty() ? undefined("no first item, the sequence is empty") : items.front();
}

Value last_filter(Runtime& runtime, const Value& input, const Arguments&) {
  const List items = items_of(runtime, input);
  return items.empty() ? undefined("no last item, the sequence is empty") : items.back();
}

Value join_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"d", "attribute"});
  const std::string separator = values[0].is_undefined() ? "" : to_text(values[0]);
  std::string out;
  bool first = true;
  for (const Value& value : items_of(runtime, input)) {
    if (!first) out += separator;
    first = false;
    out += to_text(given(values[1]) ? attribute_path(runtime, value, values[1]) : value);
    if (out.size() > runtime.options().max_output_bytes) fail("the render takes too much work");
  }
  runtime.spend(out.size());
  return out;
}

Value reverse_filter(Runtime& runtime, const Value& input, const Arguments&) {
  List items = items_of(runtime, input);
  std::reverse(items.begin(), items.end());
  if (!input.text()) return Value::list(std::move(items));
  std::string out;
  for (const Value& character : items) out += *character.text();
  return out;
}

Value items_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (input.is_undefined()) return Value::list({});
  if (!input.mapping()) fail("can only get item pairs from a mapping, not {}", type_name(input));
  return find_method(input, "items")(runtime, input, arguments);
}

template <class Less>
void sort_items(Runtime& runtime, List& items, bool reverse, Less&& key_of) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& value : items) keyed.emplace_back(key_of(value), value);
  runtime.spend(keyed.size() * 1000);
  const auto less = [](const auto& a, const auto& b) { return compare(a.first, b.first, "<") < 0; };
  if (reverse) {
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) { return less(b, a); });
  } else {
    std::stable_sort(keyed.begin(), keyed.end(), less);
  }
  std::transform(keyed.begin(), keyed.end(), items.begin(), [](auto& entry) { return std::move(entry.second); });
}

Value sort_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"reverse", "case_sensitive", "attribute"});
  List items = items_of(runtime, input);
  const bool case_sensitive = truth_or(values[1], false);
  sort_items(runtime, items, values[0].truth(),
             [&](const Value& value) { return sort_key(runtime, value, values[2], case_sensitive); });
  return Value::list(std::move(items));
}

Value dictsort_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = values[1].is_undefined() ? "key" : to_text(values[1]);
  if (by != "key" && by != "value") fail("dictsort: by must be 'key' or 'value'");
  const Value pairs = items_filter(runtime, input, {});
  List items = items_of(runtime, pairs);
  const bool case_sensitive = truth_or(values[0], false);
  sort_items(runtime, items, values[2].truth(),
             [&](const Value& pair) { return sort_key(runtime, pair, std::int64_t{by == "value" ? 1 : 0}, case_sensitive); });
  return Value::list(std::move(items));
}

Value unique_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"case_sensitive", "attribute"});
  List kept, keys;
  for (const Value& value : items_of(runtime, input)) {
    const Value key = sort_key(runtime, value, values[1], truth_or(values[0], false));
    runtime.spend(keys.size() * 8);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& known) { return equal(known, key); })) continue;
    keys.push_back(key);
    kept.push_back(value);
  }
  return Value::list(std::move(kept));
}

Value extreme(Runtime& runtime, const Value& input, const Arguments& arguments, int sign) {
  const List values = bind(arguments, {"case_sensitive", "attribute"});
  const List items = items_of(runtime, input);
  if (items.empty()) return undefined("no aggregated item, the sequence is empty");
  const auto key_of = [&](const Value& value) { return sort_key(runtime, value, values[1], truth_or(values[0], false)); };
  const Value* best = items.data();
  for (const Value& value : items) {
    if (compare(key_of(value), key_of(*best), sign < 0 ? "<" : ">") * sign > 0) best = &value;
  }
  return *best;
}

Value batch_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"linecount", "fill_with"});
  const std::int64_t size = integer_or(values[0], 0, "linecount");
  if (size < 1 || size > 100'000) fail("batch: linecount must be 1 to 100000");
  List batches, batch;
  for (const Value& value : items_of(runtime, input)) {
    if (static_cast<std::int64_t>(batch.size()) == size) batches.push_back(Value::list(std::exchange(batch, {})));
    batch.push_back(value);
  }
  if (!batch.empty()) {
    if (given(values[1])) batch.resize(static_cast<std::size_t>(size), values[1]);
    batches.push_back(Value::list(std::move(batch)));
  }
  return Value::list(std::move(batches));
}

Value map_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  List results;
  if (arguments.positional.empty()) {
    const List values = bind(arguments, {"attribute", "default"});
    if (values[0].is_undefined()) fail("map requires a filter argument");
    for (const Value& value : items_of(runtime, input)) {
      results.push_back(attribute_path(runtime, value, values[0]));
      if (results.back().is_undefined() && given(values[1])) results.back() = values[1];
    }
    return Value::list(std::move(results));
  }
  const std::string name = to_text(arguments.positional[0]);
  const Filter filter = find_filter(name);
  if (!filter) fail("unknown filter '{}'", name);
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  for (const Value& value : items_of(runtime, input)) {
    runtime.spend_step();
    results.push_back(filter(runtime, value, rest));
  }
  return Value::list(std::move(results));
}

/// select, reject, selectattr and rejectattr: the items that pass a test, or are true where none is named.
Value select_items(Runtime& runtime, const Value& input, const Arguments& arguments, bool by_attribute, bool wanted) {
  const std::size_t skipped = by_attribute ? 1 : 0;
  if (arguments.positional.size() < skipped) fail("missing parameter for attribute name");
  Test test = nullptr;
  Arguments rest;
  if (arguments.positional.size() > skipped) {
    const std::string name = to_text(arguments.positional[skipped]);
    test = find_test(name);
    if (!test) fail("unknown test '{}'", name);
    rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(skipped) + 1, arguments.positional.end());
    rest.named = arguments.named;
  }
  List kept;
  for (const Value& value : items_of(runtime, input)) {
    runtime.spend_step();
    const Value subject = by_attribute ? attribute_path(runtime, value, arguments.positional[0]) : value;
    if ((test ? test(runtime, subject, rest) : subject.truth()) == wanted) kept.push_back(value);
  }
  return Value::list(std::move(kept));
}

Value length_filter(Runtime& runtime, const Value& input, const Arguments&) {
  if (input.text()) runtime.spend(input.text()->size());
  return length(input);
}

Value attr_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return attribute(runtime, input, to_text(bind(arguments, {"name"})[0]));
}

using FilterEntry = std::pair<std::string_view, Filter>;
constexpr FilterEntry kFilters[] = {
    {"abs", abs_filter},
    {"attr", attr_filter},
    {"batch", batch_filter},
    {"capitalize", map_text<capitalize>},
    {"count", length_filter},
    {"d", default_filter},
    {"default", default_filter},
    {"dictsort", dictsort_filter},
    {"e", map_text<escape_html>},
    {"escape", map_text<escape_html>},
    {"first", first_filter},
    {"float", float_filter},
    {"forceescape", map_text<escape_html>},
    {"format", format_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"items", items_filter},
    {"join", join_filter},
    {"last", last_filter},
    {"length", length_filter},
    {"list", [](Runtime& r, const Value& v, const Arguments&) { return Value::list(items_of(r, v)); }},
    {"lower", map_text<lower>},
    {"map", map_filter},
    {"max", [](Runtime& r, const Value& v, const Arguments& a) { return extreme(r, v, a, 1); }},
    {"min", [](Runtime& r, const Value& v, const Arguments& a) { return extreme(r, v, a, -1); }},
    {"reject", [](Runtime& r, const Value& v, const Arguments& a) { return select_items(r, v, a, false, false); }},
    {"rejectattr", [](Runtime& r, const Value& v, const Arguments& a) { return select_items(r, v, a, true, false); }},
    {"replace", replace_filter},
    {"reverse", reverse_filter},
    {"round", round_filter},
    {"safe", [](Runtime& r, const Value& v, const Arguments&) -> Value { return soft_text(r, v); }},
    {"select", [](Runtime& r, const Value& v, const Arguments& a) { return select_items(r, v, a, false, true); }},
    {"selectattr", [](Runtime& r, const Value& v, const Arguments& a) { return select_items(r, v, a, true, true); }},
    {"sort", sort_filter},
    {"string", [](Runtime& r, const Value& v, const Arguments&) -> Value { return soft_text(r, v); }},
    {"sum", sum_filter},
    {"title", map_text<title_words>},
    {"tojson", tojson_filter},
    {"trim", trim_filter},
    {"unique", unique_filter},
    {"upper", map_text<upper>},
    {"wordcount", wordcount_filter},
};

}  // namespace

Filter find_filter(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](const FilterEntry& entry) { return entry.first == name; });
  return found == std::end(kFilters) ? nullptr : found->second;
}

}  // namespace calandra::jinja
