#include "checkpoint/key_reader.h"

#include "base/error.h"
#include "base/mapped_file.h"

#include <algorithm>
#include <utility>

namespace calandra {
namespace {

bool is_scalar(const Json& value) { return !value.is_structured(); }

std::string dump(const Json& value) { return printable(dump_json(value)); }

std::optional<std::int64_t> integer_of(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return std::nullopt;
}

std::string integer_range(std::int64_t least, std::int64_t most) { return fmt::format("an integer from {} to {}", least, most); }

}  // namespace

std::string read_config_text(const std::filesystem::path& path) { return read_text_file(path, std::size_t{1} << 20); }

Json parse_json_object(const std::string& text, const std::string& where) {
  constexpr int kMostKeys = 10'000;
  Json value = parse_json_with_unique_keys(text, where, kMostKeys);
  if (!value.is_object()) fail("{}: found {}, expected a JSON object", where, describe(value));
  return value;
}

std::string describe(const Json& value) {
  constexpr std::size_t kLongestList = 8;
  if (is_scalar(value)) return dump(value);
  if (value.is_object()) return "an object";
  if (value.size() <= kLongestList && std::all_of(value.begin(), value.end(), is_scalar)) return dump(value);
  return fmt::format("a list of {} values", value.size());
}

KeyReader::KeyReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) fail("{}: found {}, expected an object", where_, describe(object));
}

const Json* KeyReader::find(const std::string& key) {
  known_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void KeyReader::refuse(const std::string& key, const std::string& expected) const {
  const auto found = object_.find(key);
  if (found == object_.end()) missing(key);
  fail("{}: {}: found {}, expected {}", where_, key, describe(*found), expected);
}

void KeyReader::missing(const std::string& key) const { fail("{}: {} is missing", where_, key); }

std::int64_t KeyReader::integer(const std::string& key, std::int64_t least, std::int64_t most) {
  const std::optional<std::int64_t> value = optional_integer(key, least, most);
  if (!value) missing(key);
  return *value;
}

double KeyReader::number(const std::string& key, double least, double most) {
  const std::optional<double> value = optional_number(key, least, most);
  if (!value) missing(key);
  return *value;
}

bool KeyReader::flag(const std::string& key) {
  const std::optional<bool> value = optional_flag(key);
  if (!value) missing(key);
  return *value;
}

std::optional<std::int64_t> KeyReader::optional_integer(const std::string& key, std::int64_t least, std::int64_t most) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::int64_t> number = integer_of(*value);
  if (!number || *number < least || *number > most) refuse(key, integer_range(least, most));
  return number;
}

std::optional<double> KeyReader::optional_number(const std::string& key, double least, double most) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : 0;
  if (!value->is_number() || !(number >= least && number <= most)) {
    refuse(key, fmt::format("a number from {:g} to {:g}", least, most));
  }
  return number;
}

std::optional<bool> KeyReader::optional_flag(const std::string& key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> KeyReader::optional_text(const std::string& key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(key, "a string");
  return value->get<std::string>();
}

std::vector<std::int64_t> KeyReader::integers(const std::string& key, std::int64_t least, std::int64_t most) {
  constexpr std::size_t kMostOfThem = 4096;  // whoever looks each up in a list of them stays quick
  const Json* value = find(key);
  if (value == nullptr) return {};
  std::vector<std::int64_t> numbers;
  const auto add = [&](const Json& element) {
    const std::optional<std::int64_t> number = integer_of(element);
    if (!number || *number < least || *number > most) refuse(key, integer_range(least, most) + " or a list of them");
    numbers.push_back(*number);
  };
  if (value->is_array()) {
    if (value->size() > kMostOfThem) refuse(key, fmt::format("at most {} of them", kMostOfThem));
    for (const Json& element : *value) add(element);
  } else {
    add(*value);
  }
  return numbers;
}

void KeyReader::expect(const std::string& key, const Json& implemented) {
  const Json* value = find(key);
  if (value != nullptr && *value != implemented) refuse(key, describe(implemented) + ", the only value implemented");
}

void KeyReader::refuse_value(const std::string& key, const std::string& expected) {
  if (find(key) != nullptr) refuse(key, expected);
}

void KeyReader::ignore(std::initializer_list<const char*> keys) { known_.insert(keys.begin(), keys.end()); }

std::vector<std::string> KeyReader::unknown() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items()) {
    if (!value.is_null() && !known_.contains(key)) keys.push_back(key);
  }
  return keys;
}

void KeyReader::refuse_unknown() const {
  for (const std::string& key : unknown()) {
    fail("{}: {}: found {}, a key that is not implemented", where_, printable(key), describe(object_.at(key)));
  }
}

}  // namespace calandra
