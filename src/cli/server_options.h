#pragma once
// A server that the command line names, for the commands that ask one.

#include "loadtest/load_options.h"

#include <cstdint>
#include <optional>
#include <string>

namespace calandra {

/// `given` with url, seed and, unless it has one, the key of CALANDRA_API_KEY. Throws UsageError for what cannot be sent.
LoadOptions server_options(const LoadOptions& given, const std::string& url, const std::optional<std::uint64_t>& seed);

}  // namespace calandra
