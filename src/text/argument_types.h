#pragma once
// Gives the text of a tool call's argument the type that the tool's JSON Schema declares for it (docs/model.md 8.3).

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace calandra {

/// The JSON types that a schema allows; none of them where it says nothing.
struct JsonTypes {
  bool string = false, integer = false, number = false, boolean = false, null = false, object = false, array = false;

  bool any_but_string() const { return integer || number || boolean || null || object || array; }
  bool only_string() const { return string && !any_but_string(); }
};

/// The argument types of the tools of a request.
class ToolTypes {
 public:
  /// `tools`: an array of {type, function: {name, parameters}} or of {name, parameters | input_schema}; or null. Whatever is
  /// malformed declares nothing. Throws Error for tools that are nested too deep.
  explicit ToolTypes(const nlohmann::ordered_json& tools);

  bool empty() const { return tools_.empty(); }
  JsonTypes types_of(const std::string& tool, const std::string& argument) const;

 private:
  std::map<std::string, std::map<std::string, JsonTypes>> tools_;
};

/// The value as JSON text. Always valid JSON if the text is valid UTF-8.
std::string typed_value(std::string_view text, const JsonTypes& types);

/// Appends text as it stands between the quotes of a JSON string. Bytes from 0x80 on are passed as they are.
void append_json_escaped(std::string& out, std::string_view text);

}  // namespace calandra
