// The methods of Python's str, list, tuple and dict that templates use. Those that change a list or dict are missing on
// purpose: templates run on immutable data.

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/jinja_runtime.h"
#include "text/jinja_text.h"

namespace calandra::jinja {
namespace {

using MethodEntry = std::pair<std::string_view, Method>;

const std::string& expect_text(const Value& value, std::string_view what) {
  if (!value.text()) fail("{} must be str, not {}", what, type_name(value));
  return *value.text();
}

std::int64_t expect_integer(const Value& value, std::string_view what, std::int64_t fallback) {
  if (value.is_undefined()) return fallback;
  if (!value.integer()) fail("{} must be int, not {}", what, type_name(value));
  return *value.integer();
}

Value text_list(const std::vector<std::string_view>& parts) {
  List items;
  items.reserve(parts.size());
  for (const auto part : parts) items.emplace_back(std::string(part));
  return Value::list(std::move(items));
}

Value strip_method(Runtime& runtime, const Value& self, const Arguments& arguments, Side side) {
  const Value chars = bind(arguments, {"chars"})[0];
  runtime.spend(self.text()->size());
  if (chars.is_undefined() || chars.is_none()) return std::string(strip(*self.text(), side));
  return std::string(strip(*self.text(), side, expect_text(chars, "strip arg")));
}

Value split_method(Runtime& runtime, const Value& self, const Arguments& arguments, bool from_right) {
  const List values = bind(arguments, {"sep", "maxsplit"});
  const std::int64_t limit = expect_integer(values[1], "maxsplit", -1);
  std::vector<std::string_view> parts;
  if (values[0].is_undefined() || values[0].is_none()) {
    parts = split(*self.text(), limit, from_right);
  } else {
    const std::string& separator = expect_text(values[0], "separator");
    if (separator.empty()) fail("empty separator");
    parts = split(*self.text(), separator, limit, from_right);
  }
  runtime.spend(self.text()->size() + parts.size() * sizeof(Value));
  return text_list(parts);
}

Value partition_method(const Value& self, const Arguments& arguments, bool from_right) {
  const Value separator_value = bind(arguments, {"sep"})[0];
  const std::string& separator = expect_text(separator_value, "separator");
  if (separator.empty()) fail("empty separator");
  const std::string& text = *self.text();
  const std::size_t at = from_right ? text.rfind(separator) : text.find(separator);
  if (at == std::string::npos) return from_right ? Value::tuple({"", "", text}) : Value::tuple({text, "", ""});
  return Value::tuple({text.substr(0, at), separator, text.substr(at + separator.size())});
}

/// startswith and endswith: one text, or a tuple of some.
Value affix_method(const Value& self, const Arguments& arguments, bool at_end) {
  const Value wanted = bind(arguments, {"prefix"})[0];
  const List candidates = wanted.sequence() && wanted.sequence()->is_tuple ? wanted.sequence()->items : List{wanted};
  const std::string_view text = *self.text();
  return std::any_of(candidates.begin(), candidates.end(), [&](const Value& candidate) {
    const std::string_view part = expect_text(candidate, at_end ? "endswith first arg" : "startswith first arg");
    return at_end ? text.ends_with(part) : text.starts_with(part);
  });
}

Value find_text(const Value& self, const Arguments& arguments, bool from_right, bool must_be_there) {
  const Value part = bind(arguments, {"sub"})[0];
  const std::int64_t place = find_part(*self.text(), expect_text(part, "argument"), from_right);
  if (place < 0 && must_be_there) fail("substring not found");
  return place;
}

Value join_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  std::string out;
  const List items = iterate(bind(arguments, {"iterable"})[0]);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += *self.text();
    out += expect_text(items[i], fmt::format("sequence item {}", i));
  }
  runtime.spend(out.size() + items.size() * sizeof(Value));
  return out;
}

Value replace_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const List values = bind(arguments, {"old", "new", "count"});
  const std::string& new_part = expect_text(values[1], "replace() argument 2");
  const std::string& old_part = expect_text(values[0], "replace() argument 1");
  if (new_part.size() > old_part.size()) {  // before the text is made: it may be huge
    const auto places = static_cast<std::uint64_t>(count_parts(*self.text(), old_part));
    if (places > runtime.options().max_work / new_part.size()) fail("the render takes too much work");
    runtime.spend(places * new_part.size());
  }
  runtime.spend(self.text()->size());
  return replace(*self.text(), old_part, new_part, expect_integer(values[2], "count", -1));
}

Value pad_method(Runtime& runtime, const Value& self, const Arguments& arguments, bool left, bool right) {
  const List values = bind(arguments, {"width", "fillchar"});
  const std::string fill = values[1].is_undefined() ? " " : expect_text(values[1], "fill character");
  const std::int64_t missing = expect_integer(values[0], "width", 0) - count_characters(*self.text());
  if (missing <= 0) return self;
  runtime.spend(static_cast<std::uint64_t>(missing) * fill.size());
  const std::int64_t before = !left    ? 0
                              : !right ? missing
                                       : missing / 2 + (missing & (missing + count_characters(*self.text())) & 1);
  std::string out;
  for (std::int64_t i = 0; i < before; ++i) out += fill;
  out += *self.text();
  for (std::int64_t i = before; i < missing; ++i) out += fill;
  return out;
}

/// text.format: {}, {0} and {name}, without format specifications.
Value format_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const std::string& text = *self.text();
  std::string out;
  std::size_t automatic = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      out += text[i++];
    } else if (c == '}') {
      fail("single '}}' encountered in format string");
    } else if (c != '{') {
      out += c;
    } else {
      const std::size_t end = text.find('}', i);
      if (end == std::string::npos) fail("single '{{' encountered in format string");
      const std::string field = text.substr(i + 1, end - i - 1);
      i = end;
      if (field.find_first_of(":!.[") != std::string::npos) fail("format field '{{{}}}' is not supported", field);
      const auto named =
          std::find_if(arguments.named.begin(), arguments.named.end(), [&](const auto& entry) { return entry.first == field; });
      if (named != arguments.named.end()) {
        out += to_text(named->second);
        continue;
      }
      const std::size_t place = field.empty()                          ? automatic++
                                : is_digits(field) && field.size() < 9 ? std::stoul(field)
                                                                       : text.size();
      if (place >= arguments.positional.size()) fail("format field '{{{}}}' has no argument", field);
      out += to_text(arguments.positional[place]);
    }
    if (out.size() > runtime.options().max_output_bytes) fail("the render takes too much work");
  }
  runtime.spend(out.size());
  return out;
}

template <std::string (*Map)(std::string_view)>
Value map_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  bind(arguments, {});
  runtime.spend(self.text()->size() * 8);
  return Map(*self.text());
}

template <bool (*Check)(std::string_view)>
Value check_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  bind(arguments, {});
  runtime.spend(self.text()->size() * 8);
  return Check(*self.text());
}

Value remove_affix(const Value& self, const Arguments& arguments, bool at_end) {
  const Value part_value = bind(arguments, {"affix"})[0];
  const std::string_view text = *self.text(), part = expect_text(part_value, "argument");
  if (at_end && text.ends_with(part)) return std::string(text.substr(0, text.size() - part.size()));
  if (!at_end && text.starts_with(part)) return std::string(text.substr(part.size()));
  return self;
}

constexpr MethodEntry kTextMethods[] = {
    {"capitalize", map_method<capitalize>},
    {"center", [](Runtime& r, const Value& s, const Arguments& a) { return pad_method(r, s, a, true, true); }},
    {"count",
     [](Runtime&, const Value& s, const Arguments& a) -> Value {
       return count_parts(*s.text(), expect_text(bind(a, {"sub"})[0], "argument"));
     }},
    {"endswith", [](Runtime&, const Value& s, const Arguments& a) { return affix_method(s, a, true); }},
    {"find", [](Runtime&, const Value& s, const Arguments& a) { return find_text(s, a, false, false); }},
    {"format", format_method},
    {"index", [](Runtime&, const Value& s, const Arguments& a) { return find_text(s, a, false, true); }},
    {"isalnum", check_method<is_alphanumeric>},
    {"isalpha", check_method<is_alphabetic>},
    {"isdigit", check_method<is_digits>},
    {"islower", check_method<is_lower>},
    {"isnumeric", check_method<is_digits>},
    {"isspace", check_method<is_space>},
    {"isupper", check_method<is_upper>},
    {"join", join_method},
    {"ljust", [](Runtime& r, const Value& s, const Arguments& a) { return pad_method(r, s, a, false, true); }},
    {"lower", map_method<lower>},
    {"lstrip", [](Runtime& r, const Value& s, const Arguments& a) { return strip_method(r, s, a, Side::Left); }},
    {"partition", [](Runtime&, const Value& s, const Arguments& a) { return partition_method(s, a, false); }},
    {"removeprefix", [](Runtime&, const Value& s, const Arguments& a) { return remove_affix(s, a, false); }},
    {"removesuffix", [](Runtime&, const Value& s, const Arguments& a) { return remove_affix(s, a, true); }},
    {"replace", replace_method},
    {"rfind", [](Runtime&, const Value& s, const Arguments& a) { return find_text(s, a, true, false); }},
    {"rjust", [](Runtime& r, const Value& s, const Arguments& a) { return pad_method(r, s, a, true, false); }},
    {"rpartition", [](Runtime&, const Value& s, const Arguments& a) { return partition_method(s, a, true); }},
    {"rsplit", [](Runtime& r, const Value& s, const Arguments& a) { return split_method(r, s, a, true); }},
    {"rstrip", [](Runtime& r, const Value& s, const Arguments& a) { return strip_method(r, s, a, Side::Right); }},
    {"split", [](Runtime& r, const Value& s, const Arguments& a) { return split_method(r, s, a, false); }},
    {"splitlines", [](Runtime&, const Value& s,
                      const Arguments& a) { return text_list(split_lines(*s.text(), bind(a, {"keepends"})[0].truth())); }},
    {"startswith", [](Runtime&, const Value& s, const Arguments& a) { return affix_method(s, a, false); }},
    {"strip", [](Runtime& r, const Value& s, const Arguments& a) { return strip_method(r, s, a, Side::Both); }},
    {"title", map_method<title>},
    {"upper", map_method<upper>},
};

Value list_index(Runtime&, const Value& self, const Arguments& arguments) {
  const Value wanted = bind(arguments, {"value"})[0];
  const List& items = self.sequence()->items;
  const auto found = std::find_if(items.begin(), items.end(), [&](const Value& value) { return equal(value, wanted); });
  if (found == items.end()) fail("{} is not in list", to_repr(wanted));
  return static_cast<std::int64_t>(found - items.begin());
}

Value list_count(Runtime&, const Value& self, const Arguments& arguments) {
  const Value wanted = bind(arguments, {"value"})[0];
  const List& items = self.sequence()->items;
  return static_cast<std::int64_t>(
      std::count_if(items.begin(), items.end(), [&](const Value& value) { return equal(value, wanted); }));
}

constexpr MethodEntry kListMethods[] = {{"count", list_count}, {"index", list_index}};

Value dict_items(Runtime& runtime, const Value& self, const Arguments& arguments) {
  bind(arguments, {});
  List items;
  for (const auto& [key, value] : self.mapping()->entries) items.push_back(Value::tuple({key, value}));
  runtime.spend(items.size() * 2 * sizeof(Value));
  return Value::list(std::move(items));
}

Value dict_values(Runtime& runtime, const Value& self, const Arguments& arguments) {
  bind(arguments, {});
  List items;
  for (const auto& [key, value] : self.mapping()->entries) items.push_back(value);
  runtime.spend(items.size() * sizeof(Value));
  return Value::list(std::move(items));
}

Value dict_get(Runtime&, const Value& self, const Arguments& arguments) {
  const List values = bind(arguments, {"key", "default"});
  if (const Value* found = find(*self.mapping(), values[0])) return *found;
  return values[1].is_undefined() && arguments.positional.size() < 2 ? Value(None{}) : values[1];
}

constexpr MethodEntry kDictMethods[] = {
    {"copy", [](Runtime&, const Value& s, const Arguments&) { return s; }},
    {"get", dict_get},
    {"items", dict_items},
    {"keys", [](Runtime&, const Value& s, const Arguments& a) { return bind(a, {}), Value::list(iterate(s)); }},
    {"values", dict_values},
};

template <std::size_t N>
Method find_in(const MethodEntry (&entries)[N], std::string_view name) {
  const auto found = std::lower_bound(std::begin(entries), std::end(entries), name,
                                      [](const MethodEntry& e, std::string_view n) { return e.first < n; });
  return found != std::end(entries) && found->first == name ? found->second : nullptr;
}

}  // namespace

Method find_method(const Value& self, std::string_view name) {
  if (self.text()) return find_in(kTextMethods, name);
  if (self.mapping()) return find_in(kDictMethods, name);
  if (self.sequence()) return find_in(kListMethods, name);
  return nullptr;
}

bool is_mutating_method(const Value& self, std::string_view name) {
  constexpr std::string_view kList[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (self.sequence() && !self.sequence()->is_tuple)
    return std::find(std::begin(kList), std::end(kList), name) != std::end(kList);
  return self.mapping() && std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
}

}  // namespace calandra::jinja
