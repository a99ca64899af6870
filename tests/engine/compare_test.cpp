// What a conversion costs a model that was trained.

#include "engine/compare.h"

#include "checkpoint/convert.h"
#include "engine/session.h"
#include "support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace calandra {
namespace {

constexpr const char* kText =
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife. "
    "However little known the feelings or views of such a man may be on his first entering a neighbourhood, this truth is so well "
    "fixed in the minds of the surrounding families, that he is considered the rightful property of some one or other of their daughters.";

const ModelOptions kOptions = {.threads = 2};

ConversionOptions to(ConversionTarget target) {
  ConversionOptions options;
  options.target = target;
  return options;
}

TEST(Compare, AModelAgreesWithItself) {
  const std::string folder = source_path("models/austen-5m");
  Model a(folder, kOptions), b(folder, kOptions);
  const std::vector<std::int32_t> tokens = a.tokenizer().encode(kText);
  const ModelComparison same = compare_models(a, b, tokens, {.window = 20});
  EXPECT_EQ(same.divergence, 0);
  const PerplexityResult alone = measure_perplexity(a, tokens, {.window = 20});
  EXPECT_EQ(same.before.nats, alone.nats);
  EXPECT_EQ(same.after.nats, alone.nats);
  EXPECT_EQ(same.before.predicted_tokens, alone.predicted_tokens);
}

TEST(Compare, DivergenceIsThatOfTheLogitsOneByOne) {
  const TemporaryFolder folder;
  const std::string source = source_path("models/austen-5m");
  Conversion(source, to(ConversionTarget::Fp4All)).write(folder / "out");
  Model before(source, kOptions), after(folder / "out", kOptions);
  std::vector<std::int32_t> tokens = before.tokenizer().encode(kText);
  tokens.resize(12);
  Session p_session(before), q_session(after);
  double sum = 0, worst = 0;
  std::int64_t worst_position = 0;
  for (std::size_t n = 1; n < tokens.size(); ++n) {
    const auto history = std::span(tokens).first(n);
    const auto count = static_cast<std::size_t>(before.num_samplable());
    const auto p = p_session.logits(history).first(count), q = q_session.logits(history).first(count);
    double p_sum = 0, q_sum = 0, divergence = 0;
    for (std::size_t i = 0; i < count; ++i)
      p_sum += std::exp(static_cast<double>(p[i])), q_sum += std::exp(static_cast<double>(q[i]));
    for (std::size_t i = 0; i < count; ++i) {
      const double own = std::exp(static_cast<double>(p[i])) / p_sum;
      divergence += own * std::log(own / (std::exp(static_cast<double>(q[i])) / q_sum));
    }
    sum += divergence;
    if (divergence > worst) worst = divergence, worst_position = static_cast<std::int64_t>(n);
  }
  const ModelComparison compared = compare_models(before, after, tokens);
  EXPECT_NEAR(compared.divergence, sum, 1e-9);
  EXPECT_NEAR(compared.worst_divergence, worst, 1e-9);
  EXPECT_EQ(compared.worst_position, worst_position);
}

TEST(Compare, ConvertedModelsPredictNearlyTheSame) {
  const std::string source = source_path("models/austen-5m");
  Model before(source, kOptions);
  const std::vector<std::int32_t> tokens = before.tokenizer().encode(kText);
  double last = 0;
  for (const auto target : {ConversionTarget::Fp8, ConversionTarget::Fp4, ConversionTarget::Fp4All}) {
    const TemporaryFolder folder;
    Conversion(source, to(target)).write(folder / "out");
    Model after(folder / "out", kOptions);
    const ModelComparison compared = compare_models(before, after, tokens);
    RecordProperty(std::string(name_of(target)), std::to_string(compared.mean_divergence()));
    EXPECT_GT(compared.mean_divergence(), last) << name_of(target);  // fewer bits, farther away
    EXPECT_LT(compared.mean_divergence(), 0.25) << name_of(target);
    EXPECT_NEAR(compared.after.mean_nats(), compared.before.mean_nats(), 0.25) << name_of(target);
    last = compared.mean_divergence();
  }
}

TEST(Compare, VocabulariesMustBeOne) {
  Model a(source_path("models/austen-5m"), kOptions), b(golden_path("a_tiny_bf16"), kOptions);
  const std::vector<std::int32_t> tokens = {1, 2, 3};
  EXPECT_THAT(error_of([&] { compare_models(a, b, tokens); }), testing::HasSubstr("tokens in the vocabulary"));
}

}  // namespace
}  // namespace calandra
