// What products multiply, in bf16, for processors that have a dot product of pairs (AVX512_BF16, and VBMI to look codes up): the
// names of factors_f32.inl. A register holds 32 numbers; each 32-bit lane adds the products of its pair, the upper number's first. A product of
// subnormal numbers is zero, as is a weight below 2^-126. Rows of x are always packed: to bf16, in the order in which codes come out.
// The includer brings the intrinsics.

#include "kernels/kernels.h"
#include "kernels/scale_tables.h"
#include "tensor/element.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace calandra {
namespace {

using Element = std::uint16_t;
constexpr Element kNan = 0x7FC0;
constexpr std::int64_t kFactorColumns = 32;

struct Factor {
  __m512i v;
};
inline Factor load_factor(const void* address) { return {_mm512_loadu_si512(address)}; }
inline Lanes tile_fma(Factor a, Factor b, Lanes sum) {
  return {_mm512_dpbf16_ps(sum.v, std::bit_cast<__m512bh>(a.v), std::bit_cast<__m512bh>(b.v))};
}

template <WeightFormat format>
constexpr int kRunLanes = format == WeightFormat::Mxfp4 ? 4 : 2;
template <WeightFormat format>
constexpr std::int64_t kRunColumns = kFactorColumns* kRunLanes<format>;
static_assert(kRunColumns<WeightFormat::Mxfp4> == 4 * kMxGroup);

template <WeightFormat format>
struct Run {
  Factor lanes[kRunLanes<format>];
};
inline Lanes stream_fma(Factor a, Factor b, Lanes sum) { return tile_fma(a, b, sum); }

template <WeightFormat format>
constexpr bool kPacked = true;

inline float multiplier_of(WeightRow row, std::int64_t k) { return block_scale(row, k); }

// ------------------------------------------------------------------------------------------------------------ e4m3

/// Exponents that the table of scaled codes has in reserve, so that a scale only ever takes some away: then zero stays zero.
constexpr int kReserve = 118;

/// The magnitudes of the 128 e4m3 codes without sign, as the two bytes of bf16 numbers times 2^reserve.
template <int reserve>
struct E4m3Bytes {
  alignas(64) std::array<std::uint8_t, 128> high{};
  alignas(64) std::array<std::uint8_t, 128> low{};
  constexpr E4m3Bytes() {
    for (unsigned code = 0; code < 128; ++code) {
      const unsigned exponent = code >> 3, mantissa = code & 7;
      unsigned word = 0x7FC0;  // NaN
      if (exponent != 0 && code != 0x7F) {
        word = (exponent + 120 + reserve) << 7 | mantissa << 4;
      } else if (exponent == 0) {  // mantissa * 2^-9, as a normal number
        const auto leading = static_cast<unsigned>(std::bit_width(mantissa));
        word = mantissa == 0 ? 0 : (117 + reserve + leading) << 7 | ((mantissa << (8 - leading)) & 0x7F);
      }
      high[code] = static_cast<std::uint8_t>(word >> 8);
      low[code] = static_cast<std::uint8_t>(word);
    }
  }
};
template <int reserve>
constexpr E4m3Bytes<reserve> kE4m3Bytes{};

inline __m512i look_up(const std::array<std::uint8_t, 128>& table, __m512i codes) {
  return _mm512_permutex2var_epi8(_mm512_loadu_si512(table.data()), codes, _mm512_loadu_si512(table.data() + 64));
}

/// 64 codes. A 128-bit quarter of them fills the quarter of both registers: its first 8 columns, its last 8.
inline void load_e4m3(const void* address, Factor (&run)[2]) {
  const __m512i codes = _mm512_loadu_si512(address), sign = _mm512_set1_epi8(-128);
  const __m512i low = look_up(kE4m3Bytes<0>.low, codes);
  const __m512i high = _mm512_or_si512(look_up(kE4m3Bytes<0>.high, codes), _mm512_and_si512(codes, sign));
  run[0] = {_mm512_unpacklo_epi8(low, high)};
  run[1] = {_mm512_unpackhi_epi8(low, high)};
}

/// The same times 2^(exponent - 127), of codes that are no NaN.
inline void load_e4m3(const void* address, std::uint8_t exponent, Factor (&run)[2]) {
  const __m512i codes = _mm512_loadu_si512(address), sign = _mm512_set1_epi8(-128), zero = _mm512_setzero_si512();
  const __m512i low = look_up(kE4m3Bytes<kReserve>.low, codes), high = look_up(kE4m3Bytes<kReserve>.high, codes);
  const __m512i signs = _mm512_and_si512(codes, sign);
  const __m512i excess = _mm512_set1_epi16(static_cast<short>((127 + kReserve - exponent) * 128));
  run[0] = {_mm512_or_si512(_mm512_subs_epu16(_mm512_unpacklo_epi8(low, high), excess), _mm512_unpacklo_epi8(zero, signs))};
  run[1] = {_mm512_or_si512(_mm512_subs_epu16(_mm512_unpackhi_epi8(low, high), excess), _mm512_unpackhi_epi8(zero, signs))};
}

/// Whether one of 64 codes is a NaN.
inline bool has_nan(const void* address) {
  const __m512i nan = _mm512_set1_epi8(-1), sign = _mm512_set1_epi8(-128);
  return _mm512_cmpeq_epi8_mask(_mm512_or_si512(_mm512_loadu_si512(address), sign), nan) != 0;
}

// ------------------------------------------------------------------------------------------------------------ e2m1

/// Four 16-byte tables as the quarters of a register.
inline __m512i load_quarters(const std::array<std::uint8_t, 16>& a, const std::array<std::uint8_t, 16>& b,
                             const std::array<std::uint8_t, 16>& c, const std::array<std::uint8_t, 16>& d) {
  const auto quarter = [](const auto& table) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(table.data())); };
  __m512i all = _mm512_castsi128_si512(quarter(a));
  all = _mm512_inserti32x4(all, quarter(b), 1);
  all = _mm512_inserti32x4(all, quarter(c), 2);
  return _mm512_inserti32x4(all, quarter(d), 3);
}

/// 128 codes in four groups, each of which is a quarter and has its own table. Registers: even columns 0-14, even 16-30, odd
/// 1-15, odd 17-31 of every group.
inline void load_mxfp4(const void* address, const std::uint8_t (&exponents)[4], Factor (&run)[4]) {
  const ScaledE2m1 &a = kScaledE2m1[exponents[0]], &b = kScaledE2m1[exponents[1]], &c = kScaledE2m1[exponents[2]],
                   &d = kScaledE2m1[exponents[3]];
  const __m512i high_bytes = load_quarters(a.high, b.high, c.high, d.high);
  const __m512i low_bytes = load_quarters(a.low, b.low, c.low, d.low);
  const __m512i pairs = _mm512_loadu_si512(address), nibble = _mm512_set1_epi8(15);
  const __m512i codes[2] = {_mm512_and_si512(pairs, nibble), _mm512_and_si512(_mm512_srli_epi16(pairs, 4), nibble)};
  for (std::int64_t i = 0; i < 2; ++i) {
    const __m512i high = _mm512_shuffle_epi8(high_bytes, codes[i]), low = _mm512_shuffle_epi8(low_bytes, codes[i]);
    run[2 * i] = {_mm512_unpacklo_epi8(low, high)};
    run[2 * i + 1] = {_mm512_unpackhi_epi8(low, high)};
  }
}

// ------------------------------------------------------------------------------------------------------------ runs

template <WeightFormat format>
inline Run<format> load_weights(WeightRow row, std::int64_t k, std::int64_t count, CodesSeen& seen) {
  std::byte padded[2 * kRunColumns<format>];
  const std::byte* codes = whole_run<format>(row.codes + code_bytes<format>(k), count, kRunColumns<format>, padded);
  Run<format> run;
  if constexpr (format == WeightFormat::BF16) {
    run = {load_factor(codes), load_factor(codes + 64)};
  } else if constexpr (format == WeightFormat::Fp8) {
    load_e4m3(codes, run.lanes);
  } else if constexpr (format == WeightFormat::Fp8E8m0) {
    const std::uint8_t exponent = block_exponent(row, k);
    if (exponent == 255 || has_nan(codes)) seen.nan = _mm_set1_epi8(-1);
    load_e4m3(codes, exponent, run.lanes);
  } else {
    std::uint8_t exponents[4];
    load_group_exponents(row, k, count, exponents);
    load_mxfp4(codes, exponents, run.lanes);
  }
  return run;
}

template <WeightFormat format>
inline Run<format> load_inputs(const Element* address, std::int64_t /*count*/) {
  Run<format> run;
  for (int i = 0; i < kRunLanes<format>; ++i) run.lanes[i] = load_factor(address + kFactorColumns * i);
  return run;
}

template <WeightFormat format>
inline void store_run(Element* address, const Run<format>& run) {
  for (int i = 0; i < kRunLanes<format>; ++i) _mm512_storeu_si512(address + kFactorColumns * i, run.lanes[i].v);
}

/// The run of columns `from`, which hold bf16 numbers, in the order of their weights.
template <WeightFormat format>
inline void pack_run(const float* from, Element* run) {
  const auto word = [from](std::int64_t c) { return static_cast<Element>(std::bit_cast<std::uint32_t>(from[c]) >> 16); };
  if constexpr (format == WeightFormat::BF16) {
    for (std::int64_t c = 0; c < kRunColumns<format>; ++c) run[c] = word(c);
  } else {
    // Eight words from the quarter q of the codes for the register i.
    for (std::int64_t q = 0; q < 4; ++q) {
      for (std::int64_t i = 0; i < kRunLanes<format>; ++i) {
        for (std::int64_t t = 0; t < 8; ++t) {
          run[32 * i + 8 * q + t] =
              word(format == WeightFormat::Mxfp4 ? 32 * q + 16 * (i % 2) + 2 * t + i / 2 : 16 * q + 8 * i + t);
        }
      }
    }
  }
}

template <class Body>
inline void with_product_format(WeightFormat format, Body body) {
  switch (format) {
    case WeightFormat::F32:
    case WeightFormat::F16: return;  // these do without: the table of the same processor in float32
    case WeightFormat::BF16: return body.template operator()<WeightFormat::BF16>();
    case WeightFormat::Fp8: return body.template operator()<WeightFormat::Fp8>();
    case WeightFormat::Fp8E8m0: return body.template operator()<WeightFormat::Fp8E8m0>();
    case WeightFormat::Mxfp4: return body.template operator()<WeightFormat::Mxfp4>();
  }
}

}  // namespace
}  // namespace calandra
