#include "text/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/jinja_text.h"

namespace calandra::jinja {
namespace {

int checked_nesting(int inner) {
  if (inner >= kMaxNesting) fail("data is nested more than {} deep", kMaxNesting);
  return inner + 1;
}

/// More entries than this are looked up by their hash.
constexpr std::size_t kMaxUnindexed = 16;

std::size_t hash_text(std::string_view text) { return std::hash<std::string_view>()(text); }

std::size_t hash_key(Budget& budget, const Value& key) {
  const auto hash = hash_of(budget, key);
  if (!hash) fail("unhashable type: '{}'", type_name(key));
  return *hash;
}

/// To be called after each entry that is appended.
void update_index(Budget& budget, Mapping& mapping) {
  if (mapping.entries.size() <= kMaxUnindexed) return;
  for (std::size_t place = mapping.places.size(); place < mapping.entries.size(); ++place) {
    mapping.places.emplace(hash_key(budget, mapping.entries[place].first), place);
  }
}

std::optional<std::size_t> place_of(Budget& budget, const Mapping& mapping, const Value& key) {
  if (mapping.places.empty()) {
    for (std::size_t place = 0; place < mapping.entries.size(); ++place) {
      if (equal(budget, mapping.entries[place].first, key)) return place;
    }
    return std::nullopt;
  }
  const auto hash = hash_of(budget, key);
  if (!hash) return std::nullopt;
  const auto [begin, end] = mapping.places.equal_range(*hash);
  for (auto entry = begin; entry != end; ++entry) {
    if (equal(budget, mapping.entries[entry->second].first, key)) return entry->second;
  }
  return std::nullopt;
}

/// Of two integers of which one is beyond 64 bits.
int compare_big(const Value& a, const Value& b) {
  const auto sign = [](const Value& value) { return !value.big_integer() ? 0 : value.big_integer()->front() == '-' ? -1 : 1; };
  if (sign(a) != sign(b)) return sign(a) - sign(b);
  const std::string &x = *a.big_integer(), &y = *b.big_integer();
  const int larger = x.size() != y.size() ? (x.size() < y.size() ? -1 : 1) : x.compare(y);
  return larger * sign(a);
}
bool is_whole(const Value& value) { return value.integer() || value.big_integer(); }

/// A key of a JSON object, as json.dumps writes it.
std::string json_key(Budget& budget, const Value& key) {
  if (key.text()) return *key.text();
  if (const bool* boolean = key.boolean()) return *boolean ? "true" : "false";
  if (key.is_none()) return "null";
  if (key.number()) return to_text(budget, key);
  fail("keys of JSON must be str, int, float, bool or None, not {}", type_name(key));
}

class JsonWriter {
 public:
  JsonWriter(Budget& budget, const JsonStyle& style, std::string& out) : budget_(budget), style_(style), out_(out) {}

  void write(const Value& value) {
    budget_.spend_step();
    write_one(value);
    charge();
  }

 private:
  void charge() { budget_.grow(charged_, out_.size()); }

  void write_one(const Value& value) {
    if (const std::string* text = value.text()) {
      append_json_string(out_, *text, style_.ascii_only);
    } else if (const Sequence* sequence = value.sequence()) {
      write_list(*sequence);
    } else if (const Mapping* mapping = value.mapping()) {
      write_object(*mapping);
    } else if (value.is_none()) {
      out_ += "null";
    } else if (const bool* boolean = value.boolean()) {
      out_ += *boolean ? "true" : "false";
    } else if (const double* real = value.real(); real && !std::isfinite(*real)) {
      out_ += std::isnan(*real) ? "NaN" : *real > 0 ? "Infinity" : "-Infinity";
    } else if (value.number()) {
      out_ += to_text(budget_, value);
    } else {
      fail("Object of type {} is not JSON serializable", type_name(value));
    }
  }

  void write_list(const Sequence& sequence) {
    if (sequence.items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    ++level_;
    for (std::size_t i = 0; i < sequence.items.size(); ++i) {
      begin_item(i);
      write(sequence.items[i]);
    }
    end_items();
    out_ += ']';
  }

  void write_object(const Mapping& mapping) {
    if (mapping.entries.empty()) {
      out_ += "{}";
      return;
    }
    budget_.spend(mapping.entries.size() * sizeof(void*));
    std::vector<const std::pair<Value, Value>*> order;
    for (const auto& entry : mapping.entries) order.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(order.begin(), order.end(),
                       [&](auto* a, auto* b) { return compare(budget_, a->first, b->first, "<") < 0; });
    }
    out_ += '{';
    ++level_;
    for (std::size_t i = 0; i < order.size(); ++i) {
      begin_item(i);
      append_json_string(out_, json_key(budget_, order[i]->first), style_.ascii_only);
      out_ += style_.after_key;
      write(order[i]->second);
    }
    end_items();
    out_ += '}';
  }

  void begin_item(std::size_t index) {
    if (index > 0) out_ += style_.between_items;
    new_line();
  }
  void end_items() {
    --level_;
    new_line();
  }
  void new_line() {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) {
      out_ += *style_.indent;
      charge();
    }
  }

  Budget& budget_;
  const JsonStyle& style_;
  std::string& out_;
  std::size_t charged_ = 0;
  int level_ = 0;
};

void append_repr(Budget& budget, std::size_t& charged, std::string& out, const Value& value) {
  budget.spend_step();
  if (const std::string* text = value.text()) {
    out += repr(*text);
  } else if (const Sequence* sequence = value.sequence()) {
    out += sequence->is_tuple ? '(' : '[';
    for (std::size_t i = 0; i < sequence->items.size(); ++i) {
      if (i > 0) out += ", ";
      append_repr(budget, charged, out, sequence->items[i]);
    }
    if (sequence->is_tuple && sequence->items.size() == 1) out += ',';
    out += sequence->is_tuple ? ')' : ']';
  } else if (const Mapping* mapping = value.mapping()) {
    out += '{';
    for (std::size_t i = 0; i < mapping->entries.size(); ++i) {
      if (i > 0) out += ", ";
      append_repr(budget, charged, out, mapping->entries[i].first);
      out += ": ";
      append_repr(budget, charged, out, mapping->entries[i].second);
    }
    out += '}';
  } else if (value.is_undefined()) {
    out += "Undefined";
  } else {
    out += to_text(budget, value);
  }
  budget.grow(charged, out.size());
}

std::int64_t clamp_index(std::int64_t index, std::int64_t size, std::int64_t low, std::int64_t high) {
  if (index < 0) index += size;
  return std::clamp(index, low, high);
}

std::int64_t slice_bound(const Value& value, std::string_view name) {
  if (const auto integer = value.integer())
    return std::clamp<std::int64_t>(*integer, -(std::int64_t{1} << 40), std::int64_t{1} << 40);
  fail("slice {} must be an integer or None, not {}", name, type_name(value));
}

/// The places that value[start:stop:step] takes, in order.
std::vector<std::size_t> slice_places(std::int64_t size, const Value& start, const Value& stop, const Value& step_value) {
  const std::int64_t step = step_value.is_none() ? 1 : slice_bound(step_value, "step");
  if (step == 0) fail("slice step cannot be zero");
  const std::int64_t low = step > 0 ? 0 : -1;
  const std::int64_t high = step > 0 ? size : size - 1;
  const std::int64_t first =
      start.is_none() ? (step > 0 ? low : high) : clamp_index(slice_bound(start, "start"), size, low, high);
  const std::int64_t last = stop.is_none() ? (step > 0 ? high : low) : clamp_index(slice_bound(stop, "stop"), size, low, high);
  std::vector<std::size_t> places;
  for (std::int64_t i = first; step > 0 ? i < last : i > last; i += step) places.push_back(static_cast<std::size_t>(i));
  return places;
}

}  // namespace

Value Value::list(List items, bool is_tuple) {
  int inner = 0;
  for (const Value& value : items) inner = std::max(inner, value.nesting());
  Value result;
  result.data_ = std::make_shared<const Sequence>(Sequence{std::move(items), is_tuple, checked_nesting(inner)});
  return result;
}

Value Value::dict(Budget& budget, const Entries& entries) {
  budget.make_room(entries.size(), 2 * sizeof(Value));
  auto mapping = std::make_shared<Mapping>();
  int inner = 0;
  for (const auto& [key, value] : entries) {
    hash_key(budget, key);
    inner = std::max({inner, key.nesting(), value.nesting()});
    if (const auto known = place_of(budget, *mapping, key)) {
      mapping->entries[*known].second = value;
    } else {
      mapping->entries.emplace_back(key, value);
      update_index(budget, *mapping);
    }
  }
  mapping->nesting = checked_nesting(inner);
  Value result;
  result.data_ = std::shared_ptr<const Mapping>(std::move(mapping));
  return result;
}

Value Value::from_json(const nlohmann::ordered_json& json, int depth) {
  using Type = nlohmann::ordered_json::value_t;
  if (json.is_structured()) checked_nesting(depth);  // on the way down: what is too deep would use up the stack
  switch (json.type()) {
    case Type::null: return None{};
    case Type::boolean: return json.get<bool>();
    case Type::string: return json.get_ref<const std::string&>();
    case Type::number_integer: return json.get<std::int64_t>();
    case Type::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return BigInteger{std::make_shared<const std::string>(fmt::format("{}", number))};
      return static_cast<std::int64_t>(number);
    }
    case Type::number_float: return json.get<double>();
    case Type::array: {
      List items;
      items.reserve(json.size());
      for (const auto& element : json) items.push_back(from_json(element, depth + 1));
      return list(std::move(items));
    }
    case Type::object: {
      Budget budget = Budget::unlimited();
      auto mapping = std::make_shared<Mapping>();  // keys of a JSON object are unique already
      int inner = 0;
      for (const auto& [key, element] : json.items()) {
        mapping->entries.emplace_back(key, from_json(element, depth + 1));
        inner = std::max(inner, mapping->entries.back().second.nesting());
        update_index(budget, *mapping);
      }
      mapping->nesting = checked_nesting(inner);
      Value result;
      result.data_ = std::shared_ptr<const Mapping>(std::move(mapping));
      return result;
    }
    default: fail("binary JSON is no data for a template");
  }
}

const std::string* Value::text() const {
  const Text* text = std::get_if<Text>(&data_);
  return text ? text->get() : nullptr;
}
const Sequence* Value::sequence() const {
  const auto* sequence = std::get_if<std::shared_ptr<const Sequence>>(&data_);
  return sequence ? sequence->get() : nullptr;
}
const Mapping* Value::mapping() const {
  const auto* mapping = std::get_if<std::shared_ptr<const Mapping>>(&data_);
  return mapping ? mapping->get() : nullptr;
}
Object* Value::object() const {
  Object* const* object = std::get_if<Object*>(&data_);
  return object ? *object : nullptr;
}

const std::string* Value::big_integer() const {
  const auto* integer = std::get_if<BigInteger>(&data_);
  return integer ? integer->digits.get() : nullptr;
}

std::optional<std::int64_t> Value::integer() const {
  if (const auto* integer = std::get_if<std::int64_t>(&data_)) return *integer;
  if (const bool* truth = boolean()) return *truth ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const double* number = real()) return *number;
  if (const auto whole = integer()) return static_cast<double>(*whole);
  if (big_integer()) return std::strtod(big_integer()->c_str(), nullptr);
  return std::nullopt;
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (const auto value = number()) return *value != 0;
  if (text()) return !text()->empty();
  if (sequence()) return !sequence()->items.empty();
  if (mapping()) return !mapping()->entries.empty();
  return true;
}

std::string Value::reason() const {
  const auto* undefined_value = std::get_if<Undefined>(&data_);
  return undefined_value && undefined_value->reason ? *undefined_value->reason : "the value is undefined";
}

int Value::nesting() const {
  if (sequence()) return sequence()->nesting;
  if (mapping()) return mapping()->nesting;
  return 0;
}

Value undefined(std::string reason) { return Undefined{std::make_shared<const std::string>(std::move(reason))}; }

std::string_view type_name(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "NoneType";
  if (value.boolean()) return "bool";
  if (value.real()) return "float";
  if (is_whole(value)) return "int";
  if (value.text()) return "str";
  if (value.sequence()) return value.sequence()->is_tuple ? "tuple" : "list";
  if (value.mapping()) return "dict";
  return "object";
}

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

std::string to_text(Budget& budget, const Value& value) {
  if (value.text()) {
    budget.spend(value.text()->size());
    return *value.text();
  }
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (const bool* boolean = value.boolean()) return *boolean ? "True" : "False";
  if (const double* real = value.real()) return float_text(*real);
  if (const auto integer = value.integer()) return fmt::format("{}", *integer);
  if (value.big_integer()) return *value.big_integer();
  if (value.object()) return "<object>";
  return to_repr(budget, value);
}

std::string to_repr(Budget& budget, const Value& value) {
  std::string out;
  std::size_t charged = 0;
  append_repr(budget, charged, out, value);
  return out;
}

std::string to_json(Budget& budget, const Value& value, const JsonStyle& style) {
  std::string out;
  JsonWriter(budget, style, out).write(value);
  return out;
}

bool equal(Budget& budget, const Value& a, const Value& b) {
  budget.spend_step();
  if (a.number() && b.number()) {
    if (is_whole(a) && is_whole(b)) return a.integer() && b.integer() ? a.integer() == b.integer() : compare_big(a, b) == 0;
    return a.number() == b.number();
  }
  if (a.text() && b.text()) {
    if (a.text()->size() != b.text()->size()) return false;
    budget.spend(a.text()->size());
    return *a.text() == *b.text();
  }
  const auto same = [&](const Value& x, const Value& y) { return equal(budget, x, y); };
  if (a.sequence() && b.sequence()) {
    const Sequence &x = *a.sequence(), &y = *b.sequence();
    if (&x == &y) return true;
    return x.is_tuple == y.is_tuple && std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), same);
  }
  if (a.mapping() && b.mapping()) {
    const Mapping &x = *a.mapping(), &y = *b.mapping();
    if (&x == &y) return true;
    return x.entries.size() == y.entries.size() && std::all_of(x.entries.begin(), x.entries.end(), [&](const auto& entry) {
             const Value* other = find(budget, y, entry.first);
             return other && same(entry.second, *other);
           });
  }
  if (a.object() || b.object()) return a.object() == b.object();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(Budget& budget, const Value& a, const Value& b, std::string_view operation) {
  budget.spend_step();
  const auto order = [](const auto& x, const auto& y) { return x < y ? -1 : y < x ? 1 : 0; };
  if (a.is_undefined() || b.is_undefined()) fail("{}", (a.is_undefined() ? a : b).reason());
  if (a.integer() && b.integer()) return order(*a.integer(), *b.integer());
  if (is_whole(a) && is_whole(b)) return compare_big(a, b);
  if (a.number() && b.number()) return order(*a.number(), *b.number());
  if (a.text() && b.text()) {
    budget.spend(std::min(a.text()->size(), b.text()->size()));
    return a.text()->compare(*b.text());
  }
  if (a.sequence() && b.sequence() && a.sequence()->is_tuple == b.sequence()->is_tuple) {
    const List &x = a.sequence()->items, &y = b.sequence()->items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(budget, x[i], y[i])) return compare(budget, x[i], y[i], operation);
    }
    return order(x.size(), y.size());
  }
  fail("'{}' not supported between instances of '{}' and '{}'", operation, type_name(a), type_name(b));
}

bool contains(Budget& budget, const Value& container, const Value& part) {
  if (const std::string* text = container.text()) {
    if (!part.text()) fail("'in <string>' requires string as left operand, not {}", type_name(part));
    budget.spend_search(text->size(), part.text()->size());
    return text->find(*part.text()) != std::string::npos;
  }
  if (const Mapping* mapping = container.mapping()) return find(budget, *mapping, part) != nullptr;
  const List items = iterate(budget, container);
  return std::any_of(items.begin(), items.end(), [&](const Value& element) { return equal(budget, element, part); });
}

std::optional<std::size_t> hash_of(Budget& budget, const Value& value) {
  budget.spend_step();
  if (const auto number = value.number()) return std::hash<double>()(*number);
  if (const std::string* text = value.text()) {
    budget.spend(text->size());
    return hash_text(*text);
  }
  if (value.mapping()) return std::nullopt;
  if (value.object()) return std::hash<const Object*>()(value.object());
  const Sequence* sequence = value.sequence();
  if (!sequence) return value.is_none() ? 1 : 2;
  if (!sequence->is_tuple) return std::nullopt;
  std::size_t hash = 3;
  for (const Value& inner : sequence->items) {
    const auto next = hash_of(budget, inner);
    if (!next) return std::nullopt;
    hash = hash * 31 + *next;
  }
  return hash;
}

List iterate(Budget& budget, const Value& value) {
  if (value.is_undefined()) return {};
  List items;
  if (value.sequence()) {
    budget.make_room(value.sequence()->items.size(), sizeof(Value));
    return value.sequence()->items;
  }
  if (value.text()) {
    budget.make_room(static_cast<std::uint64_t>(length(budget, value)), sizeof(Value) + sizeof(std::string) + 32);
    for (const auto character : characters(*value.text())) items.emplace_back(std::string(character));
    return items;
  }
  if (value.mapping()) {
    budget.make_room(value.mapping()->entries.size(), sizeof(Value));
    for (const auto& [key, element] : value.mapping()->entries) items.push_back(key);
    return items;
  }
  fail("'{}' object is not iterable", type_name(value));
}

std::int64_t length(Budget& budget, const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.text()) {
    budget.spend(value.text()->size() * 8);  // a character takes as long as some bytes of a copy
    return count_characters(*value.text());
  }
  if (value.sequence()) return static_cast<std::int64_t>(value.sequence()->items.size());
  if (value.mapping()) return static_cast<std::int64_t>(value.mapping()->entries.size());
  fail("object of type '{}' has no len()", type_name(value));
}

const Value* find(Budget& budget, const Mapping& mapping, const Value& key) {
  const auto place = place_of(budget, mapping, key);
  return place ? &mapping.entries[*place].second : nullptr;
}

const Value* find(const Mapping& mapping, std::string_view key) {
  const auto is_key = [&](const Value& name) { return name.text() && *name.text() == key; };
  if (mapping.places.empty()) {
    for (const auto& [name, value] : mapping.entries) {
      if (is_key(name)) return &value;
    }
    return nullptr;
  }
  const auto [begin, end] = mapping.places.equal_range(hash_text(key));
  for (auto entry = begin; entry != end; ++entry) {
    const auto& [name, value] = mapping.entries[entry->second];
    if (is_key(name)) return &value;
  }
  return nullptr;
}

Value item(Budget& budget, const Value& value, const Value& index) {
  if (const Mapping* mapping = value.mapping()) {
    if (const Value* found = find(budget, *mapping, index)) return *found;
    return undefined(fmt::format("'dict object' has no attribute {}", to_repr(budget, index)));
  }
  const auto place = index.integer();
  if ((value.sequence() || value.text()) && place) {
    const std::int64_t size = length(budget, value);
    const std::int64_t at = *place < 0 ? *place + size : *place;
    if (at >= 0 && at < size) {
      if (value.sequence()) return value.sequence()->items[static_cast<std::size_t>(at)];
      return std::string(character_at(*value.text(), at));
    }
  }
  if (value.is_none()) return undefined(fmt::format("'None' has no attribute {}", to_repr(budget, index)));
  return undefined(
      fmt::format("'{} object' has no {} {}", type_name(value), place ? "element" : "attribute", to_repr(budget, index)));
}

Value slice(Budget& budget, const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.is_undefined()) fail("{}", value.reason());
  if (const Sequence* sequence = value.sequence()) {
    budget.spend(sequence->items.size() * sizeof(Value));
    List items;
    for (const std::size_t place : slice_places(length(budget, value), start, stop, step)) {
      items.push_back(sequence->items[place]);
    }
    return Value::list(std::move(items), sequence->is_tuple);
  }
  if (value.text()) {
    budget.spend(value.text()->size() * (sizeof(std::string_view) + sizeof(std::size_t)));
    const auto all = characters(*value.text());
    std::string out;
    for (const std::size_t place : slice_places(static_cast<std::int64_t>(all.size()), start, stop, step)) out += all[place];
    return out;
  }
  return undefined(fmt::format("'{}' object cannot be sliced", type_name(value)));
}

}  // namespace calandra::jinja
