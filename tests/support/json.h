#pragma once
// JSON in tests: from files and literals, compared, and printed where a comparison fails.

#include "base/json.h"

#include <filesystem>
#include <iosfwd>
#include <string>
#include <string_view>

namespace calandra {

/// The JSON in a file.
Json read_json(const std::filesystem::path& path);

/// The JSON that a test writes out.
Json json_of(std::string_view text);

/// The same with the keys of each object in alphabetical order, to compare where their order is of no matter.
Json with_sorted_keys(const Json& json);

/// "[[1]]" for a depth of 2.
std::string brackets(int depth, std::string_view open = "[", std::string_view close = "]");

/// What brackets() says, of any depth: made without recursion.
Json nested_arrays(int depth);

}  // namespace calandra

namespace nlohmann {

/// For GoogleTest, which looks here: or else each test would compile nlohmann's printer.
void PrintTo(const ordered_json& json, std::ostream* out);

}  // namespace nlohmann
