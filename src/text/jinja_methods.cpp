// The methods of Python's str, list, tuple and dict that templates use. Those that change a list or dict are missing on
// purpose: templates run on immutable data.

#include <algorithm>
#include <array>
#include <optional>

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

/// What a short text takes as an item of a list.
constexpr std::uint64_t kTextItemBytes = sizeof(Value) + sizeof(std::string) + 32;

Value text_list(Runtime& runtime, const std::vector<std::string_view>& parts) {
  runtime.make_room(parts.size(), kTextItemBytes);
  List items;
  items.reserve(parts.size());
  for (const auto part : parts) items.emplace_back(std::string(part));
  return Value::list(std::move(items));
}

Value strip_method(Runtime& runtime, const Value& self, const Arguments& arguments, Side side) {
  const Value chars = bind(arguments, {"chars"})[0];
  runtime.spend(self.text()->size());
  if (chars.is_undefined() || chars.is_none()) return std::string(strip(*self.text(), side));
  const std::string& taken = expect_text(chars, "strip arg");
  runtime.spend_search(self.text()->size(), taken.size());
  return std::string(strip(*self.text(), side, taken));
}

Value split_method(Runtime& runtime, const Value& self, const Arguments& arguments, bool from_right) {
  const List values = bind(arguments, {"sep", "maxsplit"});
  const std::int64_t limit = expect_integer(values[1], "maxsplit", -1);
  runtime.spend(self.text()->size() * 8);
  std::vector<std::string_view> parts;
  if (values[0].is_undefined() || values[0].is_none()) {
    parts = split(*self.text(), limit, from_right);
  } else {
    const std::string& separator = expect_text(values[0], "separator");
    if (separator.empty()) fail("empty separator");
    runtime.spend_search(self.text()->size(), separator.size());
    if (limit < 0) runtime.make_room(static_cast<std::uint64_t>(count_parts(*self.text(), separator)), kTextItemBytes);
    parts = split(*self.text(), separator, limit, from_right);
  }
  return text_list(runtime, parts);
}

Value partition_method(Runtime& runtime, const Value& self, const Arguments& arguments, bool from_right) {
  const Value separator_value = bind(arguments, {"sep"})[0];
  const std::string& separator = expect_text(separator_value, "separator");
  if (separator.empty()) fail("empty separator");
  const std::string& text = *self.text();
  runtime.spend_search(text.size() * 2, separator.size());
  const std::size_t at = from_right ? text.rfind(separator) : text.find(separator);
  if (at == std::string::npos) return from_right ? Value::tuple({"", "", text}) : Value::tuple({text, "", ""});
  return Value::tuple({text.substr(0, at), separator, text.substr(at + separator.size())});
}

/// The part text[start:end] that a search looks at, and the character it begins at; nothing if start is behind the text.
std::optional<std::pair<std::string_view, std::int64_t>> searched_part(Runtime& runtime, const std::string& text,
                                                                       const Value& start, const Value& end) {
  const auto given = [](const Value& value) { return !value.is_undefined() && !value.is_none(); };
  if (!given(start) && !given(end)) return std::pair{std::string_view(text), std::int64_t{0}};
  runtime.spend(text.size());
  const std::int64_t size = count_characters(text);
  const auto bound = [&](const Value& value, std::int64_t fallback) {
    if (!given(value)) return fallback;
    const std::int64_t index = expect_integer(value, "slice index", 0);
    return index < 0 ? std::max<std::int64_t>(0, index + size) : index;
  };
  const std::int64_t first = bound(start, 0), last = std::min(bound(end, size), size);
  if (first > size || first > last) return std::nullopt;
  const auto place = [&](std::int64_t index) {
    return index == size ? text.size() : static_cast<std::size_t>(character_at(text, index).data() - text.data());
  };
  return std::pair{std::string_view(text).substr(place(first), place(last) - place(first)), first};
}

/// startswith and endswith: one text, or a tuple of some.
Value affix_method(Runtime& runtime, const Value& self, const Arguments& arguments, bool at_end) {
  const List values = bind(arguments, {"prefix", "start", "end"});
  const Value& wanted = values[0];
  const bool is_tuple = wanted.sequence() && wanted.sequence()->is_tuple;
  const List candidates = is_tuple ? iterate(runtime, wanted) : List{wanted};
  const auto searched = searched_part(runtime, *self.text(), values[1], values[2]);
  return std::any_of(candidates.begin(), candidates.end(), [&](const Value& candidate) {
    const std::string_view part = expect_text(candidate, at_end ? "endswith first arg" : "startswith first arg");
    if (!searched) return false;
    runtime.spend(part.size());
    return at_end ? searched->first.ends_with(part) : searched->first.starts_with(part);
  });
}

Value find_text(Runtime& runtime, const Value& self, const Arguments& arguments, bool from_right, bool must_be_there) {
  const List values = bind(arguments, {"sub", "start", "end"});
  const std::string& part = expect_text(values[0], "argument");
  const auto searched = searched_part(runtime, *self.text(), values[1], values[2]);
  runtime.spend_search(self.text()->size(), part.size());
  const std::int64_t place = searched ? find_part(searched->first, part, from_right) : -1;
  if (place < 0 && must_be_there) fail("substring not found");
  return place < 0 ? place : place + searched->second;
}

Value count_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const List values = bind(arguments, {"sub", "start", "end"});
  const std::string& part = expect_text(values[0], "argument");
  const auto searched = searched_part(runtime, *self.text(), values[1], values[2]);
  runtime.spend_search(self.text()->size(), part.size());
  return searched ? count_parts(searched->first, part) : std::int64_t{0};
}

Value join_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  std::string out;
  std::size_t charged = 0;
  const List items = iterate(runtime, bind(arguments, {"iterable"})[0]);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += *self.text();
    if (!items[i].text()) fail("sequence item {}: expected str, found {}", i, type_name(items[i]));
    out += *items[i].text();
    runtime.grow(charged, out.size());
  }
  return out;
}

Value replace_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const List values = bind(arguments, {"old", "new", "count"});
  const std::string& new_part = expect_text(values[1], "replace() argument 2");
  const std::string& old_part = expect_text(values[0], "replace() argument 1");
  runtime.spend_search(self.text()->size() * 2, old_part.size());
  if (new_part.size() > old_part.size()) {  // before the text is made: it may be huge
    runtime.make_room(static_cast<std::uint64_t>(count_parts(*self.text(), old_part)), new_part.size());
  }
  return replace(*self.text(), old_part, new_part, expect_integer(values[2], "count", -1));
}

Value pad_method(Runtime& runtime, const Value& self, const Arguments& arguments, bool left, bool right) {
  const List values = bind(arguments, {"width", "fillchar"});
  const std::string fill = values[1].is_undefined() ? " " : expect_text(values[1], "fill character");
  if (count_characters(fill) != 1) fail("the fill character must be exactly one character, found '{}'", printable(fill));
  if (!values[0].integer()) fail("width must be int, not {}", type_name(values[0]));
  const std::int64_t width = *values[0].integer();
  const std::int64_t size = length(runtime, self);
  if (width <= size) return self;
  const std::int64_t missing = width - size;
  runtime.make_room(static_cast<std::uint64_t>(missing), fill.size());
  const std::int64_t before = !left ? 0 : !right ? missing : missing / 2 + (missing & width & 1);
  std::string out;
  for (std::int64_t i = 0; i < before; ++i) out += fill;
  out += *self.text();
  for (std::int64_t i = before; i < missing; ++i) out += fill;
  return out;
}

/// Digits of ASCII, and few enough for a number.
bool is_index(std::string_view field) {
  return !field.empty() && field.size() < 9 && field.find_first_not_of("0123456789") == field.npos;
}

/// text.format: {}, {0} and {name}, without format specifications.
Value format_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const std::string& text = *self.text();
  runtime.spend(text.size());
  std::string out;
  std::size_t automatic = 0, charged = 0;
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
      runtime.spend(arguments.named.size() * Budget::kStep);
      if (field.find_first_of(":!.[") != std::string::npos) fail("format field '{{{}}}' is not supported", field);
      const auto named =
          std::find_if(arguments.named.begin(), arguments.named.end(), [&](const auto& entry) { return entry.first == field; });
      if (named != arguments.named.end()) {
        out += to_text(runtime, named->second);
        runtime.grow(charged, out.size());
        continue;
      }
      const std::size_t place = field.empty() ? automatic++ : is_index(field) ? std::stoul(field) : text.size();
      if (place >= arguments.positional.size()) fail("format field '{{{}}}' has no argument", field);
      out += to_text(runtime, arguments.positional[place]);
    }
    runtime.grow(charged, out.size());
  }
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

Value split_lines_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  runtime.spend(self.text()->size() * sizeof(std::string_view));
  return text_list(runtime, split_lines(*self.text(), bind(arguments, {"keepends"})[0].truth()));
}

constexpr MethodEntry kTextMethods[] = {
    {"capitalize", map_method<capitalize>},
    {"center", [](Runtime& r, const Value& s, const Arguments& a) { return pad_method(r, s, a, true, true); }},
    {"count", count_method},
    {"endswith", [](Runtime& r, const Value& s, const Arguments& a) { return affix_method(r, s, a, true); }},
    {"find", [](Runtime& r, const Value& s, const Arguments& a) { return find_text(r, s, a, false, false); }},
    {"format", format_method},
    {"index", [](Runtime& r, const Value& s, const Arguments& a) { return find_text(r, s, a, false, true); }},
    {"isalnum", check_method<is_alphanumeric>},
    {"isalpha", check_method<is_alphabetic>},
    {"isdecimal", check_method<is_decimals>},
    {"isdigit", check_method<is_digits>},
    {"islower", check_method<is_lower>},
    {"isnumeric", check_method<is_numeric>},
    {"isspace", check_method<is_space>},
    {"isupper", check_method<is_upper>},
    {"join", join_method},
    {"ljust", [](Runtime& r, const Value& s, const Arguments& a) { return pad_method(r, s, a, false, true); }},
    {"lower", map_method<lower>},
    {"lstrip", [](Runtime& r, const Value& s, const Arguments& a) { return strip_method(r, s, a, Side::Left); }},
    {"partition", [](Runtime& r, const Value& s, const Arguments& a) { return partition_method(r, s, a, false); }},
    {"removeprefix", [](Runtime&, const Value& s, const Arguments& a) { return remove_affix(s, a, false); }},
    {"removesuffix", [](Runtime&, const Value& s, const Arguments& a) { return remove_affix(s, a, true); }},
    {"replace", replace_method},
    {"rfind", [](Runtime& r, const Value& s, const Arguments& a) { return find_text(r, s, a, true, false); }},
    {"rjust", [](Runtime& r, const Value& s, const Arguments& a) { return pad_method(r, s, a, true, false); }},
    {"rpartition", [](Runtime& r, const Value& s, const Arguments& a) { return partition_method(r, s, a, true); }},
    {"rsplit", [](Runtime& r, const Value& s, const Arguments& a) { return split_method(r, s, a, true); }},
    {"rstrip", [](Runtime& r, const Value& s, const Arguments& a) { return strip_method(r, s, a, Side::Right); }},
    {"split", [](Runtime& r, const Value& s, const Arguments& a) { return split_method(r, s, a, false); }},
    {"splitlines", split_lines_method},
    {"startswith", [](Runtime& r, const Value& s, const Arguments& a) { return affix_method(r, s, a, false); }},
    {"strip", [](Runtime& r, const Value& s, const Arguments& a) { return strip_method(r, s, a, Side::Both); }},
    {"title", map_method<title>},
    {"upper", map_method<upper>},
};

Value list_index(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Value wanted = bind(arguments, {"value"})[0];
  const List& items = self.sequence()->items;
  const auto found = std::find_if(items.begin(), items.end(), [&](const Value& value) { return equal(runtime, value, wanted); });
  if (found == items.end()) fail("{} is not in list", to_repr(runtime, wanted));
  return static_cast<std::int64_t>(found - items.begin());
}

Value list_count(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Value wanted = bind(arguments, {"value"})[0];
  const List& items = self.sequence()->items;
  return static_cast<std::int64_t>(
      std::count_if(items.begin(), items.end(), [&](const Value& value) { return equal(runtime, value, wanted); }));
}

constexpr MethodEntry kListMethods[] = {{"count", list_count}, {"index", list_index}};

Value dict_items(Runtime& runtime, const Value& self, const Arguments& arguments) {
  bind(arguments, {});
  runtime.make_room(self.mapping()->entries.size(), sizeof(Value) + sizeof(Sequence) + 2 * sizeof(Value) + 32);
  List items;
  for (const auto& [key, value] : self.mapping()->entries) items.push_back(Value::tuple({key, value}));
  return Value::list(std::move(items));
}

Value dict_values(Runtime& runtime, const Value& self, const Arguments& arguments) {
  bind(arguments, {});
  runtime.make_room(self.mapping()->entries.size(), sizeof(Value));
  List items;
  for (const auto& [key, value] : self.mapping()->entries) items.push_back(value);
  return Value::list(std::move(items));
}

Value dict_get(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const List values = bind(arguments, {"key", "default"});
  if (const Value* found = find(runtime, *self.mapping(), values[0])) return *found;
  return values[1].is_undefined() && arguments.positional.size() < 2 ? Value(None{}) : values[1];
}

constexpr MethodEntry kDictMethods[] = {
    {"copy", [](Runtime&, const Value& s, const Arguments&) { return s; }},
    {"get", dict_get},
    {"items", dict_items},
    {"keys", [](Runtime& r, const Value& s, const Arguments& a) { return bind(a, {}), Value::list(iterate(r, s)); }},
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
