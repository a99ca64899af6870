// Sixteen float32 lanes as one 512-bit register: AVX-512 F, BW, VL and DQ. What each name means: lanes_scalar.inl.
// The includer brings the intrinsics: <immintrin.h>, or an emulation of it in tests.

#include "kernels/scale_tables.h"

#include <cstdint>

namespace calandra {
namespace {

struct Lanes {
  __m512 v;
};
struct Words {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};

constexpr int kStreamsOf[5] = {0, 4, 4, 4, 4};
constexpr int kTileOutputs = 6;  // 24 accumulators, 6 weights and an input fill 31 of 32 registers

using Part = Lanes;
constexpr int kParts = 1;
constexpr std::int64_t kPartLanes = 16;

/// Bytes of ones where a NaN was.
struct CodesSeen {
  __m128i nan;
};
inline CodesSeen no_codes_seen() { return {_mm_setzero_si128()}; }
inline bool any_nan(CodesSeen seen) { return _mm_movemask_epi8(seen.nan) != 0; }
constexpr float kE4m3Unit = 256.0f;

inline Lanes broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Lanes zero_lanes() { return {_mm512_setzero_ps()}; }
inline Lanes load(const void* address) { return {_mm512_loadu_ps(address)}; }
inline void store(float* address, Lanes x) { _mm512_storeu_ps(address, x.v); }

inline Part zero_part() { return zero_lanes(); }
inline Part broadcast_part(float x) { return broadcast(x); }
inline Part load_part(const float* address) { return load(address); }
inline void store_part(float* address, Part x) { store(address, x); }
inline Lanes lanes_of(const Part (&parts)[kParts]) { return parts[0]; }

inline Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Part fma_part(Part a, Part b, Part c) { return fma(a, b, c); }
inline Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }

inline Mask less(Lanes a, Lanes b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask is_nan(Lanes a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
inline Lanes select(Mask mask, Lanes yes, Lanes no) { return {_mm512_mask_blend_ps(mask.v, no.v, yes.v)}; }

inline Words bits_of(Lanes x) { return {_mm512_castps_si512(x.v)}; }
inline Lanes lanes_of(Words x) { return {_mm512_castsi512_ps(x.v)}; }
inline Words broadcast_word(std::uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
inline Words operator+(Words a, Words b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Words operator-(Words a, Words b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline Words operator&(Words a, Words b) { return {_mm512_and_si512(a.v, b.v)}; }
inline Words operator|(Words a, Words b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int bits>
inline Words shift_left(Words a) {
  return {_mm512_slli_epi32(a.v, bits)};
}
template <int bits>
inline Words shift_right(Words a) {
  return {_mm512_srli_epi32(a.v, bits)};
}
template <int bits>
inline Words shift_right_signed(Words a) {
  return {_mm512_srai_epi32(a.v, bits)};
}

inline float sum(Lanes x) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(Lanes x) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline __m256i load_32_bytes(const void* address) { return _mm256_loadu_si256(static_cast<const __m256i*>(address)); }

inline Words load_halves(const void* address) { return {_mm512_cvtepu16_epi32(load_32_bytes(address))}; }
inline void store_halves(void* address, Words x) {
  _mm256_storeu_si256(static_cast<__m256i*>(address), _mm512_cvtepi32_epi16(x.v));
}

inline Lanes load_f16(const void* address) { return {_mm512_cvtph_ps(load_32_bytes(address))}; }

/// As for AVX2.
inline Lanes load_e4m3(const void* address, CodesSeen& seen) {
  const __m128i codes = _mm_loadu_si128(static_cast<const __m128i*>(address));
  const __m128i nan = _mm_set1_epi8(-1);
  seen.nan = _mm_or_si128(seen.nan, _mm_cmpeq_epi8(_mm_or_si128(codes, _mm_set1_epi8(-128)), nan));
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
  return {_mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(-0x4080)))};
}

/// A 32-bit lane takes the codes of four neighbours and looks them up one after the other: only the low four bits count.
inline void load_mxfp4(const void* address, std::uint8_t first_scale, std::uint8_t last_scale, Lanes (&steps)[4]) {
  const __m512i codes = _mm512_cvtepu16_epi32(_mm256_permute4x64_epi64(load_32_bytes(address), 0xD8));
  const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f,  //
                                       -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  // Quarters 0 and 2 of the lanes belong to the first 32 columns.
  const __m512 scales = _mm512_mask_blend_ps(0xF0F0, _mm512_set1_ps(kE8m0[first_scale]), _mm512_set1_ps(kE8m0[last_scale]));
  steps[0] = {_mm512_mul_ps(_mm512_permutexvar_ps(codes, values), scales)};
  steps[1] = {_mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), values), scales)};
  steps[2] = {_mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 8), values), scales)};
  steps[3] = {_mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 12), values), scales)};
}

}  // namespace
}  // namespace calandra
