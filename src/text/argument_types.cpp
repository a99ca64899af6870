#include "text/argument_types.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/jinja_syntax.h"

namespace calandra {
namespace {

/// What is looked at for one argument, and for all of them, which may refer to the same parts. Each part of a schema is visited once for an
/// argument, but `enum`s and the parts together are long. What is beyond says nothing.
constexpr std::size_t kMaxSchemaParts = 10'000, kMaxPartsOfAll = 1'000'000;

/// Enough for some megabytes of a Python literal.
constexpr std::uint64_t kMaxLiteralWork = std::uint64_t{1} << 30;

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
  } catch (const Json::exception&) {
    return nullptr;  // no pointer at all
  }
}

/// The types that a schema allows, and those of the schemas it refers to, which may lead back to it.
class SchemaReader {
 public:
  /// Takes what it looks at from `left`.
  SchemaReader(const Json& root, std::size_t& left) : root_(root), left_(left) {}

  JsonTypes read(const Json& schema) {
    add_part(schema);
    std::size_t num_read = 0;
    while (num_read < parts_.size()) read_part(*parts_[num_read++]);  // which adds parts
    return types_;
  }

 private:
  /// True while something may still be looked at.
  bool take() {
    if (left_ == 0 || num_taken_ == kMaxSchemaParts) return false;
    --left_;
    ++num_taken_;
    return true;
  }

  void add_part(const Json& part) {
    if (part.is_object() && take() && known_.insert(&part).second) parts_.push_back(&part);
  }

  template <class Use>
  void for_each(const Json& list, Use&& use) {
    for (const Json& element : list) {
      if (!take()) return;
      use(element);
    }
  }

  void read_part(const Json& schema) {
    const auto type = schema.find("type");
    if (type != schema.end() && type->is_array()) {
      for_each(*type, [&](const Json& name) { add_type_name(types_, name); });
    } else if (type != schema.end()) {
      add_type_name(types_, *type);
    } else {
      if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
        for_each(*values, [&](const Json& value) { add_type_of_value(types_, value); });
      }
      if (const auto value = schema.find("const"); value != schema.end()) add_type_of_value(types_, *value);
    }
    if (const auto nullable = schema.find("nullable"); nullable != schema.end() && *nullable == true) types_.null = true;
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      const auto members = schema.find(key);
      if (members != schema.end() && members->is_array()) for_each(*members, [&](const Json& member) { add_part(member); });
    }
    if (const auto reference = schema.find("$ref"); reference != schema.end()) {
      if (const Json* target = resolve(root_, *reference)) add_part(*target);
    }
  }

  const Json& root_;
  std::size_t& left_;
  JsonTypes types_;
  std::vector<const Json*> parts_;
  std::set<const Json*> known_;
  std::size_t num_taken_ = 0;
};

bool is_allowed(const Json& value, std::string_view text, const JsonTypes& types) {
  // An integer beyond 64 bits is read as a float.
  const bool is_integer = value.is_number() && text.find_first_of(".eE") == std::string_view::npos;
  return (value.is_number() && types.number) || (is_integer && types.integer) || (value.is_boolean() && types.boolean) ||
         (value.is_null() && types.null) || (value.is_object() && types.object) || (value.is_array() && types.array);
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
  jinja::Budget budget(kMaxLiteralWork);
  const auto value = jinja::parse_literal(budget, text);
  if (!value) return std::nullopt;
  try {
    std::string json = jinja::to_json(budget, *value);
    if (is_json(json)) return json;
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
  check_nesting(tools, "tools");
  if (!tools.is_array()) return;
  std::size_t left = kMaxPartsOfAll;
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
      for (const auto& [name, property] : properties->items()) arguments[name] = SchemaReader(schema, left).read(property);
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
  const std::string_view inner = trim_json_space(text);
  const auto parsed = try_parse_json_outline(inner);
  if (types.string) {
    // A quoted string is its value; anything else stays text unless the schema allows it as something else, too.
    const bool is_value = parsed && (parsed->is_string() ? text.starts_with('"') : is_allowed(*parsed, inner, types));
    return is_value ? std::string(inner) : quoted(text);
  }
  if (parsed) return std::string(inner);
  if (!types.any_but_string()) return quoted(text);
  if (std::string plain = unescape(inner); is_json(plain)) return plain;
  if (auto literal = python_literal(inner)) return *literal;
  return quoted(text);
}

}  // namespace calandra
