#include "text/grammar_constraints.h"

#include "base/error.h"
#include "base/json.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace calandra::grammar {
namespace {

constexpr std::size_t kMaxAlternatives = 2'000;
constexpr std::size_t kMaxReferences = 100;  // inside each other, without a member between them
constexpr std::uint32_t kMaxMultiple = 1'000;

/// Keywords that say nothing about which values fit.
bool is_annotation(std::string_view keyword) {
  constexpr std::array<std::string_view, 17> kAnnotations = {
      "$schema",          "$comment",      "$defs",       "definitions", "title",     "description",     "default",
      "example",          "examples",      "deprecated",  "readOnly",    "writeOnly", "contentEncoding", "contentSchema",
      "contentMediaType", "discriminator", "externalDocs"};
  return std::ranges::find(kAnnotations, keyword) != kAnnotations.end() || keyword.starts_with("x-");
}

std::string pointer_token(std::string_view name) {
  std::string token;
  for (const char c : name) {
    if (c == '~') {
      token += "~0";
    } else if (c == '/') {
      token += "~1";
    } else {
      token += c;
    }
  }
  return token;
}

/// %41 to A; nothing for a % that is none of these.
std::optional<std::string> without_percent(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    constexpr std::string_view kDigits = "0123456789abcdef";
    const auto digit = [&](std::size_t at) {
      return at < text.size() ? kDigits.find(static_cast<char>(std::tolower(static_cast<unsigned char>(text[at]))))
                              : std::string_view::npos;
    };
    if (digit(i + 1) == std::string_view::npos || digit(i + 2) == std::string_view::npos) return std::nullopt;
    plain += static_cast<char>(digit(i + 1) * 16 + digit(i + 2));
    i += 2;
  }
  return plain;
}

void tighten(Counts& counts, const Counts& other) {
  counts.min = std::max(counts.min, other.min);
  counts.max = std::min(counts.max, other.max);
}

/// Keeps the bound that allows less. `sign`: 1 for a lower bound, -1 for an upper one.
void tighten(std::optional<NumberLimits::Bound>& bound, const std::optional<NumberLimits::Bound>& other, int sign) {
  if (!other) return;
  const int order = bound ? sign * compare(bound->value, other->value) : -1;
  if (order < 0 || (order == 0 && other->exclusive)) bound = other;
}

/// What a copy costs: some 20 bytes are 1.
std::size_t weight(const Alternative& alternative) {
  std::size_t text_bytes = 0;
  for (const std::string& name : alternative.required) text_bytes += name.size();
  for (const Alternative::Pattern& pattern : alternative.patterns) text_bytes += pattern.text.size() + pattern.where.size();
  return 20 + (alternative.literals ? alternative.literals->size() : 0) + 5 * alternative.required.size() +
         alternative.objects.size() + alternative.arrays.size() + 5 * alternative.patterns.size() + text_bytes / 20;
}

/// Whether both are one value: of objects whatever the order of their keys.
bool is_same(const Json& a, const Json& b) {
  if (a.is_array() && b.is_array()) return std::equal(a.begin(), a.end(), b.begin(), b.end(), is_same);
  if (!a.is_object() || !b.is_object()) return a == b;
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.items()) {
    const auto other = b.find(key);
    if (other == b.end() || !is_same(value, *other)) return false;
  }
  return true;
}

template <class List>
void append(List& list, const List& more) {
  list.insert(list.end(), more.begin(), more.end());
}

}  // namespace

JsonType type_of(const Json& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_number()) return kNumber;
  if (value.is_string()) return kString;
  return value.is_object() ? kObject : kArray;
}

SchemaReader::SchemaReader(const Json& root, std::string_view where, Budget& budget)
    : root_(root), where_(where), budget_(budget) {
  places_[&root] = {nullptr, "#"};
}

std::string SchemaReader::place(const Json& schema) const {
  std::vector<std::string> parts;
  const Place* at = &places_.at(&schema);
  for (; at->parent != nullptr; at = &places_.at(at->parent)) {
    if (at->index) parts.push_back(std::to_string(*at->index));
    if (!at->name.empty()) parts.push_back(pointer_token(at->name));
    parts.push_back(pointer_token(at->keyword));
  }
  std::string pointer(at->keyword);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) pointer += "/" + *part;
  return fmt::format("{}: {}", where_, printable(pointer));
}

void SchemaReader::reject(const Json& schema, std::string_view keyword, std::string_view why) const {
  fail("{}: keyword '{}' {}", place(schema), printable(keyword), why);
}

const Json& SchemaReader::register_child(const Json& child, const Place& place) {
  places_.emplace(&child, place);
  return child;
}

const Json* SchemaReader::find(const Json& schema, std::string_view keyword) {
  const auto found = schema.find(std::string(keyword));
  return found == schema.end() ? nullptr : &register_child(*found, {&schema, keyword});
}

const Json* SchemaReader::element(const Json& schema, std::string_view keyword, std::size_t index) {
  const auto elements = schema.find(std::string(keyword));
  if (elements == schema.end() || !elements->is_array() || index >= elements->size()) return nullptr;
  return &register_child((*elements)[index], {&schema, keyword, {}, index});
}

std::map<std::string_view, const Json*> SchemaReader::members(const Json& schema, std::string_view keyword) {
  std::map<std::string_view, const Json*> result;
  const auto members = schema.find(std::string(keyword));
  if (members == schema.end()) return result;
  for (const auto& [name, member] : members->items()) result.emplace(name, &register_child(member, {&schema, keyword, name}));
  return result;
}

std::vector<Alternative> SchemaReader::alternatives(std::span<const Json* const> schemas) {
  std::vector<Alternative> result(1);
  for (const Json* const schema : schemas) expand(*schema, result);
  return result;
}

/// Adds what `schema` says to each of the alternatives.
void SchemaReader::expand(const Json& schema, std::vector<Alternative>& alternatives) {
  budget_.spend(20 * (1 + alternatives.size()), where_);
  if (schema.is_boolean()) {
    if (!schema.get<bool>()) alternatives.clear();
    return;
  }
  if (!schema.is_object()) fail("{}: found {}, expected a schema", place(schema), schema.type_name());
  if (std::ranges::find(active_, &schema) != active_.end()) fail("{}: refers to itself without a member between", place(schema));
  if (active_.size() >= kMaxReferences) fail("{}: more than {} references in a row", place(schema), kMaxReferences);
  active_.push_back(&schema);
  const Alternative own = read(schema);
  for (Alternative& alternative : alternatives) merge(schema, alternative, own);
  std::erase_if(alternatives, [](const Alternative& alternative) { return alternative.types == 0; });
  if (schema.contains("$ref")) expand(resolve(schema), alternatives);
  if (const auto all = schema.find("allOf"); all != schema.end()) {
    if (!all->is_array() || all->empty()) reject(schema, "allOf", "expected schemas");
    for (std::size_t i = 0; i < all->size(); ++i) expand(*element(schema, "allOf", i), alternatives);
  }
  expand_choice(schema, "anyOf", alternatives);
  expand_choice(schema, "oneOf", alternatives);
  active_.pop_back();
}

void SchemaReader::expand_choice(const Json& schema, std::string_view keyword, std::vector<Alternative>& alternatives) {
  const auto choices = schema.find(std::string(keyword));
  if (choices == schema.end()) return;
  if (!choices->is_array() || choices->empty()) reject(schema, keyword, "expected schemas");
  std::vector<Alternative> all;
  for (std::size_t i = 0; i < choices->size(); ++i) {
    for (const Alternative& alternative : alternatives) budget_.spend(weight(alternative), where_);
    std::vector<Alternative> some = alternatives;
    expand(*element(schema, keyword, i), some);
    if (all.size() + some.size() > kMaxAlternatives)
      reject(schema, keyword, fmt::format("makes more than {} alternatives", kMaxAlternatives));
    std::move(some.begin(), some.end(), std::back_inserter(all));
  }
  alternatives = std::move(all);
}

const Json& SchemaReader::resolve(const Json& schema) {
  const Json& reference = schema.at("$ref");
  if (!reference.is_string()) reject(schema, "$ref", "expected a string");
  const auto& text = reference.get_ref<const std::string&>();
  const std::optional<std::string> pointer = without_percent(text);
  if (!pointer || !pointer->starts_with('#') || (pointer->size() > 1 && (*pointer)[1] != '/')) {
    reject(schema, "$ref", fmt::format("found '{}', expected a place in this schema such as #/$defs/name", printable(text)));
  }
  const Json* target = &root_;
  try {
    const Json::json_pointer path(pointer->substr(1));
    target = root_.contains(path) ? &root_.at(path) : nullptr;
  } catch (const Json::exception&) {
    target = nullptr;  // no pointer at all
  }
  if (target == nullptr) reject(schema, "$ref", fmt::format("there is no {}", printable(text)));
  if (!places_.contains(target)) register_child(*target, {nullptr, *references_.insert(*pointer).first});
  return *target;
}

/// What the keywords of one schema say, without those that lead to other schemas.
Alternative SchemaReader::read(const Json& schema) {
  Alternative result;
  read_types(schema, result);
  for (const auto& [keyword, value] : schema.items()) {
    if (keyword == "type" || keyword == "nullable" || keyword == "$ref" || is_annotation(keyword)) continue;
    if (keyword == "allOf" || keyword == "anyOf" || keyword == "oneOf") continue;
    if (keyword == "$id") {
      if (&schema != &root_) reject(schema, keyword, "is supported at the top only");
    } else if (keyword == "enum") {
      if (!value.is_array()) reject(schema, keyword, "expected an array");
      result.literals.emplace();
      for (const Json& literal : value) result.literals->push_back(&literal);
    } else if (keyword == "const") {
      result.literals = {&value};
    } else if (keyword.ends_with("imum") || keyword.ends_with("Minimum") || keyword.ends_with("Maximum") ||
               keyword == "multipleOf") {
      read_number(schema, keyword, value, result);
    } else if (keyword == "minLength" || keyword == "maxLength" || keyword == "pattern" || keyword == "format") {
      read_string(schema, keyword, value, result);
    } else if (!read_members(schema, keyword, value, result)) {
      reject(schema, keyword, "is not supported");
    }
  }
  if (schema.contains("const") && schema.contains("enum")) reject(schema, "const", "beside enum is not supported");
  budget_.spend(weight(result), where_);
  return result;
}

void SchemaReader::read_types(const Json& schema, Alternative& alternative) {
  const auto nullable = schema.find("nullable");
  if (nullable != schema.end() && !nullable->is_boolean()) reject(schema, "nullable", "expected a boolean");
  const auto type = schema.find("type");
  if (type == schema.end()) {
    if (nullable != schema.end() && nullable->get<bool>()) reject(schema, "nullable", "without type is not supported");
    return;
  }
  alternative.types = 0;
  bool integers = false, numbers = false;
  const auto add = [&](const Json& name) {
    constexpr std::array<std::pair<std::string_view, JsonType>, 7> kNames = {{{"null", kNull},
                                                                              {"boolean", kBoolean},
                                                                              {"integer", kNumber},
                                                                              {"number", kNumber},
                                                                              {"string", kString},
                                                                              {"object", kObject},
                                                                              {"array", kArray}}};
    const auto* const known = std::ranges::find_if(kNames, [&](const auto& of) { return name == of.first; });
    if (known == kNames.end()) reject(schema, "type", fmt::format("found {}, which is no type", printable(dump_json(name))));
    alternative.types |= known->second;
    integers |= known->first == "integer";
    numbers |= known->first == "number";
  };
  if (type->is_array()) {
    for (const Json& name : *type) add(name);
  } else {
    add(*type);
  }
  if (nullable != schema.end() && nullable->get<bool>()) alternative.types |= kNull;
  alternative.number.integer = integers && !numbers;
}

void SchemaReader::read_number(const Json& schema, std::string_view keyword, const Json& value, Alternative& alternative) {
  if (!value.is_number()) reject(schema, keyword, "expected a number");
  NumberLimits& limits = alternative.number;
  if (keyword == "multipleOf") {
    const double factor = value.get<double>();
    if (!(factor >= 1 && factor <= kMaxMultiple && factor == static_cast<double>(static_cast<std::uint32_t>(factor)))) {
      reject(schema, keyword, fmt::format("is supported for integers from 1 to {}", kMaxMultiple));
    }
    limits.multiple_of = static_cast<std::uint32_t>(factor);
    limits.integer = true;
    return;
  }
  const std::string text = value.is_number_float() ? fmt::format("{}", value.get<double>()) : dump_json(value);
  const NumberLimits::Bound bound = {decimal_of(text), keyword.starts_with("exclusive")};
  if (keyword == "minimum" || keyword == "exclusiveMinimum") return tighten(limits.lower, bound, 1);
  if (keyword == "maximum" || keyword == "exclusiveMaximum") return tighten(limits.upper, bound, -1);
  reject(schema, keyword, "is not supported");
}

void SchemaReader::read_string(const Json& schema, std::string_view keyword, const Json& value, Alternative& alternative) {
  if (keyword == "minLength") {
    alternative.characters.min = read_count(schema, keyword, value);
  } else if (keyword == "maxLength") {
    alternative.characters.max = read_count(schema, keyword, value);
  } else {
    if (!value.is_string()) reject(schema, keyword, "expected a string");
    alternative.patterns.push_back({value.get<std::string>(), fmt::format("{}/{}", place(schema), keyword), keyword == "format"});
  }
}

/// False for a keyword that is not known.
bool SchemaReader::read_members(const Json& schema, std::string_view keyword, const Json& value, Alternative& alternative) {
  const auto about_objects = [&] {
    if (alternative.objects.empty()) alternative.objects.push_back(&schema);
    return true;
  };
  const auto about_arrays = [&] {
    if (alternative.arrays.empty()) alternative.arrays.push_back(&schema);
    return true;
  };
  if (keyword == "properties") {
    if (!value.is_object()) reject(schema, keyword, "expected an object");
    return about_objects();
  }
  if (keyword == "additionalProperties") return about_objects();
  if (keyword == "required") {
    if (!value.is_array()) reject(schema, keyword, "expected an array");
    for (const Json& name : value) {
      if (!name.is_string()) reject(schema, keyword, "expected names");
      alternative.required.insert(name.get<std::string>());
    }
    return true;
  }
  if (keyword == "minProperties") return alternative.properties.min = read_count(schema, keyword, value), true;
  if (keyword == "maxProperties") return alternative.properties.max = read_count(schema, keyword, value), true;
  if (keyword == "items" || keyword == "additionalItems") return about_arrays();
  if (keyword == "prefixItems") {
    if (!value.is_array()) reject(schema, keyword, "expected an array");
    if (schema.contains("items") && schema["items"].is_array()) reject(schema, "items", "expected one schema beside prefixItems");
    return about_arrays();
  }
  if (keyword == "minItems") return alternative.items.min = read_count(schema, keyword, value), true;
  if (keyword == "maxItems") return alternative.items.max = read_count(schema, keyword, value), true;
  return keyword == "uniqueItems" && value == false;
}

std::uint32_t SchemaReader::read_count(const Json& schema, std::string_view keyword, const Json& value) const {
  const double count = value.is_number() ? value.get<double>() : -1;
  if (!(count >= 0) || count != static_cast<double>(static_cast<std::uint64_t>(std::min(count, 1e15)))) {
    reject(schema, keyword, "expected a whole number from 0 to 10^15");
  }
  return count >= kNoLimit - 1 ? kNoLimit - 1 : static_cast<std::uint32_t>(count);
}

void SchemaReader::merge(const Json& schema, Alternative& into, const Alternative& other) {
  budget_.spend(weight(other), where_);
  into.types &= other.types;
  if (other.literals) {
    if (into.literals) {
      budget_.spend(into.literals->size() * other.literals->size(), where_);
      std::erase_if(*into.literals, [&](const Json* mine) {
        return std::ranges::none_of(*other.literals, [&](const Json* theirs) { return is_same(*mine, *theirs); });
      });
    } else {
      into.literals = other.literals;
    }
  }
  tighten(into.number.lower, other.number.lower, 1);
  tighten(into.number.upper, other.number.upper, -1);
  into.number.integer |= other.number.integer;
  into.number.multiple_of = std::lcm(into.number.multiple_of, other.number.multiple_of);
  if (into.number.multiple_of > kMaxMultiple)
    reject(schema, "multipleOf", fmt::format("is above {} together with others", kMaxMultiple));
  tighten(into.characters, other.characters);
  tighten(into.properties, other.properties);
  tighten(into.items, other.items);
  append(into.patterns, other.patterns);
  into.required.insert(other.required.begin(), other.required.end());
  append(into.objects, other.objects);
  append(into.arrays, other.arrays);
}

}  // namespace calandra::grammar
