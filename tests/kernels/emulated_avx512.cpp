// The AVX-512 kernels on emulated intrinsics (SIMDe), for tests alone: the source of isa_avx512.cpp, with these headers in
// the place of <immintrin.h>. What the emulation lacks or rounds twice is added below.

#include "implementations.h"

#if __has_include(<simde/x86/avx512.h>)

#define SIMDE_ENABLE_NATIVE_ALIASES
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // the emulation asks to vectorise loops that are not
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#pragma GCC diagnostic pop

#include <cmath>
#include <cstdint>
#include <cstring>

namespace calandra {
namespace {

template <class Vector, class Element, int count, class Function>
[[gnu::always_inline]] inline Vector each(Function function) {
  Element elements[count];
  for (int i = 0; i < count; ++i) elements[i] = function(i);
  Vector vector;
  static_assert(sizeof(vector) == sizeof(elements));
  std::memcpy(&vector, elements, sizeof(vector));
  return vector;
}

template <class Element, class Vector>
Element element(const Vector& vector, int i) {
  Element value;
  std::memcpy(&value, reinterpret_cast<const char*>(&vector) + static_cast<std::size_t>(i) * sizeof(Element), sizeof(value));
  return value;
}

[[gnu::always_inline]] inline simde__m512 fused_multiply_add(simde__m512 a, simde__m512 b, simde__m512 c) {
  return each<simde__m512, float, 16>(
      [&](int i) { return std::fma(element<float>(a, i), element<float>(b, i), element<float>(c, i)); });
}

[[gnu::always_inline]] inline simde__m512 halves_to_floats(simde__m256i halves) {
  simde__m128i low;
  simde__m128i high;
  std::memcpy(&low, &halves, sizeof(low));
  std::memcpy(&high, reinterpret_cast<const char*>(&halves) + sizeof(low), sizeof(high));
  const simde__m256 parts[2] = {simde_mm256_cvtph_ps(low), simde_mm256_cvtph_ps(high)};
  simde__m512 floats;
  std::memcpy(&floats, parts, sizeof(floats));
  return floats;
}

[[gnu::always_inline]] inline simde__m512i widen_bytes(simde__m128i bytes) {
  return each<simde__m512i, std::uint32_t, 16>([&](int i) { return std::uint32_t{element<std::uint8_t>(bytes, i)}; });
}
[[gnu::always_inline]] inline simde__m512i widen_halves(simde__m256i halves) {
  return each<simde__m512i, std::uint32_t, 16>([&](int i) { return std::uint32_t{element<std::uint16_t>(halves, i)}; });
}
[[gnu::always_inline]] inline simde__m256 eight_floats(simde__m512 floats, int half) {
  return each<simde__m256, float, 8>([&](int i) { return element<float>(floats, 8 * half + i); });
}
[[gnu::always_inline]] inline simde__m512i shift_right_with_sign(simde__m512i words, int bits) {
  return each<simde__m512i, std::int32_t, 16>([&](int i) { return element<std::int32_t>(words, i) >> bits; });
}
[[gnu::always_inline]] inline simde__m256i narrow_words(simde__m512i words) {
  return each<simde__m256i, std::uint16_t, 16>(
      [&](int i) { return static_cast<std::uint16_t>(element<std::uint32_t>(words, i)); });
}

}  // namespace
}  // namespace calandra

#define __mmask16 simde__mmask16
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps fused_multiply_add
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps halves_to_floats
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 widen_bytes
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 widen_halves
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16 narrow_words
#undef _mm512_srai_epi32
#define _mm512_srai_epi32 shift_right_with_sign
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps eight_floats

#include "kernels/lanes_avx512.inl"

#include "kernels/table.inl"

namespace calandra {

const Kernels* emulated_avx512_kernels() {
  static constexpr Kernels kTable = make_table(Isa::Avx512);
  return &kTable;
}

}  // namespace calandra

#else

namespace calandra {

const Kernels* emulated_avx512_kernels() { return nullptr; }

}  // namespace calandra

#endif
