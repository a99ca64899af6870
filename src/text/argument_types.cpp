#include "text/argument_types.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/jinja_syntax.h"

namespace calandra {
namespace {

using Json = nlohmann::ordered_json;

/// Schemas that refer to each other end somewhere.
constexpr int kMaxSchemaDepth = 16;

void add_type_name(JsonTypes& types, const Json& name) {
  if (name == "string") types.string = true;
  if (name == "integer") types.integer = true;
  if (name == "number") types.number = true;
  if (name == "boolean") types.boolean = true;
  if (name == "null") types.null = true;
  if (name == "object") types.object = true;
  if (name == "array") types.array = true;
}

void add_type_of_value(JsonTypes& types, const Json& value) {
  types.string |= value.is_string();
  types.integer |= value.is_number_integer();
  types.number |= value.is_number_float();
  types.boolean |= value.is_boolean();
  types.null |= value.is_null();
  types.object |= value.is_object();
  types.array |= value.is_array();
}

/// "#/$defs/x" inside of `root`; null if there is no such place.
const Json* resolve(const Json& root, const Json& reference) {
  if (!reference.is_string() || !reference.get_ref<const std::string&>().starts_with('#')) return nullptr;
  try {
    const Json::json_pointer pointer(reference.get_ref<const std::string&>().substr(1));
    return root.contains(pointer) ? &root.at(pointer) : nullptr;
  } catch (const nlohmann::json::exception&) {
    return nullptr;  // no pointer at all
  }
}

void add_schema(JsonTypes& types, const Json& schema, const Json& root, int depth) {
  if (!schema.is_object() || depth > kMaxSchemaDepth) return;
  const auto type = schema.find("type");
  if (type != schema.end() && type->is_array()) {
    for (const Json& name : *type) add_type_name(types, name);
  } else if (type != schema.end()) {
    add_type_name(types, *type);
  } else {
    if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
      for (const Json& value : *values) add_type_of_value(types, value);
    }
    if (const auto value = schema.find("const"); value != schema.end()) add_type_of_value(types, *value);
  }
  if (const auto nullable = schema.find("nullable"); nullable != schema.end() && *nullable == true) types.null = true;
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const auto members = schema.find(key);
    if (members == schema.end() || !members->is_array()) continue;
    for (const Json& member : *members) add_schema(types, member, root, depth + 1);
  }
  if (const auto reference = schema.find("$ref"); reference != schema.end()) {
    if (const Json* target = resolve(root, *reference)) add_schema(types, *target, root, depth + 1);
  }
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

/// Only the value's outermost type is needed: nothing inside is kept.
std::optional<Json> parse_outline(std::string_view text) {
  const auto keep = [](int depth, Json::parse_event_t, Json&) { return depth == 0; };
  Json json = Json::parse(text, keep, false);
  if (json.is_discarded()) return std::nullopt;
  return json;
}

bool is_allowed(const Json& value, const JsonTypes& types) {
  return (value.is_number() && types.number) || (value.is_number_integer() && types.integer) ||
         (value.is_boolean() && types.boolean) || (value.is_null() && types.null) || (value.is_object() && types.object) ||
         (value.is_array() && types.array);
}

std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    if (c == 'n' || c == 't' || c == 'r') {
      out += c == 'n' ? '\n' : c == 't' ? '\t' : '\r';
    } else {
      if (c != '"' && c != '\'' && c != '\\' && c != '/') out += '\\';
      out += c;
    }
  }
  return out;
}

/// {'a': True} and the like.
std::optional<std::string> python_literal(std::string_view text) {
  const auto value = jinja::parse_literal(text);
  if (!value) return std::nullopt;
  try {
    std::string json = jinja::to_json(*value);
    if (nlohmann::json::accept(json)) return json;
  } catch (const Error&) {
    // A key that JSON has no form for: then it is text.
  }
  return std::nullopt;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(out, text);
  return out + '"';
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  std::size_t plain = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(text.substr(plain, i - plain));
    plain = i + 1;
    switch (byte) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default: out += fmt::format("\\u{:04x}", byte);
    }
  }
  out.append(text.substr(plain));
}

ToolTypes::ToolTypes(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    if (!tool.is_object()) continue;
    const Json& function = tool.contains("function") && tool["function"].is_object() ? tool["function"] : tool;
    if (!function.contains("name") || !function["name"].is_string()) continue;
    auto& arguments = tools_[function["name"].get<std::string>()];
    for (const char* key : {"parameters", "input_schema"}) {
      if (!function.contains(key) || !function[key].is_object()) continue;
      const Json& schema = function[key];
      const auto properties = schema.find("properties");
      if (properties == schema.end() || !properties->is_object()) continue;
      for (const auto& [name, property] : properties->items()) add_schema(arguments[name], property, schema, 0);
    }
  }
}

JsonTypes ToolTypes::types_of(const std::string& tool, const std::string& argument) const {
  const auto arguments = tools_.find(tool);
  if (arguments == tools_.end()) return {};
  const auto types = arguments->second.find(argument);
  return types == arguments->second.end() ? JsonTypes{} : types->second;
}

std::string typed_value(std::string_view text, const JsonTypes& types) {
  const std::string_view inner = trim(text);
  const auto parsed = parse_outline(inner);
  if (types.string) {
    // A quoted string is its value; anything else stays text unless the schema allows it as something else, too.
    const bool is_value = parsed && (parsed->is_string() ? text.starts_with('"') : is_allowed(*parsed, types));
    return is_value ? std::string(inner) : quoted(text);
  }
  if (parsed) return std::string(inner);
  if (!types.any_but_string()) return quoted(text);
  if (std::string plain = unescape(inner); nlohmann::json::accept(plain)) return plain;
  if (auto literal = python_literal(inner)) return *literal;
  return quoted(text);
}

}  // namespace calandra
