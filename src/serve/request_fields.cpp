#include "serve/request_fields.h"

#include "checkpoint/key_reader.h"
#include "serve/api_error.h"

#include <algorithm>

namespace calandra {

RequestFields::RequestFields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object_.is_object()) refuse_field(path_, fmt::format("found {}, expected an object", describe(object_)));
}

std::string RequestFields::path_of(std::string_view key) const {
  return path_.empty() ? printable(key) : fmt::format("{}.{}", path_, printable(key));
}

void RequestFields::refuse(const char* key, std::string_view expected) const {
  const auto found = object_.find(key);
  refuse_field(path_of(key), found == object_.end() || found->is_null()
                                 ? fmt::format("is missing, expected {}", expected)
                                 : fmt::format("found {}, expected {}", describe(*found), expected));
}

const RequestFields::Json* RequestFields::find(const char* key) {
  asked_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> RequestFields::boolean(const char* key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::optional<double> RequestFields::number(const char* key, double least, double most) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!(number >= least && number <= most)) refuse(key, fmt::format("a number from {} to {}", least, most));
  return number;
}

std::optional<std::int64_t> RequestFields::integer(const char* key, std::int64_t least, std::int64_t most) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const bool is_integer = value->is_number_integer() && !(value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX);
  if (!is_integer || value->get<std::int64_t>() < least || value->get<std::int64_t>() > most) {
    const bool is_open = most == std::numeric_limits<std::int64_t>::max();
    refuse(key, is_open ? fmt::format("an integer of {} or more", least) : fmt::format("an integer from {} to {}", least, most));
  }
  return value->get<std::int64_t>();
}

std::optional<std::string> RequestFields::text(const char* key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(key, "a text");
  return value->get<std::string>();
}

std::optional<std::string> RequestFields::word(const char* key, std::initializer_list<std::string_view> words) {
  std::optional<std::string> word = text(key);
  if (!word || std::find(words.begin(), words.end(), *word) != words.end()) return word;
  std::string all;
  for (const std::string_view one : words) all += fmt::format("{}\"{}\"", all.empty() ? "" : ", ", one);
  refuse(key, all);
}

const RequestFields::Json* RequestFields::array(const char* key) {
  const Json* value = find(key);
  if (value != nullptr && !value->is_array()) refuse(key, "an array");
  return value;
}

const RequestFields::Json* RequestFields::object(const char* key) {
  const Json* value = find(key);
  if (value != nullptr && !value->is_object()) refuse(key, "an object");
  return value;
}

std::optional<RequestFields> RequestFields::fields(const char* key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return RequestFields(*value, path_of(key));
}

std::string RequestFields::required_text(const char* key) {
  std::optional<std::string> value = text(key);
  if (!value) refuse(key, "a text");
  return *std::move(value);
}

const RequestFields::Json& RequestFields::required_array(const char* key) {
  const Json* value = array(key);
  if (value == nullptr) refuse(key, "an array");
  return *value;
}

void RequestFields::ignore(std::initializer_list<const char*> keys) { asked_.insert(keys.begin(), keys.end()); }

void RequestFields::refuse_if_used(std::initializer_list<const char*> keys, std::string_view why) {
  for (const char* key : keys) {
    const Json* value = find(key);
    if (value == nullptr || *value == false || (value->is_structured() && value->empty())) continue;
    refuse_field(path_of(key), why);
  }
}

void RequestFields::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (!asked_.contains(key)) refuse_field(path_of(key), "no such field");
  }
}

std::string element_path(std::string_view path, std::size_t index) { return fmt::format("{}[{}]", path, index); }

}  // namespace calandra
