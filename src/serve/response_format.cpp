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

/// The object that has a schema: what it is called and described as changes nothing, and every schema is kept to strictly.
std::shared_ptr<const Grammar> read_schema(RequestFields& holder, const ServedModel& model) {
  holder.ignore({"name", "description", "strict"});
  const RequestFields::Json* schema = holder.find("schema");
  if (schema == nullptr) holder.refuse("schema", "a JSON Schema");
  return compile(model, GrammarKind::JsonSchema, dump_json(*schema), holder.path_of("schema"));
}

}  // namespace

std::shared_ptr<const Grammar> read_text_format(RequestFields& format, const ServedModel& model) {
  const std::string type = format.word("type", {"text", "json_object", "json_schema"}).value_or("text");
  std::shared_ptr<const Grammar> grammar;
  if (type == "json_object") grammar = compile(model, GrammarKind::JsonObject, "", format.path_of("type"));
  if (type == "json_schema") grammar = read_schema(format, model);
  format.finish();
  return grammar;
}

std::shared_ptr<const Grammar> read_response_format(RequestFields& fields, const ServedModel& model) {
  std::shared_ptr<const Grammar> grammar;
  if (std::optional<RequestFields> format = fields.fields("response_format")) {
    const std::string type = format->word("type", {"text", "json_object", "json_schema"}).value_or("text");
    if (type == "json_object") grammar = compile(model, GrammarKind::JsonObject, "", "response_format");
    if (type == "json_schema") {
      std::optional<RequestFields> holder = format->fields("json_schema");
      if (!holder) format->refuse("json_schema", "an object with a \"schema\"");
      grammar = read_schema(*holder, model);
      holder->finish();
    }
    format->finish();
  }
  if (const std::optional<std::string> text = fields.text("grammar")) {
    if (grammar) fields.refuse("grammar", "none beside a response_format");
    grammar = compile(model, GrammarKind::Ebnf, *text, fields.path_of("grammar"));
  }
  return grammar;
}

}  // namespace calandra
