// The grouped sigmoid router: golden sets, ties, and the faults that others met.

#include "cases.h"
#include "implementations.h"
#include "support/golden.h"
#include "support/json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>

namespace calandra {
namespace {

constexpr RouterParameters kLing = {8, 4, 8, 2.5f};

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Routed route(const Kernels& kernels, std::span<const float> logits, std::span<const float> bias,
             const RouterParameters& parameters) {
  const Guarded<float> guarded_logits(logits);
  const Guarded<float> guarded_bias(bias);
  Guarded<std::int32_t> ids(static_cast<std::size_t>(parameters.top_k));
  Guarded<float> weights(static_cast<std::size_t>(parameters.top_k));
  kernels.route(guarded_logits.span(), guarded_bias.span(), parameters, ids.span(), weights.span());
  return {ids.copy(), weights.copy()};
}

std::vector<std::int32_t> first_ids(int count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(RouterGolden, EveryCase) {
  const GoldenTensors golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  const auto cases = read_json(golden_path("kernels.json"));
  int found = 0;
  for (const auto& [name, info] : cases.items()) {
    if (info["kernel"] != "route") continue;
    ++found;
    const auto& p = info["parameters"];
    const RouterParameters parameters = {p["n_group"], p["topk_group"], p["top_k"], p["scaling"]};
    const std::vector<float> bias = golden.floats(name + "/bias");
    const std::vector<float> logits = golden.floats(name + "/logits");
    for (const Implementation& implementation : implementations()) {
      std::vector<std::int64_t> ids;
      std::vector<float> weights;
      for (std::size_t begin = 0; begin < logits.size(); begin += bias.size()) {
        const Routed routed = route(*implementation.kernels, std::span(logits).subspan(begin, bias.size()), bias, parameters);
        ids.insert(ids.end(), routed.ids.begin(), routed.ids.end());
        weights.insert(weights.end(), routed.weights.begin(), routed.weights.end());
      }
      EXPECT_EQ(ids, golden.ints(name + "/ids")) << implementation.name << " " << name;
      expect_close_to_largest(weights, golden.floats(name + "/weights"), 1e-5, implementation.name + " " + name);
    }
  }
  EXPECT_EQ(found, 10);
}

TEST(Router, InstructionSetsAgreeBitForBit) {
  Random random(1);
  for (int round = 0; round < 50; ++round) {
    const std::vector<float> logits = normal_values(random, 64, 1.5f);
    const std::vector<float> bias = uniform_values(random, 64, -0.3f, 0.2f);
    const Routed expected = route(kernels_for(Isa::Scalar), logits, bias, kLing);
    for (const Implementation& implementation : implementations()) {
      const Routed routed = route(*implementation.kernels, logits, bias, kLing);
      EXPECT_EQ(routed.ids, expected.ids) << implementation.name;
      expect_same_bits(routed.weights, expected.weights, implementation.name);
    }
  }
}

TEST(Router, NotANumberStaysInsideTheTableAndIdsStayDistinct) {
  Random random(2);
  for (const Implementation& implementation : implementations()) {
    for (const int broken : {1, 8, 63, 64}) {
      std::vector<float> logits = normal_values(random, 64);
      for (int i = 0; i < broken; ++i) logits[static_cast<std::size_t>(i * 7 % 64)] = std::numeric_limits<float>::quiet_NaN();
      const Routed routed = route(*implementation.kernels, logits, std::vector<float>(64, 0.0f), kLing);
      const std::set<std::int32_t> distinct(routed.ids.begin(), routed.ids.end());
      EXPECT_EQ(distinct.size(), 8u) << implementation.name;
      EXPECT_GE(*distinct.begin(), 0);
      EXPECT_LT(*distinct.rbegin(), 64);
      EXPECT_TRUE(broken > 1 || !distinct.contains(0)) << "an expert without a score was chosen";
    }
  }
}

TEST(Router, AGroupOfOneExpertCountsItsOnlyScore) {
  const std::vector<float> logits = {0.0f, 2.0f, 1.0f, -1.0f};
  for (const Implementation& implementation : implementations()) {
    const Routed routed = route(*implementation.kernels, logits, std::vector<float>(4, 0.0f), {4, 2, 2, 1.0f});
    EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{1, 2})) << implementation.name;
  }
}

// ------------------------------------------------------------------------- faults that users of other engines met

TEST(Router, ClosedGroupsAreMaskedByMinusInfinity) {
  // All biased scores are negative; group 0 holds the best pair, yet experts of the others must not beat its rest as zeros would.
  std::vector<float> logits(32, -1.0f);
  for (std::size_t e = 0; e < 4; ++e) logits[e] = 3.0f - static_cast<float>(e);
  const std::vector<float> bias(32, -5.0f);
  for (const Implementation& implementation : implementations()) {
    EXPECT_EQ(route(*implementation.kernels, logits, bias, {8, 1, 4, 2.5f}).ids, first_ids(4)) << implementation.name;
  }
}

TEST(Router, BiasesThatBf16WouldMergeStayApart) {
  std::vector<float> bias;
  for (int e = 0; e < 256; ++e) bias.push_back(6.8170f + (7.0630f - 6.8170f) * static_cast<float>((e * 37) % 256) / 255.0f);
  const std::vector<float> logits(256, 0.25f);
  std::vector<std::int32_t> expected(256);
  std::iota(expected.begin(), expected.end(), 0);
  std::ranges::sort(expected, [&](std::int32_t a, std::int32_t b) {
    return bias[static_cast<std::size_t>(a)] > bias[static_cast<std::size_t>(b)];
  });
  expected.resize(8);
  for (const Implementation& implementation : implementations()) {
    EXPECT_EQ(route(*implementation.kernels, logits, bias, {1, 1, 8, 2.5f}).ids, expected) << implementation.name;
  }
}

TEST(Router, WeightsComeFromTheSigmoidAlone) {
  const std::vector<float> logits(8, std::log(1e-8f));
  std::vector<float> bias(8, -12.0f);
  bias[2] = bias[5] = 12.0f;
  for (const Implementation& implementation : implementations()) {
    const Routed routed = route(*implementation.kernels, logits, bias, {1, 1, 2, 2.5f});
    EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{2, 5})) << implementation.name;
    for (const float weight : routed.weights) EXPECT_NEAR(weight, 1.25f, 1e-6f) << implementation.name;
  }
}

TEST(Router, ScoresThatAllUnderflowGiveWeightsOfZero) {
  for (const Implementation& implementation : implementations()) {
    const Routed routed = route(*implementation.kernels, std::vector<float>(64, -200.0f), std::vector<float>(64, 0.0f), kLing);
    EXPECT_EQ(routed.ids, first_ids(8)) << implementation.name;
    EXPECT_EQ(routed.weights, std::vector<float>(8, 0.0f)) << implementation.name;
  }
}

TEST(Router, TiesThatOnlyFloat32ResolvesAreResolvedAndExactTiesGoToTheLowerId) {
  std::vector<float> logits(16, 0.0f);
  const std::vector<float> bias(16, 0.0f);
  logits[9] = 1e-4f;  // sigmoid 0.500025, which bf16 rounds to 0.5
  for (const Implementation& implementation : implementations()) {
    const Routed routed = route(*implementation.kernels, logits, bias, {4, 2, 4, 1.0f});
    EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{9, 0, 1, 2})) << implementation.name;
  }
}

}  // namespace
}  // namespace calandra
