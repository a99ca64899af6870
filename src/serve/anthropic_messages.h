#pragma once
// Anthropic's /v1/messages and /v1/messages/count_tokens: their JSON on both sides, nothing else. docs/api.md lists the fields.

#include "serve/answer_service.h"
#include "serve/http_message.h"
#include "serve/http_responder.h"

namespace calandra {

/// Both throw RequestError before anything is replied.
void anthropic_messages(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder);
void anthropic_count_tokens(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder);

}  // namespace calandra
