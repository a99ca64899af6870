#pragma once
// What a client of OpenAI's streams puts together.

#include "base/json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// The chunks of a stream that ends with [DONE].
inline std::vector<nlohmann::ordered_json> chunks_of(const std::string& body) {
  std::vector<nlohmann::ordered_json> chunks;
  std::istringstream lines(body);
  std::string data, blank, last;
  while (std::getline(lines, data)) {
    EXPECT_TRUE(data.starts_with("data: ")) << data;
    EXPECT_TRUE(std::getline(lines, blank) && blank.empty());
    last = data.substr(6);
    if (last != "[DONE]") chunks.push_back(parse_json(last, "test"));
  }
  EXPECT_EQ(last, "[DONE]");
  return chunks;
}

}  // namespace calandra
