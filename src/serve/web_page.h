#pragma once
// The page that a browser shows at "/": a chat, and what the server is doing. It is a client of the APIs like any other, with the
// key that its user types in; the page itself says nothing of the model and needs none.

#include "serve/http_message.h"

#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// The paths that web_page() knows: "/" and one for each file it needs.
std::vector<std::string> web_page_paths();
bool is_web_page(std::string_view path);

/// The file at `request.path`, which must be one of these, or 304 if the client says that it has it.
HttpResponse web_page(const HttpRequest& request);

}  // namespace calandra
