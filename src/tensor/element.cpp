#include "tensor/element.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace calandra {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr std::uint32_t kSignBit = 0x80000000u;

/// 2^exponent for exponents of normal floats.
constexpr float power_of_two(int exponent) { return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23); }

constexpr float e4m3_value(unsigned code) {
  const unsigned exponent = (code >> 3) & 15u;
  const unsigned mantissa = code & 7u;
  if (exponent == 15 && mantissa == 7) return kNan;
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * power_of_two(-9)
                                        : static_cast<float>(8 + mantissa) * power_of_two(static_cast<int>(exponent) - 10);
  return (code & 0x80u) != 0 ? -magnitude : magnitude;
}

constexpr std::array<float, 256> e4m3_table() {
  std::array<float, 256> table{};
  for (unsigned code = 0; code < table.size(); ++code) table[code] = e4m3_value(code);
  return table;
}

constexpr std::array<float, 256> kE4m3 = e4m3_table();
constexpr std::array<float, 16> kE2m1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/// Code of |value| in a format with `mantissa_bits` and `bias`, to nearest even. The result may lie beyond the format's
/// largest code. Above the subnormals the float's own bits are rounded; below, adding a number whose last bit weighs one
/// subnormal step makes the processor round.
std::uint32_t round_magnitude(float magnitude, int mantissa_bits, int bias) {
  const int smallest_normal = 1 - bias;
  if (magnitude < power_of_two(smallest_normal)) {
    const float anchor = power_of_two(smallest_normal - mantissa_bits + 23);
    return std::bit_cast<std::uint32_t>(magnitude + anchor) - std::bit_cast<std::uint32_t>(anchor);
  }
  const auto dropped = static_cast<unsigned>(23 - mantissa_bits);
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const std::uint32_t half = (1u << (dropped - 1)) - 1u + ((bits >> dropped) & 1u);
  return ((bits + half) >> dropped) - (static_cast<std::uint32_t>(127 - bias) << mantissa_bits);
}

}  // namespace

float f16_decode(std::uint16_t code) {
  const std::uint32_t sign = (code & 0x8000u) << 16;
  const std::uint32_t magnitude = code & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // The exponent is 112 too small after the shift; a product with 2^112 corrects it, for subnormals too.
  const float value = std::bit_cast<float>(magnitude << 13) * power_of_two(112);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

float e4m3_decode(std::uint8_t code) { return kE4m3[code]; }

float e4m3_scale(float largest) {
  if (!(largest > 0.0f)) return 1.0f;
  return std::max(largest / kE4m3Largest, std::numeric_limits<float>::denorm_min());
}

std::uint8_t e4m3_encode(float value) {
  if (std::isnan(value)) return 0x7F;
  const std::uint32_t sign = (std::bit_cast<std::uint32_t>(value) & kSignBit) >> 24;
  const float magnitude = std::min(std::fabs(value), kE4m3Largest);
  return static_cast<std::uint8_t>(round_magnitude(magnitude, 3, 7) | sign);
}

float e8m0_decode(std::uint8_t code) {
  if (code == 255) return kNan;
  if (code == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127 is a subnormal float
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 23);
}

float e2m1_decode(std::uint8_t code) { return kE2m1[code & 15u]; }

std::uint8_t e2m1_encode(float value) {
  const std::uint32_t sign = (std::bit_cast<std::uint32_t>(value) & kSignBit) >> 28;
  const float magnitude = std::min(std::fabs(value), 6.0f);
  return static_cast<std::uint8_t>(round_magnitude(magnitude, 1, 1) | sign);
}

}  // namespace calandra
