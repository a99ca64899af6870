#pragma once
// Reads a parsed JSON document with errors that name the file and the key. A view: the simdjson document must outlive it.

#include <simdjson.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra {

class JsonView {
 public:
  /// `file` starts every error: "FILE: key.key[index]: ...".
  JsonView(simdjson::dom::element document, std::string file) : JsonView(document, std::move(file), ": ") {}

  const std::string& path() const { return path_; }

  /// The member `key`; none if it is missing or null. Throws Error if this is no object.
  std::optional<JsonView> find(std::string_view key) const;
  /// The same, but throws Error if there is none.
  JsonView at(std::string_view key) const;

  std::string_view string_at(std::string_view key) const { return at(key).as_string(); }
  bool bool_at(std::string_view key, bool if_missing) const;

  // Each throws Error if the value is of another type.
  std::string_view as_string() const;
  bool as_bool() const;
  std::int64_t as_int() const;
  double as_number() const;
  simdjson::dom::array as_array() const;
  simdjson::dom::object as_object() const;
  std::vector<JsonView> elements() const;

 private:
  JsonView(simdjson::dom::element value, std::string path, std::string_view separator)
      : value_(value), path_(std::move(path)), separator_(separator) {}

  [[noreturn]] void fail_type(std::string_view expected) const;
  std::string path_of(std::string_view key) const;

  simdjson::dom::element value_;
  std::string path_;
  std::string_view separator_;  // between path_ and a key
};

}  // namespace calandra
