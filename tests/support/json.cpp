#include "support/json.h"

#include "base/mapped_file.h"

#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

namespace calandra {

Json read_json(const std::filesystem::path& path) { return parse_json(read_text_file(path), path.string()); }

Json json_of(std::string_view text) { return parse_json(text, "JSON of a test"); }

Json with_sorted_keys(const Json& json) {
  if (json.is_array()) {
    Json out = Json::array();
    for (const Json& element : json) out.push_back(with_sorted_keys(element));
    return out;
  }
  if (!json.is_object()) return json;
  std::map<std::string, Json> members;
  for (const auto& [key, value] : json.items()) members[key] = with_sorted_keys(value);
  Json out = Json::object();
  for (auto& [key, value] : members) out[key] = std::move(value);
  return out;
}

std::string brackets(int depth, std::string_view open, std::string_view close) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += "1";
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

Json nested_arrays(int depth) {
  Json json = 1;
  for (int i = 0; i < depth; ++i) {
    Json outer = Json::array();
    outer.push_back(std::move(json));
    json = std::move(outer);
  }
  return json;
}

}  // namespace calandra

namespace nlohmann {

void PrintTo(const ordered_json& json, std::ostream* out) { *out << calandra::dump_json(json); }

}  // namespace nlohmann
