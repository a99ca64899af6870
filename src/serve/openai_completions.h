#pragma once
// OpenAI's /v1/completions: its JSON on both sides, nothing else. docs/api.md lists the fields.

#include "serve/answer_service.h"
#include "serve/http_message.h"
#include "serve/http_responder.h"

namespace calandra {

/// Throws RequestError before anything is replied.
void openai_completions(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder);

}  // namespace calandra
