#include "serve/response_format.h"

#include "base/error.h"
#include "base/json.h"
#include "serve/api_error.h"
#include "serve/grammar_cache.h"
#include "serve/json_body.h"

#include <string>
#include <utility>

namespace calandra {
namespace {

using GrammarKind = GrammarCache::Kind;

std::shared_ptr<const Grammar> compile(const ServedModel& model, GrammarKind kind, const std::string& text,
                                       const std::string& field) {
  if (model.grammars == nullptr) refuse_field(field, "this server does not constrain output");
  try {
    return model.grammars->find_or_compile(kind, text, field);
  } catch (const Error& error) {
    throw RequestError({.status = 400, .message = error.what(), .field = field});
  }
}

/// What an object is called and described as changes nothing, and every schema is kept to strictly.
std::shared_ptr<const Grammar> read_schema(RequestFields& holder, const ServedModel& model) {
  holder.ignore({"name", "description", "strict"});
  const Json* schema = holder.find("schema");
  if (schema == nullptr) holder.refuse("schema", "a JSON Schema");
  return compile(model, GrammarKind::JsonSchema, dump_json(*schema), holder.path_of("schema"));
}

/// Of the type that the format has; `read_schema_of` reads what a "json_schema" is.
template <class ReadSchema>
std::shared_ptr<const Grammar> read_format(RequestFields& format, const ServedModel& model, const std::string& object_field,
                                           ReadSchema read_schema_of) {
  const std::string type = format.word("type", {"text", "json_object", "json_schema"}).value_or("text");
  std::shared_ptr<const Grammar> grammar;
  if (type == "json_object") grammar = compile(model, GrammarKind::JsonObject, "", object_field);
  if (type == "json_schema") grammar = read_schema_of();
  format.finish();
  return grammar;
}

}  // namespace

std::shared_ptr<const Grammar> read_text_format(RequestFields& format, const ServedModel& model) {
  return read_format(format, model, format.path_of("type"), [&] { return read_schema(format, model); });
}

std::shared_ptr<const Grammar> read_response_format(RequestFields& fields, const ServedModel& model) {
  std::shared_ptr<const Grammar> grammar;
  if (std::optional<RequestFields> format = fields.fields("response_format")) {
    grammar = read_format(*format, model, "response_format", [&] {
      std::optional<RequestFields> holder = format->fields("json_schema");
      if (!holder) format->refuse("json_schema", "an object with a \"schema\"");
      std::shared_ptr<const Grammar> of_schema = read_schema(*holder, model);
      holder->finish();
      return of_schema;
    });
  }
  if (const std::optional<std::string> text = fields.text("grammar")) {
    if (grammar) fields.refuse("grammar", "none beside a response_format");
    grammar = compile(model, GrammarKind::Ebnf, *text, fields.path_of("grammar"));
  }
  return grammar;
}

}  // namespace calandra
