#pragma once
// What a server's JSON has, which may be anything: a key that is absent or null, or has a value of another kind, is not there.

#include "base/json.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace calandra {

/// Null where it is not there, or `json` is no object.
const Json* member(const Json& json, std::string_view key);

/// Nothing where no count can be: figures are sums of these.
std::optional<std::int64_t> count_in(const Json& json, std::string_view key);

/// Empty if there is none.
std::string text_in(const Json& json, std::string_view key);

}  // namespace calandra
