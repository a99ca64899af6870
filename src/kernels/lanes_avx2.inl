// Sixteen float32 lanes as two 256-bit registers: AVX2, FMA and F16C. What each name means: lanes_scalar.inl.

#include "kernels/scale_tables.h"

#include <immintrin.h>

#include <array>
#include <cstdint>

namespace calandra {
namespace {

struct Lanes {
  __m256 low, high;
};
struct Words {
  __m256i low, high;
};
struct Mask {
  __m256 low, high;
};

// Accumulators of a stream fill half of the 16 registers at most. Those of a tile, 4 x 3, its weights and an input fill all.
constexpr int kStreamsOf[5] = {0, 3, 2, 1, 1};
constexpr int kTileOutputs = 3;

using Part = __m256;
constexpr int kParts = 2;
constexpr std::int64_t kPartLanes = 8;

/// Bytes of ones where a NaN was.
struct CodesSeen {
  __m128i nan;
};
inline CodesSeen no_codes_seen() { return {_mm_setzero_si128()}; }
inline bool any_nan(CodesSeen seen) { return _mm_movemask_epi8(seen.nan) != 0; }
constexpr float kE4m3Unit = 256.0f;

inline Lanes broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes zero_lanes() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Lanes load(const void* address) {
  const auto* p = static_cast<const float*>(address);
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store(float* address, Lanes x) {
  _mm256_storeu_ps(address, x.low);
  _mm256_storeu_ps(address + 8, x.high);
}

inline Part zero_part() { return _mm256_setzero_ps(); }
inline Part broadcast_part(float x) { return _mm256_set1_ps(x); }
inline Part load_part(const float* address) { return _mm256_loadu_ps(address); }
inline void store_part(float* address, Part x) { _mm256_storeu_ps(address, x); }
inline Part fma_part(Part a, Part b, Part c) { return _mm256_fmadd_ps(a, b, c); }
inline Lanes lanes_of(const Part (&parts)[kParts]) { return {parts[0], parts[1]}; }

inline Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes min(Lanes a, Lanes b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }

inline Mask less(Lanes a, Lanes b) {
  return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)};
}
inline Mask is_nan(Lanes a) { return {_mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q), _mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q)}; }
inline Lanes select(Mask mask, Lanes yes, Lanes no) {
  return {_mm256_blendv_ps(no.low, yes.low, mask.low), _mm256_blendv_ps(no.high, yes.high, mask.high)};
}

inline Words bits_of(Lanes x) { return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)}; }
inline Lanes lanes_of(Words x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }
inline Words broadcast_word(std::uint32_t x) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(x));
  return {all, all};
}
inline Words operator+(Words a, Words b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline Words operator-(Words a, Words b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
inline Words operator&(Words a, Words b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
inline Words operator|(Words a, Words b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
template <int bits>
inline Words shift_left(Words a) {
  return {_mm256_slli_epi32(a.low, bits), _mm256_slli_epi32(a.high, bits)};
}
template <int bits>
inline Words shift_right(Words a) {
  return {_mm256_srli_epi32(a.low, bits), _mm256_srli_epi32(a.high, bits)};
}
template <int bits>
inline Words shift_right_signed(Words a) {
  return {_mm256_srai_epi32(a.low, bits), _mm256_srai_epi32(a.high, bits)};
}

inline float sum(Lanes x) {
  const __m256 eight = _mm256_add_ps(x.low, x.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(Lanes x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline Words load_halves(const void* address) {
  const auto* p = static_cast<const __m128i_u*>(address);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), _mm256_cvtepu16_epi32(_mm_loadu_si128(p + 1))};
}
inline void store_halves(void* address, Words x) {
  const Words halves = x & broadcast_word(0xFFFF);
  const __m256i packed = _mm256_packus_epi32(halves.low, halves.high);  // in quarters 0 2 1 3
  _mm256_storeu_si256(static_cast<__m256i_u*>(address), _mm256_permute4x64_epi64(packed, 0xD8));
}

inline Lanes load_f16(const void* address) {
  const auto* p = static_cast<const __m128i_u*>(address);
  return {_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p + 1))};
}

/// 16 halves -> floats.
inline Lanes floats_of_halves(__m256i halves) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

/// e4m3 has the layout of a half whose exponent is 8 smaller: shifted into place it means the code times 2^-8. Only NaN
/// would be a number.
inline Lanes load_e4m3(const void* address, CodesSeen& seen) {
  const __m128i codes = _mm_loadu_si128(static_cast<const __m128i_u*>(address));
  const __m128i nan = _mm_set1_epi8(-1);
  seen.nan = _mm_or_si128(seen.nan, _mm_cmpeq_epi8(_mm_or_si128(codes, _mm_set1_epi8(-128)), nan));
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);  // the sign is now in bits 15 and 14
  return floats_of_halves(_mm256_and_si256(wide, _mm256_set1_epi16(-0x4080)));
}

/// The two 16-byte tables as the halves of a register.
inline __m256i load_halves_of(const std::array<std::uint8_t, 16>& low, const std::array<std::uint8_t, 16>& high) {
  const __m256i first = _mm256_castsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(low.data())));
  return _mm256_inserti128_si256(first, _mm_load_si128(reinterpret_cast<const __m128i*>(high.data())), 1);
}

/// Byte shuffles look up both bytes of the scaled bf16 numbers, each half of the register in the table of its scale. Two neighbours
/// make a 32-bit lane, the upper half of which is a float as soon as the lower one is cleared.
inline void load_mxfp4(const void* address, std::uint8_t first_scale, std::uint8_t last_scale, Lanes (&steps)[4]) {
  const __m256i pairs = _mm256_loadu_si256(static_cast<const __m256i_u*>(address));
  const ScaledE2m1 &first = kScaledE2m1[first_scale], &last = kScaledE2m1[last_scale];
  const __m256i high_bytes = load_halves_of(first.high, last.high), low_bytes = load_halves_of(first.low, last.low);
  const __m256i nibble = _mm256_set1_epi8(15), upper = _mm256_set1_epi32(-0x10000);
  const __m256i codes[2] = {_mm256_and_si256(pairs, nibble), _mm256_and_si256(_mm256_srli_epi16(pairs, 4), nibble)};
  for (int i = 0; i < 2; ++i) {  // even, then odd columns
    const __m256i high = _mm256_shuffle_epi8(high_bytes, codes[i]), low = _mm256_shuffle_epi8(low_bytes, codes[i]);
    const __m256i words[2] = {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
    steps[i] = lanes_of(Words{_mm256_slli_epi32(words[0], 16), _mm256_slli_epi32(words[1], 16)});
    steps[i + 2] = lanes_of(Words{_mm256_and_si256(words[0], upper), _mm256_and_si256(words[1], upper)});
  }
}

}  // namespace
}  // namespace calandra
