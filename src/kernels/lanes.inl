// What every kernel family needs on top of a backend's lanes: ragged ends, bf16, and the functions of one variable. All are
// built from the backend's operations alone, in one order, so that every instruction set gives the same bits.

#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace calandra {
namespace {

/// Calls body(first, count) for runs of 16 of n items, then for the rest.
template <class Body>
inline void for_runs(std::int64_t n, Body body) {
  std::int64_t first = 0;
  for (; n - first >= 16; first += 16) body(first, std::int64_t{16});
  if (first < n) body(first, n - first);
}

/// `count` floats, zeros in the other lanes. Touches no more memory than that.
inline Lanes load_some(const float* address, std::int64_t count) {
  if (count >= 16) return load(address);
  float padded[16] = {};
  std::memcpy(padded, address, static_cast<std::size_t>(count) * sizeof(float));
  return load(padded);
}

inline void store_some(float* address, Lanes x, std::int64_t count) {
  if (count >= 16) return store(address, x);
  float padded[16];
  store(padded, x);
  std::memcpy(address, padded, static_cast<std::size_t>(count) * sizeof(float));
}

inline Lanes load_bf16(const void* address) { return lanes_of(shift_left<16>(load_halves(address))); }

/// Nearest bf16 (ties to even) in the upper half of each lane; NaN stays NaN.
inline Words bf16_bits(Lanes x) {
  const Words bits = bits_of(x);
  const Words last = shift_right<16>(bits) & broadcast_word(1);
  const Words rounded = bits + (broadcast_word(0x7FFF) + last);
  const Words quiet = bits | broadcast_word(0x400000);
  return bits_of(select(is_nan(x), lanes_of(quiet), lanes_of(rounded))) & broadcast_word(0xFFFF0000);
}

inline Lanes absolute(Lanes x) { return lanes_of(bits_of(x) & broadcast_word(0x7FFFFFFF)); }
inline Lanes negative(Lanes x) { return zero_lanes() - x; }

/// 2^n for integers -126 <= n <= 127 in two's complement.
inline Lanes power_of_two(Words n) { return lanes_of(shift_left<23>(n + broadcast_word(127))); }

/// e^x within 1 ulp; subnormal results are rounded once, 0 below about -104, infinity above 88.73. NaN stays NaN.
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial (least maximum error, 1e-8); the product with 2^n in two
/// steps, as n reaches beyond the exponents of normal numbers.
inline Lanes exp(Lanes x) {
  const Lanes limited = max(broadcast(-105.0f), min(broadcast(89.0f), x));
  const Lanes anchor = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, found in the low bits
  const Lanes shifted = fma(limited, broadcast(1.44269502f), anchor);
  const Lanes n = shifted - anchor;
  Lanes r = fma(n, broadcast(-0.693147182f), limited);
  r = fma(n, broadcast(1.90465421e-09f), r);  // ln 2 = 0.693147182 - 1.90465421e-09
  Lanes q = fma(broadcast(0.00139337534f), r, broadcast(0.00836324878f));
  q = fma(q, r, broadcast(0.0416664630f));
  q = fma(q, r, broadcast(0.166665763f));
  q = fma(q, r, broadcast(0.5f));
  const Lanes power = fma(r * r, q, r) + broadcast(1.0f);
  const Words exponent = bits_of(shifted) - bits_of(anchor);
  const Words half = shift_right_signed<1>(exponent);
  return power * power_of_two(half) * power_of_two(exponent - half);
}

/// 1 / (1 + e^-x), with full relative precision on both sides and no overflow.
inline Lanes sigmoid(Lanes x) {
  const Lanes e = exp(negative(absolute(x)));
  const Lanes numerator = select(less(x, zero_lanes()), e, broadcast(1.0f));
  return numerator / (e + broadcast(1.0f));
}

/// x sigmoid(x). Minus infinity gives -0: as the largest finite number it is not multiplied with 0.
inline Lanes silu(Lanes x) {
  const Lanes finite = max(broadcast(-3.40282347e38f), x);
  return finite * sigmoid(finite);
}

/// ln(1 + e^x) = max(x, 0) + ln(1 + u), u = e^-|x|; ln(1 + u) = 2 atanh(s), s = u / (2 + u) <= 1/3, by a polynomial in s^2
/// (error 1e-9). Full relative precision for very negative x too.
inline Lanes softplus(Lanes x) {
  const Lanes u = exp(negative(absolute(x)));
  const Lanes s = u / (u + broadcast(2.0f));
  const Lanes z = s * s;
  Lanes q = fma(broadcast(0.116195254f), z, broadcast(0.108516574f));
  q = fma(q, z, broadcast(0.142962918f));
  q = fma(q, z, broadcast(0.199998513f));
  q = fma(q, z, broadcast(0.333333343f));
  const Lanes twice = s + s;
  return max(zero_lanes(), x) + fma(twice, z * q, twice);
}

}  // namespace
}  // namespace calandra
