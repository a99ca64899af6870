#include "serve/model_endpoints.h"

#include "base/json.h"
#include "serve/api_error.h"
#include "serve/chat_request.h"
#include "serve/dates.h"
#include "serve/json_body.h"
#include "serve/openai_shapes.h"
#include "text/detokenizer.h"
#include "text/unicode.h"

#include <algorithm>

namespace calandra {
namespace {

Json model_json(const ServedModel& model, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"type", "model"},
          {"display_name", name},
          {"created", model.created},
          {"created_at", utc_text(model.created)},
          {"owned_by", "calandra"},
          {"max_model_len", model.context}};
}

/// Nothing may be left over: the conversation is all that there is.
std::string rendered(const ServedModel& model, RequestFields& fields) {
  const ChatInput input = read_openai_chat(fields);
  fields.finish();
  return render_chat(model, input).text;
}

}  // namespace

HttpResponse list_models(const ServedModel& model) {
  Json list = Json::array();
  for (const std::string& name : model.names) list.push_back(model_json(model, name));
  return json_response(200, {{"object", "list"},
                             {"data", std::move(list)},
                             {"has_more", false},
                             {"first_id", model.names.front()},
                             {"last_id", model.names.back()}});
}

HttpResponse show_model(const ServedModel& model, std::string_view name) {
  const auto found = std::find(model.names.begin(), model.names.end(), name);
  if (found != model.names.end()) return json_response(200, model_json(model, *found));
  return openai_error(model_not_found(name, model));
}

HttpResponse tokenize(const ServedModel& model, const HttpRequest& request) {
  const Json body = parse_body(request);
  RequestFields fields(body);
  check_model(fields, model);
  const bool with_texts = fields.boolean("return_token_strs").value_or(false);
  fields.ignore({"add_special_tokens"});  // a tokenizer here never adds any
  std::optional<std::string> text = fields.text("prompt");
  if (!text && fields.find("messages") == nullptr) fields.refuse("prompt", "a text, or \"messages\"");
  if (text) {
    fields.finish();
  } else {
    text = rendered(model, fields);
  }
  const std::vector<std::int32_t> ids = model.tokenizer->encode(*text);
  Json reply = {{"count", ids.size()}, {"max_model_len", model.context}, {"tokens", ids}};
  if (with_texts) {
    Json texts = Json::array();
    for (const std::int32_t id : ids) texts.push_back(lossy_utf8(model.tokenizer->token_bytes(id)));
    reply["token_strs"] = std::move(texts);
  }
  return json_response(200, reply);
}

HttpResponse detokenize_tokens(const ServedModel& model, const HttpRequest& request) {
  const Json body = parse_body(request);
  RequestFields fields(body);
  check_model(fields, model);
  const Json& tokens = fields.required_array("tokens");
  fields.finish();
  std::vector<std::int32_t> ids;
  ids.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) ids.push_back(read_token_id(tokens[i], element_path("tokens", i), model));
  return json_response(200, {{"prompt", detokenize(*model.tokenizer, ids)}});
}

HttpResponse apply_template(const ServedModel& model, const HttpRequest& request) {
  const Json body = parse_body(request);
  RequestFields fields(body);
  check_model(fields, model);
  return json_response(200, {{"prompt", rendered(model, fields)}});
}

}  // namespace calandra
