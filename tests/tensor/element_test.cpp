// Number formats against golden codes, and against definitions written another way.

#include "tensor/element.h"

#include "support/golden.h"
#include "tensor/element_type.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <limits>

namespace calandra {
namespace {

const GoldenTensors& kernels() {
  static const GoldenTensors tensors = GoldenTensors::load(golden_path("kernels.safetensors"));
  return tensors;
}

/// Golden case NAME: codes decode to values, bit for bit (any NaN for NaN).
template <class Decode>
void expect_decodes(const std::string& name, std::size_t count, Decode&& decode) {
  const auto codes = kernels().ints(name + "/codes");
  const auto values = kernels().floats(name + "/values");
  ASSERT_EQ(codes.size(), count);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float actual = decode(codes[i]);
    if (std::isnan(values[i])) {
      EXPECT_TRUE(std::isnan(actual)) << "code " << codes[i];
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(actual), std::bit_cast<std::uint32_t>(values[i])) << "code " << codes[i];
    }
  }
}

template <class Encode>
void expect_encodes(const std::string& name, Encode&& encode) {
  const auto values = kernels().floats(name + "/x");
  const auto codes = kernels().ints(name + "/codes");
  ASSERT_GT(values.size(), 20u);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::int64_t{encode(values[i])}, codes[i]) << values[i];
}

/// Smallest distance from `value` to any finite value of a format.
template <class Decode>
double nearest_distance(float value, unsigned codes, Decode&& decode) {
  double best = std::numeric_limits<double>::infinity();
  for (unsigned code = 0; code < codes; ++code) {
    const float candidate = decode(static_cast<std::uint8_t>(code));
    if (!std::isnan(candidate)) best = std::min(best, std::fabs(double{candidate} - double{value}));
  }
  return best;
}

TEST(Element, E4m3DecodesAsInTheGoldenData) {
  expect_decodes("e4m3_decode", 256, [](std::int64_t code) { return e4m3_decode(static_cast<std::uint8_t>(code)); });
}

TEST(Element, E8m0DecodesAsInTheGoldenData) {
  expect_decodes("e8m0_decode", 256, [](std::int64_t code) { return e8m0_decode(static_cast<std::uint8_t>(code)); });
}

TEST(Element, E2m1DecodesAsInTheGoldenData) {
  expect_decodes("e2m1_decode", 16, [](std::int64_t code) { return e2m1_decode(static_cast<std::uint8_t>(code)); });
}

TEST(Element, E4m3EncodesAsInTheGoldenData) { expect_encodes("e4m3_encode", e4m3_encode); }
TEST(Element, E2m1EncodesAsInTheGoldenData) { expect_encodes("e2m1_encode", e2m1_encode); }
TEST(Element, Bf16EncodesAsInTheGoldenData) { expect_encodes("bf16_encode", bf16_encode); }

TEST(Element, EncodersSaturateAndKeepSigns) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(e4m3_encode(infinity), 0x7E);
  EXPECT_EQ(e4m3_encode(-1e30f), 0xFE);
  EXPECT_EQ(e4m3_encode(-0.0f), 0x80);
  EXPECT_EQ(e4m3_encode(std::nanf("")), 0x7F);
  EXPECT_EQ(e4m3_encode(-std::nanf("")), 0x7F);
  EXPECT_EQ(e2m1_encode(infinity), 7);
  EXPECT_EQ(e2m1_encode(-infinity), 15);
  EXPECT_EQ(bf16_decode(bf16_encode(-infinity)), -infinity);
  EXPECT_TRUE(std::isnan(bf16_decode(bf16_encode(std::bit_cast<float>(0x7F800001u)))));
}

TEST(Element, F16DecodesEveryCodeAsItsDefinition) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const int exponent = static_cast<int>((code >> 10) & 31u);
    const int mantissa = static_cast<int>(code & 1023u);
    const float actual = f16_decode(static_cast<std::uint16_t>(code));
    EXPECT_EQ(std::signbit(actual), code >= 0x8000u) << code;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(actual), mantissa != 0) << code;
      EXPECT_EQ(std::isinf(actual), mantissa == 0) << code;
    } else {
      const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      EXPECT_EQ(std::fabs(double{actual}), magnitude) << code;
    }
  }
}

TEST(Element, CodesSurviveDecodingAndEncoding) {
  for (unsigned code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const bool is_nan = (code & 0x7Fu) == 0x7Fu;
    EXPECT_EQ(e4m3_encode(e4m3_decode(byte)), is_nan ? 0x7F : byte);
    EXPECT_EQ(e2m1_encode(e2m1_decode(byte)), byte & 15u);
  }
  for (unsigned code = 0; code < 65536; ++code) {
    const float value = bf16_decode(static_cast<std::uint16_t>(code));
    EXPECT_EQ(bf16_encode(value), std::isnan(value) ? code | 0x40u : code);
  }
}

TEST(Element, EncodersPickANearestValue) {
  EXPECT_TRUE(rc::check("e4m3 and e2m1 round to a nearest value", [] {
    const float value = static_cast<float>(std::ldexp(*rc::gen::inRange(-1000000, 1000000), *rc::gen::inRange(-34, -11)));
    const auto distance = [&](float rounded) { return std::fabs(double{rounded} - double{value}); };
    RC_ASSERT(distance(e4m3_decode(e4m3_encode(value))) == nearest_distance(value, 256, e4m3_decode));
    RC_ASSERT(distance(e2m1_decode(e2m1_encode(value))) == nearest_distance(value, 16, e2m1_decode));
  }));
}

TEST(ElementType, NamesAndSizesAreThoseOfTheFormat) {
  const std::pair<const char*, int> published[] = {
      {"F64", 64}, {"F32", 32}, {"F16", 16}, {"BF16", 16}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F4", 4}, {"F8_E8M0", 8}, {"I64", 64},
      {"I32", 32}, {"I16", 16}, {"I8", 8},   {"U64", 64},  {"U32", 32},    {"U16", 16},    {"U8", 8}, {"BOOL", 8}};
  for (const auto& [name, bits] : published) {
    const std::optional<ElementType> type = element_type_of(name);
    ASSERT_TRUE(type) << name;
    EXPECT_EQ(name_of(*type), name);
    EXPECT_EQ(bits_of(*type), bits);
  }
  EXPECT_FALSE(element_type_of("bf16"));
  EXPECT_FALSE(element_type_of(""));
}

}  // namespace
}  // namespace calandra
