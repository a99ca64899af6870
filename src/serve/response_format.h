#pragma once
// What constrains an answer's text: "response_format" and "grammar" of OpenAI's APIs and of those that followed them, and the same under
// "text" of /v1/responses.

#include "serve/answer_service.h"
#include "serve/request_fields.h"
#include "text/grammar.h"

#include <memory>

namespace calandra {

/// The grammar that either of the two asks for; null: any text. Compiled now, so that an error can say what it is about.
std::shared_ptr<const Grammar> read_response_format(RequestFields& fields, const ServedModel& model);

/// Of {"type": "text" | "json_object" | "json_schema", ...}, the schema in the object itself (`text.format` of /v1/responses).
std::shared_ptr<const Grammar> read_text_format(RequestFields& format, const ServedModel& model);

}  // namespace calandra
