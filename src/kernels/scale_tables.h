#pragma once
// What scale bytes (e8m0, powers of two) mean, as tables: a call for every group of weights would empty the vector registers.
// Each translation unit has its own: what is made for one instruction set shares nothing with the others.

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace calandra {

/// Scale bytes as numbers; 255 is NaN.
constexpr std::array<float, 256> kE8m0 = [] {
  std::array<float, 256> values{};
  for (std::uint32_t byte = 1; byte < 255; ++byte) values[byte] = std::bit_cast<float>(byte << 23);
  values[0] = std::bit_cast<float>(0x00400000u);  // 2^-127, a subnormal
  values[255] = std::numeric_limits<float>::quiet_NaN();
  return values;
}();

/// The sixteen e2m1 codes times one scale, as the two bytes of their bf16 numbers, which are exact.
struct alignas(32) ScaledE2m1 {
  std::array<std::uint8_t, 16> high{};
  std::array<std::uint8_t, 16> low{};
};

/// By scale byte. 8 KiB, of which a model's scales visit a small part.
constexpr std::array<ScaledE2m1, 256> kScaledE2m1 = [] {
  std::array<ScaledE2m1, 256> tables{};
  for (std::uint32_t scale = 0; scale < 256; ++scale) {
    for (std::uint32_t code = 0; code < 16; ++code) {
      const std::uint32_t magnitude = code & 7, sign = (code & 8) << 12;
      // 1 or 1.5 times a power of two; the smallest code is a half.
      const std::uint32_t mantissa = magnitude == 1 ? 0x80 : 0x80 | (magnitude & 1) << 6;
      const int exponent = static_cast<int>(scale) + (magnitude == 1 ? -1 : static_cast<int>(magnitude >> 1) - 1);
      std::uint32_t word = 0;
      if (scale == 255) {
        word = 0x7FC0;
      } else if (magnitude != 0 && exponent >= 255) {
        word = 0x7F80;
      } else if (magnitude != 0) {
        word = exponent >= 1 ? static_cast<std::uint32_t>(exponent) << 7 | (mantissa & 0x7F) : mantissa >> (1 - exponent);
      }
      tables[scale].high[code] = static_cast<std::uint8_t>((word | sign) >> 8);
      tables[scale].low[code] = static_cast<std::uint8_t>(word);
    }
  }
  return tables;
}();

}  // namespace calandra
