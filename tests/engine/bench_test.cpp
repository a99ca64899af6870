// Measuring: what a row counts, where it ends, and what cannot be measured. Times themselves are nobody's promise.

#include "engine/bench.h"

#include "support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace calandra {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Little of everything.
BenchOptions small_bench() {
  BenchOptions options;
  options.prompts = {3};
  options.decode_tokens = 2;
  options.depths = {0};
  options.batches = {1};
  options.rounds = 1;
  options.least_seconds = 0;
  options.machine = {.threads = 1, .isa = Isa::Scalar, .read_bytes = 16 << 20, .tries = 1};
  return options;
}

std::unique_ptr<Model> golden_model(const std::string& name) {
  return std::make_unique<Model>(golden_path(name), ModelOptions{});
}

TEST(Bench, EveryDepthAndBatchOfEveryModelFitsThePoolItTakes) {
  for (const std::string& name : golden_variants()) {
    SCOPED_TRACE(name);
    const auto model = golden_model(name);
    BenchOptions options = small_bench();
    options.prompts = {1, 65};
    options.depths = {70, 0, 64, 1};
    options.batches = {1, 3, 9};
    options.rounds = 2;
    const BenchResult result = run_bench(*model, options);
    EXPECT_TRUE(result.complete);
    EXPECT_EQ(result.limits.size(), 2U);
    ASSERT_EQ(result.rows.size(), 2U + 4 * 3);
    for (const BenchRow& row : result.rows) {
      EXPECT_EQ(row.seconds.size(), 2U);
      EXPECT_GT(row.tokens_per_second().least, 0);
      EXPECT_LE(row.tokens_per_second().least, row.tokens_per_second().median);
      EXPECT_LE(row.tokens_per_second().median, row.tokens_per_second().most);
      EXPECT_GT(row.share_of_bandwidth(result.limits).least, 0);
      EXPECT_GT(row.share_of_peak(result.limits).least, 0);
      double wall = 0;
      for (const double seconds : row.seconds) wall += seconds;
      EXPECT_LE(row.profile.total_seconds(), wall);
    }
  }
}

// A row alone chooses top_k experts a layer; a batch at least those, and at most all or those of each.
TEST(Bench, ExpertsOfABatchAreCountedOnce) {
  const auto model = golden_model("a_tiny_bf16");  // 8 of 24 experts
  BenchOptions options = small_bench();
  options.decode_tokens = 5;
  options.batches = {1, 2, 30};
  const BenchResult result = run_bench(*model, options);
  const BenchRow &prompt = result.rows[0], &one = result.rows[1], &two = result.rows[2], &thirty = result.rows[3];
  EXPECT_EQ(one.experts_per_layer(), 8);
  EXPECT_GT(two.experts_per_layer(), 8);
  EXPECT_LT(two.experts_per_layer(), 16) << "two tokens with no expert in common at any of 35 routers";
  EXPECT_GT(thirty.experts_per_layer(), 20);
  EXPECT_LE(thirty.experts_per_layer(), 24);
  EXPECT_GT(prompt.experts_per_layer(), 8);
  EXPECT_LE(prompt.experts_per_layer(), 24);
  const auto routed = [](const BenchRow& row) {
    return row.cost.weight_bytes[static_cast<std::size_t>(Component::RoutedExpert)];
  };
  constexpr std::int64_t kExpertBytes = 3 * 16 * 64 * 2;  // hidden 64, experts 16 wide, BF16
  EXPECT_EQ(routed(one), 5 * 7 * 8 * kExpertBytes);
  EXPECT_EQ(routed(two), two.distinct_experts * kExpertBytes);
}

// In the steps of a session: weights once a step, the head once a prompt.
TEST(Bench, APromptIsReadInStepsOf512) {
  const auto model = golden_model("a_tiny_bf16");
  BenchOptions options = small_bench();
  options.prompts = {512, 600};
  options.decode_tokens = 0;
  const BenchResult result = run_bench(*model, options);
  ASSERT_EQ(result.rows.size(), 2U);
  EXPECT_EQ(result.rows[0].steps, 1);
  EXPECT_EQ(result.rows[1].steps, 2);
  const auto bytes = [&](std::size_t row, Component component) {
    return result.rows[row].cost.weight_bytes[static_cast<std::size_t>(component)];
  };
  EXPECT_EQ(bytes(0, Component::Head), 256 * 64 * 2);  // vocabulary, hidden, BF16
  EXPECT_EQ(bytes(1, Component::Head), 256 * 64 * 2);
  EXPECT_EQ(bytes(1, Component::Kda), 2 * bytes(0, Component::Kda));
}

TEST(Bench, ADepthAddsTheLatentsOfItsPositions) {
  const auto model = golden_model("a_tiny_bf16");  // 2 MLA layers, rows of 128 + 64 in BF16
  BenchOptions options = small_bench();
  options.depths = {0, 100};
  const BenchResult result = run_bench(*model, options);
  const std::int64_t difference = result.rows[2].cost.latent_bytes - result.rows[1].cost.latent_bytes;
  EXPECT_EQ(difference, 2 * 100 * 2 * 192 * 2);
}

TEST(Bench, StoppedAnywhereItKeepsWhatWasMeasured) {
  const auto model = golden_model("f_odd_f32");
  BenchOptions options = small_bench();
  options.rounds = 2;
  options.depths = {0, 10};
  std::int64_t total = 0, steps = 0;
  run_bench(*model, options, [&](std::int64_t done, std::int64_t all) {
    total = all;
    ++steps;
    EXPECT_LE(done, all);
    return true;
  });
  EXPECT_GT(total, 0);
  std::size_t most_rows = 0;
  for (std::int64_t stop = 1; stop < steps; ++stop) {
    std::int64_t step = 0;
    const BenchResult result = run_bench(*model, options, [&](std::int64_t, std::int64_t) { return ++step < stop; });
    EXPECT_FALSE(result.complete);
    for (const BenchRow& row : result.rows) {
      EXPECT_GE(row.seconds.size(), 1U);
      EXPECT_LE(row.seconds.size(), result.limits.size());
      EXPECT_GT(row.share_of_bandwidth(result.limits).median, 0);
    }
    EXPECT_GE(result.rows.size(), most_rows);
    most_rows = result.rows.size();
  }
  EXPECT_EQ(most_rows, 3U);
}

TEST(Bench, ProgressEndsAtTheTokensItPromised) {
  const auto model = golden_model("b_flash_bf16");
  BenchOptions options = small_bench();
  options.prompts = {600};
  options.depths = {20, 0};
  options.batches = {1, 3};
  options.rounds = 2;
  std::int64_t last = 0, promised = 0;
  run_bench(*model, options, [&](std::int64_t done, std::int64_t all) {
    last = done;
    promised = all;
    return true;
  });
  EXPECT_EQ(last, promised);
}

TEST(Bench, AShortRunIsRepeatedAndCostsAreCountedOnce) {
  const auto model = golden_model("a_tiny_bf16");
  BenchOptions options = small_bench();
  const BenchResult once = run_bench(*model, options);
  options.least_seconds = 0.2;
  options.rounds = 2;
  std::int64_t last = 0, promised = 0;
  const BenchResult often = run_bench(*model, options, [&](std::int64_t done, std::int64_t all) {
    last = done;
    promised = all;
    return true;
  });
  EXPECT_EQ(last, promised);
  for (std::size_t i = 0; i < once.rows.size(); ++i) {
    const BenchRow& row = often.rows[i];
    EXPECT_EQ(once.rows[i].runs, 1);
    EXPECT_GT(row.runs, 2);
    double all = 0;
    for (const double seconds : row.seconds) all += seconds;
    EXPECT_GE(all / 2 * static_cast<double>(row.runs), 0.399);  // two rounds of 0.2 s at least, however many runs each had
    EXPECT_EQ(row.cost.bytes(), once.rows[i].cost.bytes());
    EXPECT_EQ(row.steps, once.rows[i].steps);
    EXPECT_EQ(row.distinct_experts, once.rows[i].distinct_experts);
  }
}

TEST(Bench, WhatTheContextOrTheMemoryCannotHoldIsRefusedByName) {
  const auto model = golden_model("f_odd_f32");  // a context of 256
  BenchOptions options = small_bench();
  options.prompts = {257};
  EXPECT_THAT(error_of([&] { run_bench(*model, options); }), AllOf(HasSubstr("prompt of 257"), HasSubstr("context of 256")));
  options = small_bench();
  options.depths = {0, 255};
  EXPECT_THAT(error_of([&] { run_bench(*model, options); }), AllOf(HasSubstr("depth of 255 and 2"), HasSubstr("context of 256")));
  options = small_bench();
  options.batches = {1, 1'000'000'000};
  EXPECT_THAT(error_of([&] { run_bench(*model, options); }), AllOf(HasSubstr("batch 1000000000"), HasSubstr("available")));
}

TEST(Bench, MedianOfAnyNumberOfFigures) {
  EXPECT_EQ(spread_of({3.0}).median, 3.0);
  const Spread three = spread_of({5.0, 1.0, 2.0}), four = spread_of({4.0, 1.0, 2.0, 9.0});
  EXPECT_EQ(three.median, 2.0);
  EXPECT_EQ(three.least, 1.0);
  EXPECT_EQ(three.most, 5.0);
  EXPECT_EQ(four.median, 3.0);
  EXPECT_THAT(error_of([] { spread_of({}); }), HasSubstr("found none"));
}

}  // namespace
}  // namespace calandra
