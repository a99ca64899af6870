#pragma once
// Reads an object of a request's JSON field by field, and remembers which were asked for: what nobody asked for is no field of the API. All
// errors are RequestErrors that carry the field. Absent and null are the same.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace calandra {

class RequestFields {
 public:
  using Json = nlohmann::ordered_json;

  /// `path` is where the object stands in the request: empty, "stream_options", "messages[0].content[1]". Refused unless it is an
  /// object. The JSON must outlive this.
  explicit RequestFields(const Json& object, std::string path = {});

  /// Null if absent or null.
  const Json* find(const char* key);

  std::optional<bool> boolean(const char* key);
  std::optional<double> number(const char* key, double least, double most);
  std::optional<std::int64_t> integer(const char* key, std::int64_t least,
                                      std::int64_t most = std::numeric_limits<std::int64_t>::max());
  std::optional<std::string> text(const char* key);
  /// One of some words.
  std::optional<std::string> word(const char* key, std::initializer_list<std::string_view> words);
  const Json* array(const char* key);
  const Json* object(const char* key);
  /// The fields of an object; absent: none.
  std::optional<RequestFields> fields(const char* key);

  std::string required_text(const char* key);
  const Json& required_array(const char* key);

  /// Fields that the API has and that change nothing here.
  void ignore(std::initializer_list<const char*> keys);
  /// Fields that the API has and that this server refuses rather than ignores, unless absent, null, false or empty.
  void refuse_if_used(std::initializer_list<const char*> keys, std::string_view why);
  /// Refuses the first field that nobody has asked for.
  void finish() const;

  /// "messages[0].content"
  std::string path_of(std::string_view key) const;
  /// "temperature: found "hot", expected a number from 0 to 2"
  [[noreturn]] void refuse(const char* key, std::string_view expected) const;

 private:
  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> asked_;
};

/// "messages[3]"
std::string element_path(std::string_view path, std::size_t index);

}  // namespace calandra
