// Emulated AVX-512 intrinsics (SIMDe) in the place of <immintrin.h>, for tests alone. What the emulation lacks or rounds twice is added
// below. CALANDRA_EMULATES_AVX512 is defined if the emulation's headers are installed.

#if __has_include(<simde/x86/avx512.h>)
#define CALANDRA_EMULATES_AVX512

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

/// The instruction's documented arithmetic: of every pair the upper product first, each a fused multiply-add rounded to nearest;
/// subnormal operands and results are zero.
[[gnu::always_inline]] inline simde__m512 add_bf16_products(simde__m512 sums, simde__m512i a, simde__m512i b) {
  const auto without_subnormals = [](float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; };
  const auto number = [&](const simde__m512i& words, int i) {
    const std::uint32_t bits = std::uint32_t{element<std::uint16_t>(words, i)} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return without_subnormals(value);
  };
  return each<simde__m512, float, 16>([&](int i) {
    float sum = without_subnormals(element<float>(sums, i));
    sum = without_subnormals(std::fma(number(a, 2 * i + 1), number(b, 2 * i + 1), sum));
    return without_subnormals(std::fma(number(a, 2 * i), number(b, 2 * i), sum));
  });
}

}  // namespace
}  // namespace calandra

#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps add_bf16_products
#define __m512bh simde__m512i
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

#endif
