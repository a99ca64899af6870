#pragma once
// What the prefix cache holds, without a word of it: GET /cache, POST /cache/flush. Where API keys are kept apart, of the asking
// key's requests alone: what others do is nobody's business, and neither is whether they have to compute it again.

#include "serve/answer_service.h"
#include "serve/http_message.h"
#include "serve/http_responder.h"

namespace calandra {

/// Boundaries in a reply; those that are worth less are counted.
inline constexpr std::int64_t kMostBoundariesShown = 1000;

// Both return at once: the reply comes between two steps of the engine.
void show_cache(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder);
/// Throws RequestError.
void flush_cache(const ApiContext& context, const HttpRequest& request, const HttpResponder& responder);

}  // namespace calandra
