#pragma once
// What a server says of its model, and what it does with texts and tokens without an answer: /v1/models, /tokenize, /detokenize,
// /apply-template.

#include "serve/answer_service.h"
#include "serve/http_message.h"

#include <string_view>

namespace calandra {

/// The list, with the fields of OpenAI's and of Anthropic's API.
HttpResponse list_models(const ServedModel& model);
/// One of the names it is served by; 404 for all others.
HttpResponse show_model(const ServedModel& model, std::string_view name);

// These throw RequestError.

/// {"prompt"} or a conversation as for /v1/chat/completions to {"tokens", "count", "max_model_len"}, and "token_strs" on request.
HttpResponse tokenize(const ServedModel& model, const HttpRequest& request);
/// {"tokens"} to {"prompt"}
HttpResponse detokenize_tokens(const ServedModel& model, const HttpRequest& request);
/// A conversation to {"prompt"}
HttpResponse apply_template(const ServedModel& model, const HttpRequest& request);

}  // namespace calandra
