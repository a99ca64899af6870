#pragma once
// Scalar codecs of the number formats in published checkpoints. Decoding is exact; encoding rounds to nearest even.
//   bf16  1-8-7        f16   1-5-10 (IEEE half)
//   e4m3  1-4-3, bias 7, no infinity, largest 448 (0x7E), NaN 0x7F / 0xFF, smallest subnormal 2^-9
//   e8m0  2^(byte - 127), 255 = NaN        e2m1  0 0.5 1 1.5 2 3 4 6, bit 3 = sign

#include <bit>
#include <cstdint>
#include <cstring>

namespace calandra {

inline float bf16_decode(std::uint16_t code) { return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16); }

/// Infinity stays infinity, NaN stays NaN (quiet).
inline std::uint16_t bf16_encode(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/// Nearest bf16 value.

float f16_decode(std::uint16_t code);

float e4m3_decode(std::uint8_t code);
/// Saturates at 448; NaN becomes 0x7F.
std::uint8_t e4m3_encode(float value);

inline constexpr float kE4m3Largest = 448.0f;

/// What numbers up to `largest` are divided by to become codes: largest / 448, 1 if all are zeros, and never zero, or the quotient of the
/// tiniest numbers would be none.
float e4m3_scale(float largest);

float e8m0_decode(std::uint8_t code);

float e2m1_decode(std::uint8_t code);
/// Saturates at 6. The value must not be NaN.
std::uint8_t e2m1_encode(float value);

/// Reads a value at any address: data in mapped files need not be aligned.
template <class T>
T load_unaligned(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof(T));
  return value;
}

}  // namespace calandra
