// Encoders of the quantised formats: every golden code exactly.

#include "kernels/quantize.h"
#include "cases.h"
#include "implementations.h"
#include "support/golden.h"

#include <gtest/gtest.h>

#include <cmath>

namespace calandra {
namespace {

std::vector<std::int64_t> widen(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

TEST(QuantizeGolden, Fp8WeightsWithBothScaleTypes) {
  const GoldenTensors golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  const Guarded<float> w(golden.floats("fp8_quantise/w"));
  const Fp8Blocks plain = quantize_fp8(rows_of(w, 130), false);
  EXPECT_EQ(widen(plain.codes), golden.ints("fp8_quantise/codes"));
  EXPECT_EQ(plain.scales, golden.floats("fp8_quantise/scales"));
  EXPECT_TRUE(plain.e8m0.empty());
  const Fp8Blocks powers = quantize_fp8(rows_of(w, 130), true);
  EXPECT_EQ(widen(powers.codes), golden.ints("fp8_quantise/codes_ue8m0"));
  EXPECT_EQ(widen(powers.e8m0), golden.ints("fp8_quantise/scales_ue8m0"));
}

TEST(QuantizeGolden, Mxfp4Weights) {
  const GoldenTensors golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  const Guarded<float> w(golden.floats("mxfp4_quantise/w"));
  const MxBlocks blocks = quantize_mxfp4(rows_of(w, 9));
  EXPECT_EQ(widen(blocks.packed), golden.ints("mxfp4_quantise/packed"));
  EXPECT_EQ(widen(blocks.e8m0), golden.ints("mxfp4_quantise/scales"));
}

TEST(QuantizeGolden, ActivationsWithBothScaleTypes) {
  const GoldenTensors golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  for (const bool power_of_two : {false, true}) {
    const std::string suffix = power_of_two ? "_ue8m0" : "";
    Guarded<float> x(golden.floats("spec_activation_fp8/x"));
    std::vector<std::uint8_t> codes(4);
    std::vector<float> scales(1);
    quantize_activations_fp8(x.span(), power_of_two, codes, scales);
    EXPECT_EQ(widen(codes), golden.ints("spec_activation_fp8/codes" + suffix));
    EXPECT_EQ(scales, golden.floats("spec_activation_fp8/scale" + suffix));
  }
}

TEST(Quantize, ZerosStayZeros) {
  const Guarded<float> w(130 * 160);
  const Fp8Blocks blocks = quantize_fp8(rows_of(w, 130), false);
  EXPECT_EQ(blocks.scales, std::vector<float>(4, 1.0f));
  EXPECT_EQ(blocks.codes, std::vector<std::uint8_t>(w.size(), 0));
  EXPECT_EQ(quantize_fp8(rows_of(w, 130), true).e8m0, std::vector<std::uint8_t>(4, 127));
  EXPECT_EQ(quantize_mxfp4(rows_of(w, 130)).e8m0, std::vector<std::uint8_t>(130 * 5, 127));
  Guarded<float> x(200);
  std::vector<float> scales(2);
  quantize_activations_fp8(x.span(), false, {}, scales);
  EXPECT_EQ(scales, std::vector<float>(2, 1e-10f / 448.0f));
  EXPECT_EQ(x.copy(), std::vector<float>(200, 0.0f));
}

TEST(Quantize, TheTiniestNumbersStayNumbers) {
  const Guarded<float> w(std::vector<float>{1e-43f, 0.0f, -3e-44f, 1e-45f});  // a largest one of 71 times 2^-149
  const Fp8Blocks blocks = quantize_fp8(rows_of(w, 1), false);
  for (std::size_t i = 0; i < w.size(); ++i)
    EXPECT_NEAR(e4m3_decode(blocks.codes[i]) * blocks.scales[0], w[i], std::fabs(w[i]) / 16) << i;
  for (const Implementation& implementation : implementations()) {
    Guarded<std::byte> row(static_cast<std::size_t>(cache_row_bytes(CacheType::Fp8, 4)));
    Guarded<float> back(4);
    implementation->store_cache(w.span(), CacheType::Fp8, row.data());
    implementation->load_cache(row.data(), CacheType::Fp8, back.span());
    for (std::size_t i = 0; i < w.size(); ++i)
      EXPECT_NEAR(back[i], w[i], std::fabs(w[i]) / 16) << implementation.name << " " << i;
  }
}

TEST(Quantize, APowerOfTwoScaleIsTheSmallestThatDoesNotSaturate) {
  Random random(1);
  for (int round = 0; round < 2000; ++round) {
    const float largest = std::ldexp(uniform(random, 1.0f, 2.0f), static_cast<int>(uniform_int(random, -30, 30)));
    std::vector<float> x = {largest};
    std::vector<float> scales(1);
    quantize_activations_fp8(x, true, {}, scales);
    EXPECT_LE(largest, 448.0f * scales[0]);
    EXPECT_GT(largest, 224.0f * scales[0]);
  }
}

}  // namespace
}  // namespace calandra
