#pragma once
// Whole-number arithmetic that sizes are made of.

#include <cstdint>

namespace calandra {

/// a / b rounded up, for a >= 0 and b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace calandra
