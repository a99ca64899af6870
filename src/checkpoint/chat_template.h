#pragma once
// The family's chat template as a Jinja file, for checkpoints that Calandra writes itself.

#include <string_view>

namespace calandra {

/// Content of chat_template.jinja; the same text as models/austen-5m/chat_template.jinja.
std::string_view ling_chat_template();

}  // namespace calandra
