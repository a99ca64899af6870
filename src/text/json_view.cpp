#include "text/json_view.h"

#include "base/error.h"

namespace calandra {
namespace {

std::string_view type_name(simdjson::dom::element_type type) {
  using enum simdjson::dom::element_type;
  switch (type) {
    case ARRAY: return "an array";
    case OBJECT: return "an object";
    case STRING: return "a string";
    case BOOL: return "a boolean";
    case NULL_VALUE: return "null";
    default: return "a number";
  }
}

}  // namespace

void JsonView::fail_type(std::string_view expected) const {
  fail("{}: found {}, expected {}", path_, type_name(value_.type()), expected);
}

std::string JsonView::path_of(std::string_view key) const { return fmt::format("{}{}{}", path_, separator_, key); }

std::optional<JsonView> JsonView::find(std::string_view key) const {
  simdjson::dom::element value;
  if (as_object().at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return JsonView(value, path_of(key), ".");
}

JsonView JsonView::at(std::string_view key) const {
  std::optional<JsonView> value = find(key);
  if (!value) fail("{}: missing", path_of(key));
  return *std::move(value);
}

bool JsonView::bool_at(std::string_view key, bool if_missing) const {
  const std::optional<JsonView> value = find(key);
  return value ? value->as_bool() : if_missing;
}

std::string_view JsonView::as_string() const {
  std::string_view text;
  if (value_.get(text) != simdjson::SUCCESS) fail_type("a string");
  return text;
}

bool JsonView::as_bool() const {
  bool flag = false;
  if (value_.get(flag) != simdjson::SUCCESS) fail_type("a boolean");
  return flag;
}

std::int64_t JsonView::as_int() const {
  std::int64_t number = 0;
  if (value_.get(number) != simdjson::SUCCESS) fail_type("an integer");
  return number;
}

double JsonView::as_number() const {
  double number = 0;
  if (value_.get(number) != simdjson::SUCCESS) fail_type("a number");
  return number;
}

simdjson::dom::array JsonView::as_array() const {
  simdjson::dom::array array;
  if (value_.get(array) != simdjson::SUCCESS) fail_type("an array");
  return array;
}

simdjson::dom::object JsonView::as_object() const {
  simdjson::dom::object object;
  if (value_.get(object) != simdjson::SUCCESS) fail_type("an object");
  return object;
}

std::vector<JsonView> JsonView::elements() const {
  std::vector<JsonView> views;
  for (const simdjson::dom::element element : as_array()) {
    views.push_back(JsonView(element, fmt::format("{}[{}]", path_, views.size()), "."));
  }
  return views;
}

}  // namespace calandra
