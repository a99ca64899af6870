// The filters of `x | name`. tojson is Hugging Face's: json.dumps with separators ", " and ": ", non-ASCII text as it is,
// nothing escaped for HTML.

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <memory>
#include <system_error>
#include <unordered_map>
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
  std::string text = to_text(runtime, value);
  runtime.spend(text.size() * 8);
  return text;
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
  if (key.text() && !case_sensitive) return lower(soft_text(runtime, key));
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
  if (!given(chars)) return std::string(strip(text, Side::Both));
  const std::string taken = to_text(runtime, chars);
  runtime.spend_search(text.size(), taken.size());
  return std::string(strip(text, Side::Both, taken));
}

Value replace_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"old", "new", "count"});
  Arguments texts{{to_text(runtime, values[0]), to_text(runtime, values[1])}, {}};
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
  runtime.spend(input.text()->size() * sizeof(std::string_view));
  const std::string text = *input.text() + '\n';
  const auto lines = split_lines(text, false);
  runtime.make_room(lines.size(), indent.size() + 1);
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
  return format_text(runtime, soft_text(runtime, input), arguments.positional);
}

Value wordcount_filter(Runtime& runtime, const Value& input, const Arguments&) {
  return static_cast<std::int64_t>(split(soft_text(runtime, input), -1, false).size());
}

Value center_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Value width = integer_or(bind(arguments, {"width"})[0], 80, "width");
  const Value text = soft_text(runtime, input);
  return find_method(text, "center")(runtime, text, {{width}, {}});
}

/// Of a text that is clearly too long, as many whole words as fit with `end` after them.
Value truncate_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"length", "killwords", "end", "leeway"});
  const std::int64_t length = integer_or(values[0], 255, "length");
  const std::string end = values[2].is_undefined() ? "..." : to_text(runtime, values[2]);
  const std::int64_t leeway = values[3].is_none() ? 5 : integer_or(values[3], 5, "leeway");
  const std::int64_t kept = length - count_characters(end);
  if (kept < 0) fail("truncate: expected a length of at least {}, found {}", length - kept, length);
  if (leeway < 0) fail("truncate: expected a leeway of at least 0, found {}", leeway);
  const std::string text = soft_text(runtime, input);
  const std::int64_t size = count_characters(text);
  if (size - leeway <= length) return text;
  std::string_view begin(text.data(), static_cast<std::size_t>(character_at(text, kept).data() - text.data()));
  if (!values[1].truth()) begin = begin.substr(0, begin.rfind(' '));
  return std::string(begin) + end;
}

/// As urllib's quote: all but letters, digits, "_.-~" and those of `safe` as %XX.
void append_url_quoted(std::string& out, std::string_view text, std::string_view safe) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_letter = ((byte | 32) >= 'a' && (byte | 32) <= 'z') || (byte >= '0' && byte <= '9');
    if (is_letter || std::string_view("_.-~").find(c) != std::string_view::npos || safe.find(c) != safe.npos) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", byte);
    }
  }
}

/// A text is quoted as a path; a dict, or pairs, become key=value joined by &, with + for blanks.
Value urlencode_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  bind(arguments, {});
  std::string out;
  if (!input.mapping() && !input.sequence()) {
    append_url_quoted(out, soft_text(runtime, input), "/");
    return out;
  }
  std::size_t charged = 0;
  const auto append = [&](const Value& part) {
    std::string quoted;
    append_url_quoted(quoted, soft_text(runtime, part), " ");
    std::replace(quoted.begin(), quoted.end(), ' ', '+');
    out += quoted;
    runtime.grow(charged, out.size());
  };
  const Value pairs = input.mapping() ? find_method(input, "items")(runtime, input, {}) : input;
  for (const Value& pair : iterate(runtime, pairs)) {
    const List parts = iterate(runtime, pair);
    if (parts.size() != 2) fail("urlencode: expected pairs, found {} values", parts.size());
    if (!out.empty()) out += '&';
    append(parts[0]);
    out += '=';
    append(parts[1]);
  }
  return out;
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
    const List separators = iterate(runtime, values[2]);
    if (separators.size() != 2) fail("tojson: separators must be two texts");
    style.between_items = to_text(runtime, separators[0]);
    style.after_key = to_text(runtime, separators[1]);
  }
  return to_json(runtime, input, style);
}

/// The digits of a number as Python reads them: single underscores between digits are left out.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](std::size_t k) { return k < text.size() && std::isalnum(static_cast<unsigned char>(text[k])); };
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) {
      return std::nullopt;
    }
  }
  return out;
}

/// int(text, base); nothing where Python raises ValueError.
std::optional<Value> parse_int(std::string_view text, int base) {
  text = strip(text, Side::Both);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const int prefix = text.size() < 2 || text[0] != '0' ? 0
                     : (text[1] | 32) == 'x'           ? 16
                     : (text[1] | 32) == 'o'           ? 8
                     : (text[1] | 32) == 'b'           ? 2
                                                       : 0;
  if (prefix != 0 && (base == 0 || base == prefix)) {
    base = prefix;
    text.remove_prefix(2);
    if (text.starts_with('_')) text.remove_prefix(1);
  } else if (base == 0) {
    base = 10;
    if (text.starts_with('0') && text.find_first_not_of("0_") != text.npos) return std::nullopt;
  }
  const auto digits = without_underscores(text);
  if (!digits || digits->empty() || !std::isalnum(static_cast<unsigned char>(digits->front()))) return std::nullopt;
  const std::string signed_digits = (negative ? "-" : "") + *digits;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(signed_digits.data(), signed_digits.data() + signed_digits.size(), value, base);
  if (end != signed_digits.data() + signed_digits.size()) return std::nullopt;
  if (error == std::errc{}) return value;
  if (error == std::errc::result_out_of_range && base == 10) {
    return BigInteger{
        std::make_shared<const std::string>((negative ? "-" : "") + digits->substr(digits->find_first_not_of('0')))};
  }
  return std::nullopt;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip(text, Side::Both);
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto digits = without_underscores(text);
  if (!digits) return std::nullopt;
  double parsed = 0;
  const auto result = std::from_chars(digits->data(), digits->data() + digits->size(), parsed);
  if (result.ec != std::errc{} || result.ptr != digits->data() + digits->size()) return std::nullopt;
  return parsed;
}

Value int_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"default", "base"});
  Value fallback = values[0].is_undefined() ? Value(std::int64_t{0}) : values[0];
  const std::int64_t base = integer_or(values[1], 10, "base");
  if (base != 0 && (base < 2 || base > 36)) fail("int: base must be 2 to 36");
  std::optional<double> real = input.number();
  if (input.big_integer()) return input;
  if (input.integer()) return *input.integer();
  if (input.text()) {
    runtime.spend(input.text()->size() * 4);
    if (auto integer = parse_int(*input.text(), static_cast<int>(base))) return *integer;
    real = parse_float(*input.text());
  }
  if (!real || !std::isfinite(*real) || std::fabs(*real) > 9.2e18) return fallback;
  return static_cast<std::int64_t>(*real);
}

Value float_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const Value fallback = bind(arguments, {"default"})[0];
  if (input.number()) return *input.number();
  if (input.text()) {
    runtime.spend(input.text()->size() * 4);
    if (const auto parsed = parse_float(*input.text())) return *parsed;
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
  if (input.big_integer()) return BigInteger{std::make_shared<const std::string>(strip(*input.big_integer(), Side::Left, "-"))};
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

Value round_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"precision", "method"});
  const std::int64_t precision = integer_or(values[0], 0, "precision");
  const std::string method = values[1].is_undefined() ? "common" : to_text(runtime, values[1]);
  if (input.big_integer()) return input;
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
  for (const Value& value : iterate(runtime, input)) {
    total = operate(runtime, BinaryOperator::Add, total, given(values[0]) ? attribute_path(runtime, value, values[0]) : value);
  }
  return total;
}

// --- lists

Value first_filter(Runtime& runtime, const Value& input, const Arguments&) {
  if (input.text() && !input.text()->empty()) return std::string(character_at(*input.text(), 0));
  const List items = iterate(runtime, input);
  return items.empty() ? undefined("no first item, the sequence is empty") : items.front();
}

Value last_filter(Runtime& runtime, const Value& input, const Arguments&) {
  if (input.text() && !input.text()->empty()) return item(runtime, input, std::int64_t{-1});
  const List items = iterate(runtime, input);
  return items.empty() ? undefined("no last item, the sequence is empty") : items.back();
}

Value join_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"d", "attribute"});
  const std::string separator = values[0].is_undefined() ? "" : to_text(runtime, values[0]);
  std::string out;
  std::size_t charged = 0;
  bool first = true;
  for (const Value& value : iterate(runtime, input)) {
    if (!first) out += separator;
    first = false;
    out += to_text(runtime, given(values[1]) ? attribute_path(runtime, value, values[1]) : value);
    runtime.grow(charged, out.size());
  }
  return out;
}

Value reverse_filter(Runtime& runtime, const Value& input, const Arguments&) {
  if (input.text()) return slice(runtime, input, None{}, None{}, std::int64_t{-1});
  List items = iterate(runtime, input);
  std::reverse(items.begin(), items.end());
  return Value::list(std::move(items));
}

Value items_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (input.is_undefined()) return Value::list({});
  if (!input.mapping()) fail("can only get item pairs from a mapping, not {}", type_name(input));
  return find_method(input, "items")(runtime, input, arguments);
}

template <class Less>
void sort_items(Runtime& runtime, List& items, bool reverse, Less&& key_of) {
  runtime.make_room(items.size(), 2 * sizeof(Value));
  std::vector<std::pair<Value, Value>> keyed;
  keyed.reserve(items.size());
  for (Value& value : items) keyed.emplace_back(key_of(value), value);

  const auto less = [&](const auto& a, const auto& b) { return compare(runtime, a.first, b.first, "<") < 0; };
  if (reverse) {
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) { return less(b, a); });
  } else {
    std::stable_sort(keyed.begin(), keyed.end(), less);
  }
  std::transform(keyed.begin(), keyed.end(), items.begin(), [](auto& entry) { return std::move(entry.second); });
}

Value sort_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"reverse", "case_sensitive", "attribute"});
  List items = iterate(runtime, input);
  const bool case_sensitive = truth_or(values[1], false);
  sort_items(runtime, items, values[0].truth(),
             [&](const Value& value) { return sort_key(runtime, value, values[2], case_sensitive); });
  return Value::list(std::move(items));
}

Value dictsort_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = values[1].is_undefined() ? "key" : to_text(runtime, values[1]);
  if (by != "key" && by != "value") fail("dictsort: by must be 'key' or 'value'");
  const Value pairs = items_filter(runtime, input, {});
  List items = iterate(runtime, pairs);
  const bool case_sensitive = truth_or(values[0], false);
  sort_items(runtime, items, values[2].truth(),
             [&](const Value& pair) { return sort_key(runtime, pair, std::int64_t{by == "value" ? 1 : 0}, case_sensitive); });
  return Value::list(std::move(items));
}

Value unique_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"case_sensitive", "attribute"});
  List kept, keys;
  std::unordered_multimap<std::size_t, std::size_t> places;  // in keys, by hash
  for (const Value& value : iterate(runtime, input)) {
    const Value key = sort_key(runtime, value, values[1], truth_or(values[0], false));
    const auto hash = hash_of(runtime, key);
    if (!hash) fail("unhashable type: '{}'", type_name(key));
    const auto [begin, end] = places.equal_range(*hash);
    if (std::any_of(begin, end, [&](const auto& place) { return equal(runtime, keys[place.second], key); })) continue;
    places.emplace(*hash, keys.size());
    keys.push_back(key);
    kept.push_back(value);
  }
  return Value::list(std::move(kept));
}

Value extreme(Runtime& runtime, const Value& input, const Arguments& arguments, int sign) {
  const List values = bind(arguments, {"case_sensitive", "attribute"});
  const List items = iterate(runtime, input);
  if (items.empty()) return undefined("no aggregated item, the sequence is empty");
  const auto key_of = [&](const Value& value) { return sort_key(runtime, value, values[1], truth_or(values[0], false)); };
  const Value* best = items.data();
  for (const Value& value : items) {
    if (compare(runtime, key_of(value), key_of(*best), sign < 0 ? "<" : ">") * sign > 0) best = &value;
  }
  return *best;
}

Value batch_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"linecount", "fill_with"});
  const std::int64_t size = integer_or(values[0], 0, "linecount");
  if (size < 1 || size > 100'000) fail("batch: linecount must be 1 to 100000");
  List batches, batch;
  for (const Value& value : iterate(runtime, input)) {
    if (static_cast<std::int64_t>(batch.size()) == size) batches.push_back(Value::list(std::exchange(batch, {})));
    batch.push_back(value);
  }
  if (!batch.empty()) {
    if (given(values[1])) runtime.make_room(static_cast<std::uint64_t>(size), sizeof(Value));
    if (given(values[1])) batch.resize(static_cast<std::size_t>(size), values[1]);
    batches.push_back(Value::list(std::move(batch)));
  }
  return Value::list(std::move(batches));
}

Value slice_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"slices", "fill_with"});
  const std::int64_t num_slices = integer_or(values[0], 0, "slices");
  if (num_slices < 1 || num_slices > 100'000) fail("slice: expected 1 to 100000 slices, found {}", num_slices);
  runtime.make_room(static_cast<std::uint64_t>(num_slices), sizeof(Value) + sizeof(Sequence));
  const List items = iterate(runtime, input);
  const auto size = static_cast<std::int64_t>(items.size());
  const std::int64_t num_longer = size % num_slices;  // the first slices are one longer
  List slices;
  auto begin = items.begin();
  for (std::int64_t i = 0; i < num_slices; ++i) {
    const auto end = begin + size / num_slices + (i < num_longer ? 1 : 0);
    List part(begin, end);
    if (i >= num_longer && given(values[1])) part.push_back(values[1]);
    slices.push_back(Value::list(std::move(part)));
    begin = end;
  }
  return Value::list(std::move(slices));
}

/// Pairs of what the items have in common and the items, in its order.
Value groupby_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const List values = bind(arguments, {"attribute", "default", "case_sensitive"});
  if (values[0].is_undefined()) fail("groupby requires an attribute");
  const bool case_sensitive = truth_or(values[2], false);
  const auto value_of = [&](const Value& member) {
    Value value = attribute_path(runtime, member, values[0]);
    return value.is_undefined() && given(values[1]) ? values[1] : value;
  };
  const auto key_of = [&](const Value& member) { return sort_key(runtime, value_of(member), None{}, case_sensitive); };
  List items = iterate(runtime, input);
  sort_items(runtime, items, false, key_of);
  List groups;
  for (std::size_t begin = 0, end = 1; begin < items.size(); begin = end++) {
    const Value key = key_of(items[begin]);
    while (end < items.size() && equal(runtime, key_of(items[end]), key)) ++end;
    List members(items.begin() + static_cast<std::ptrdiff_t>(begin), items.begin() + static_cast<std::ptrdiff_t>(end));
    groups.push_back(Value::tuple({value_of(items[begin]), Value::list(std::move(members))}));
  }
  return Value::list(std::move(groups));
}

Value map_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  List results;
  if (arguments.positional.empty()) {
    const List values = bind(arguments, {"attribute", "default"});
    if (values[0].is_undefined()) fail("map requires a filter argument");
    for (const Value& value : iterate(runtime, input)) {
      results.push_back(attribute_path(runtime, value, values[0]));
      if (results.back().is_undefined() && given(values[1])) results.back() = values[1];
    }
    return Value::list(std::move(results));
  }
  const std::string name = to_text(runtime, arguments.positional[0]);
  const Filter filter = find_filter(name);
  if (!filter) fail("unknown filter '{}'", name);
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  for (const Value& value : iterate(runtime, input)) {
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
    const std::string name = to_text(runtime, arguments.positional[skipped]);
    test = find_test(name);
    if (!test) fail("unknown test '{}'", name);
    rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(skipped) + 1, arguments.positional.end());
    rest.named = arguments.named;
  }
  List kept;
  for (const Value& value : iterate(runtime, input)) {
    runtime.spend_step();
    const Value subject = by_attribute ? attribute_path(runtime, value, arguments.positional[0]) : value;
    if ((test ? test(runtime, subject, rest) : subject.truth()) == wanted) kept.push_back(value);
  }
  return Value::list(std::move(kept));
}

Value length_filter(Runtime& runtime, const Value& input, const Arguments&) { return length(runtime, input); }

Value attr_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return attribute(runtime, input, to_text(runtime, bind(arguments, {"name"})[0]));
}

using FilterEntry = std::pair<std::string_view, Filter>;
constexpr FilterEntry kFilters[] = {
    {"abs", abs_filter},
    {"attr", attr_filter},
    {"batch", batch_filter},
    {"capitalize", map_text<capitalize>},
    {"center", center_filter},
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
    {"groupby", groupby_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"items", items_filter},
    {"join", join_filter},
    {"last", last_filter},
    {"length", length_filter},
    {"list", [](Runtime& r, const Value& v, const Arguments&) { return Value::list(iterate(r, v)); }},
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
    {"slice", slice_filter},
    {"sort", sort_filter},
    {"string", [](Runtime& r, const Value& v, const Arguments&) -> Value { return soft_text(r, v); }},
    {"sum", sum_filter},
    {"title", map_text<title_words>},
    {"tojson", tojson_filter},
    {"trim", trim_filter},
    {"truncate", truncate_filter},
    {"unique", unique_filter},
    {"upper", map_text<upper>},
    {"urlencode", urlencode_filter},
    {"wordcount", wordcount_filter},
};

}  // namespace

Filter find_filter(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](const FilterEntry& entry) { return entry.first == name; });
  return found == std::end(kFilters) ? nullptr : found->second;
}

}  // namespace calandra::jinja
