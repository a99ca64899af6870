#include "cli/server_options.h"

#include "base/json.h"
#include "cli/commands.h"
#include "cli/settings.h"

#include <nlohmann/json.hpp>

#include <cstdlib>

namespace calandra {

LoadOptions server_options(const LoadOptions& given, const std::string& url, const std::optional<std::uint64_t>& seed) {
  LoadOptions server = given;
  server.url = parse_server_url(url);
  server.seed = seed ? *seed : random_seed();
  if (server.api_key.empty()) {
    if (const char* key = std::getenv("CALANDRA_API_KEY")) server.api_key = key;
  }
  if (server.api_key.find_first_of("\r\n") != std::string::npos) throw UsageError("--api-key: found a line break");
  if (!server.extra_fields.empty() && !parse_json(server.extra_fields, "--extra").is_object())
    throw UsageError(fmt::format("--extra {}: expected a JSON object", server.extra_fields));
  return server;
}

}  // namespace calandra
