#pragma once
// A JSON object read key by key, with the same messages everywhere: where, key, found, expected. Null counts as absent.

#include "base/json.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// A configuration file of a checkpoint, which is a few kB; Error if it has more than 1 MiB.
std::string read_config_text(const std::filesystem::path& path);

/// The JSON object in `text`. Throws Error that names `where`, also for a key that stands twice in one object and for more
/// than 10,000 keys.
Json parse_json_object(const std::string& text, const std::string& where);

/// A value for a message of one line: long and nested ones are only named by kind.
std::string describe(const Json& value);

class KeyReader {
 public:
  /// `where` begins every message, for example the file's path. `object` must be an object and outlive the reader; throws
  /// Error if it is another kind of value.
  KeyReader(const Json& object, std::string where);

  const std::string& where() const { return where_; }

  /// The value, or null if the key is absent or null. Whatever was asked for counts as known.
  const Json* find(const std::string& key);
  bool has(const std::string& key) const { return object_.contains(key); }

  /// Required values within [least, most].
  std::int64_t integer(const std::string& key, std::int64_t least, std::int64_t most);
  double number(const std::string& key, double least, double most);
  bool flag(const std::string& key);

  std::optional<std::int64_t> optional_integer(const std::string& key, std::int64_t least, std::int64_t most);
  std::optional<double> optional_number(const std::string& key, double least, double most);
  std::optional<bool> optional_flag(const std::string& key);
  std::optional<std::string> optional_text(const std::string& key);
  /// An integer or a list of at most 4,096; empty if absent.
  std::vector<std::int64_t> integers(const std::string& key, std::int64_t least, std::int64_t most);

  /// Absent, or exactly what is implemented.
  void expect(const std::string& key, const Json& implemented);
  /// Absent.
  void refuse_value(const std::string& key, const std::string& expected);
  /// Keys without a meaning for inference.
  void ignore(std::initializer_list<const char*> keys);

  /// "where: key: found ..., expected ...", or that it is missing.
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const;
  [[noreturn]] void missing(const std::string& key) const;

  /// Keys with a value that nobody asked for.
  std::vector<std::string> unknown() const;
  /// Throws Error for the first of them.
  void refuse_unknown() const;

 private:
  const Json& object_;
  std::string where_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace calandra
