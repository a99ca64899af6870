// Sixteen float32 lanes as plain arrays: what the other backends must match bit for bit. Compilers turn these loops into
// vector code where the target has a fused multiply-add (AArch64); elsewhere every one is a library call.
//
// A backend defines: Lanes (floats), Words (their bits), Mask; Part, the register that Lanes are made of; the operations
// below; decoders of stored weights; and the shapes of tiles. Like every .inl of this folder it belongs to one translation unit: all names are in an unnamed namespace, so
// that code made for one instruction set can never be linked in place of another's.

#include "kernels/scale_tables.h"
#include "tensor/element.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace calandra {
namespace {

struct Lanes {
  float v[16];
};
struct Words {
  std::uint32_t v[16];
};
struct Mask {
  bool v[16];
};

/// Stored weight rows that 1, 2, 3 or 4 rows of activations take at a time.
constexpr int kStreamsOf[5] = {0, 1, 1, 1, 1};
/// Decoded weight rows that a tile of 4 rows of activations takes at a time.
constexpr int kTileOutputs = 1;

using Part = Lanes;
constexpr int kParts = 1;
constexpr std::int64_t kPartLanes = 16;

/// Which e4m3 codes a decoder has seen: only those that do not make a NaN of a NaN need to remember.
struct CodesSeen {};
inline CodesSeen no_codes_seen() { return {}; }
inline bool any_nan(CodesSeen /*seen*/) { return false; }
/// What the numbers of load_e4m3 have to be multiplied by: a power of two.
constexpr float kE4m3Unit = 1.0f;

template <class Result, class Function>
inline Result each_lane(Function function) {
  Result result;
  for (int i = 0; i < 16; ++i) result.v[i] = function(i);
  return result;
}

inline Lanes broadcast(float x) {
  return each_lane<Lanes>([&](int) { return x; });
}
inline Lanes zero_lanes() { return broadcast(0.0f); }
inline Lanes load(const void* address) {
  Lanes x;
  std::memcpy(x.v, address, sizeof(x.v));
  return x;
}
inline void store(float* address, const Lanes& x) { std::memcpy(address, x.v, sizeof(x.v)); }

inline Part zero_part() { return zero_lanes(); }
inline Part broadcast_part(float x) { return broadcast(x); }
inline Part load_part(const float* address) { return load(address); }
inline void store_part(float* address, const Part& x) { store(address, x); }
inline Lanes lanes_of(const Part (&parts)[kParts]) { return parts[0]; }

inline Lanes operator+(const Lanes& a, const Lanes& b) {
  return each_lane<Lanes>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Lanes operator-(const Lanes& a, const Lanes& b) {
  return each_lane<Lanes>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Lanes operator*(const Lanes& a, const Lanes& b) {
  return each_lane<Lanes>([&](int i) { return a.v[i] * b.v[i]; });
}
inline Lanes operator/(const Lanes& a, const Lanes& b) {
  return each_lane<Lanes>([&](int i) { return a.v[i] / b.v[i]; });
}
/// a * b + c, rounded once.
inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  return each_lane<Lanes>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline Part fma_part(const Part& a, const Part& b, const Part& c) { return fma(a, b, c); }
/// The second operand if either is NaN: min(limit, x) keeps a NaN of x.
inline Lanes min(const Lanes& a, const Lanes& b) {
  return each_lane<Lanes>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes max(const Lanes& a, const Lanes& b) {
  return each_lane<Lanes>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}

inline Mask less(const Lanes& a, const Lanes& b) {
  return each_lane<Mask>([&](int i) { return a.v[i] < b.v[i]; });
}
inline Mask is_nan(const Lanes& a) {
  return each_lane<Mask>([&](int i) { return a.v[i] != a.v[i]; });
}
inline Lanes select(const Mask& mask, const Lanes& yes, const Lanes& no) {
  return each_lane<Lanes>([&](int i) { return mask.v[i] ? yes.v[i] : no.v[i]; });
}

inline Words bits_of(const Lanes& x) {
  Words bits;
  std::memcpy(bits.v, x.v, sizeof(bits.v));
  return bits;
}
inline Lanes lanes_of(const Words& bits) { return load(bits.v); }
inline Words broadcast_word(std::uint32_t x) {
  return each_lane<Words>([&](int) { return x; });
}
inline Words operator+(const Words& a, const Words& b) {
  return each_lane<Words>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Words operator-(const Words& a, const Words& b) {
  return each_lane<Words>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Words operator&(const Words& a, const Words& b) {
  return each_lane<Words>([&](int i) { return a.v[i] & b.v[i]; });
}
inline Words operator|(const Words& a, const Words& b) {
  return each_lane<Words>([&](int i) { return a.v[i] | b.v[i]; });
}
template <int bits>
inline Words shift_left(const Words& a) {
  return each_lane<Words>([&](int i) { return a.v[i] << bits; });
}
template <int bits>
inline Words shift_right(const Words& a) {
  return each_lane<Words>([&](int i) { return a.v[i] >> bits; });
}
/// Keeps the sign.
template <int bits>
inline Words shift_right_signed(const Words& a) {
  return each_lane<Words>([&](int i) { return static_cast<std::uint32_t>(static_cast<std::int32_t>(a.v[i]) >> bits); });
}

/// The one reduction: lanes i and i + 8, then i + 4, i + 2, i + 1.
inline float sum(Lanes x) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x.v[i] = x.v[i] + x.v[i + half];
  }
  return x.v[0];
}
inline float largest(Lanes x) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x.v[i] = x.v[i] > x.v[i + half] ? x.v[i] : x.v[i + half];
  }
  return x.v[0];
}

/// Sixteen 16-bit values, zero-extended; and the low halves back.
inline Words load_halves(const void* address) {
  std::uint16_t halves[16];
  std::memcpy(halves, address, sizeof(halves));
  return each_lane<Words>([&](int i) { return std::uint32_t{halves[i]}; });
}
inline void store_halves(void* address, const Words& x) {
  std::uint16_t halves[16];
  for (int i = 0; i < 16; ++i) halves[i] = static_cast<std::uint16_t>(x.v[i]);
  std::memcpy(address, halves, sizeof(halves));
}

inline Lanes load_f16(const void* address) {
  const Words halves = load_halves(address);
  return each_lane<Lanes>([&](int i) { return f16_decode(static_cast<std::uint16_t>(halves.v[i])); });
}
inline Lanes load_e4m3(const void* address, CodesSeen& /*seen*/) {
  const auto* codes = static_cast<const std::uint8_t*>(address);
  return each_lane<Lanes>([&](int i) { return e4m3_decode(codes[i]); });
}
/// 64 columns of e2m1 codes in 32 bytes, with the scale of the first and of the last 32: lane i of step s is column
/// 4 j + s for j = 0-3, 8-11, 4-7, 12-15. This is what halves of a register that are unpacked on their own give.
inline void load_mxfp4(const void* address, std::uint8_t first_scale, std::uint8_t last_scale, Lanes (&steps)[4]) {
  const auto* pairs = static_cast<const std::uint8_t*>(address);
  for (int s = 0; s < 4; ++s) {
    steps[s] = each_lane<Lanes>([&](int i) {
      const int column = 4 * (i / 4 == 1 || i / 4 == 2 ? i ^ 12 : i) + s;
      const auto code = static_cast<std::uint8_t>(pairs[column / 2] >> (column % 2 * 4) & 15);
      return e2m1_decode(code) * kE8m0[column < 32 ? first_scale : last_scale];
    });
  }
}

}  // namespace
}  // namespace calandra
