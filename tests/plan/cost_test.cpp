// What a step costs, against published figures (docs/model.md 10) and the files of the golden models.

#include "plan/cost.h"

#include "base/json.h"
#include "support/golden.h"
#include "support/released.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

namespace calandra {
namespace {

/// Of a whole released model; made once, since its headers are a hundred thousand.
const CostModel& cost_model(const SyntheticOptions& options) {
  static std::map<std::pair<LingModel, SyntheticFormat>, CostModel> made;
  const auto key = std::pair(options.model, options.format);
  const auto found = made.find(key);
  if (found != made.end()) return found->second;
  const Config config = config_of(options);
  return made.emplace(key, CostModel(config, summary_of(options), memory_layout(config, CacheType::BF16, false))).first->second;
}

/// One token of each of `batch` sequences of that length, their experts all different.
StepCost decode(const CostModel& model, std::int64_t depth = 0, std::int64_t batch = 1) {
  const std::vector<StepSlice> slices(static_cast<std::size_t>(batch), StepSlice{depth, 1});
  return model.cost_of({slices, batch, std::min(model.num_experts(), batch * model.experts_of_a_row())});
}

std::int64_t weight_bytes(const StepCost& cost, Component component) {
  return cost.weight_bytes[static_cast<std::size_t>(component)];
}

std::int64_t sum_of_weights(const StepCost& cost) {
  std::int64_t sum = 0;
  for (const std::int64_t bytes : cost.weight_bytes) sum += bytes;
  return sum;
}

// docs/model.md 10.3, item by item.
TEST(Cost, ADecodedTokenOf31FlashReadsThePublishedBytes) {
  const StepCost cost = decode(cost_model(whole(LingModel::Flash31, SyntheticFormat::Fp8)));
  EXPECT_EQ(weight_bytes(cost, Component::Kda), 12'734'184'960);
  EXPECT_EQ(weight_bytes(cost, Component::Mla), 630'122'112);
  EXPECT_EQ(weight_bytes(cost, Component::DenseMlp), 503'439'360);
  EXPECT_EQ(weight_bytes(cost, Component::RoutedExpert), 8'558'469'120);
  EXPECT_EQ(weight_bytes(cost, Component::SharedExpert), 1'069'808'640);
  EXPECT_EQ(weight_bytes(cost, Component::Router), 285'351'936);
  EXPECT_EQ(weight_bytes(cost, Component::Norm), 1'187'840);
  EXPECT_EQ(weight_bytes(cost, Component::Head), 1'287'651'328);
  EXPECT_EQ(weight_bytes(cost, Component::Embedding), 0);
  EXPECT_EQ(weight_bytes(cost, Component::Mtp), 0);
  EXPECT_EQ(sum_of_weights(cost), 25'070'215'296);
  EXPECT_EQ(cost.state_bytes, 528'482'304 + 2 * 9'289'728);
  EXPECT_EQ(sum_of_weights(decode(cost_model(whole(LingModel::Flash31, SyntheticFormat::Fp4)))), 21'057'323'136);
}

TEST(Cost, EveryTokenOfContextAddsThePublishedBytes) {
  const CostModel& model = cost_model(whole(LingModel::Flash31, SyntheticFormat::Fp8));
  EXPECT_EQ(decode(model, 0).latent_bytes, 10'368);
  EXPECT_EQ(decode(model, 200'000).bytes() - decode(model, 0).bytes(), 10'368 * 200'000);
}

// Gigabytes of a decoded token, its state included, as the project's design counts them.
TEST(Cost, ADecodedTokenOfTinyInEveryFormat) {
  const auto gigabytes = [](SyntheticFormat format) {
    return static_cast<double>(decode(cost_model(whole(LingModel::Tiny30, format))).bytes()) / 1e9;
  };
  EXPECT_NEAR(gigabytes(SyntheticFormat::Bf16), 2.32, 0.005);
  EXPECT_NEAR(gigabytes(SyntheticFormat::Fp8), 1.43, 0.005);
  EXPECT_NEAR(gigabytes(SyntheticFormat::Fp4), 1.22, 0.005);
}

// docs/model.md 10.2: active parameters, and by hand the rest.
TEST(Cost, OperationsAreTwoAnActiveParameterAndThoseOfStateAndLatents) {
  const std::array<std::pair<LingModel, std::int64_t>, 3> active = {
      {{LingModel::Flash31, 24'250'707'776}, {LingModel::Flash30, 5'103'302'112}, {LingModel::Tiny30, 1'140'301'216}}};
  for (const auto& [name, parameters] : active) {
    const StepCost cost = decode(cost_model(whole(name, SyntheticFormat::Bf16)));
    EXPECT_EQ(cost.operations() - cost.recurrence_operations - cost.attention_operations, 2 * parameters) << name_of(name);
  }
  const StepCost tiny = decode(cost_model(whole(LingModel::Tiny30, SyntheticFormat::Fp8)), 999);
  EXPECT_EQ(tiny.recurrence_operations, 18 * 16 * 128 * 128 * 7);
  EXPECT_EQ(tiny.attention_operations, 6 * 16 * 1000 * (2 * 576 + 2 * 512));  // layers, heads, positions, scores and context
}

TEST(Cost, ABatchReadsTheWeightsOnceAndItsExpertsOnce) {
  const CostModel& model = cost_model(whole(LingModel::Tiny30, SyntheticFormat::Bf16));
  EXPECT_EQ(model.num_experts(), 23 * 128);
  const StepCost one = decode(model), eight = decode(model, 0, 8), many = decode(model, 0, 1000);
  EXPECT_EQ(weight_bytes(eight, Component::Kda), weight_bytes(one, Component::Kda));
  EXPECT_EQ(weight_bytes(eight, Component::Head), weight_bytes(one, Component::Head));
  EXPECT_EQ(weight_bytes(eight, Component::RoutedExpert), 8 * weight_bytes(one, Component::RoutedExpert));
  EXPECT_EQ(weight_bytes(many, Component::RoutedExpert), 2 * 6'945'767'424);  // all there are, in BF16
  EXPECT_EQ(eight.state_bytes, 8 * one.state_bytes);
  EXPECT_EQ(eight.operations(), 8 * one.operations());
}

TEST(Cost, APromptCutInTwoDoesTheSameOperationsAndReadsWeightsAndStateTwice) {
  const CostModel& model = cost_model(whole(LingModel::Flash30, SyntheticFormat::Bf16));
  const auto cost_of = [&](std::int64_t position, std::int64_t tokens) {
    const StepSlice slice{position, tokens};
    return model.cost_of({std::span(&slice, 1), 0, model.num_experts()});
  };
  StepCost parts = cost_of(0, 300);
  parts += cost_of(300, 212);
  const StepCost all = cost_of(0, 512);
  EXPECT_EQ(parts.operations(), all.operations());
  EXPECT_EQ(sum_of_weights(parts), 2 * sum_of_weights(all));
  EXPECT_EQ(parts.state_bytes, 2 * all.state_bytes);
  EXPECT_EQ(weight_bytes(all, Component::Head), 0) << "no row needs logits";
}

TEST(Cost, ATiedTableIsReadAsTheHead) {
  auto json = synthetic_config(whole(LingModel::Tiny30, SyntheticFormat::Bf16));
  json["tie_word_embeddings"] = true;
  const Config config = parse_config(dump_json(json), "config.json");
  const ModelSummary summary = summarize(config, synthetic_tensors(whole(LingModel::Tiny30, SyntheticFormat::Bf16)));
  const CostModel tied(config, summary, memory_layout(config, CacheType::BF16, false));
  EXPECT_EQ(decode(tied).bytes(), decode(cost_model(whole(LingModel::Tiny30, SyntheticFormat::Bf16))).bytes());
}

// The files themselves: with every expert read, a step moves all tensors but the embedding and the MTP layer.
TEST(Cost, AStepThatReadsEveryExpertOfAGoldenModelReadsItsFiles) {
  for (const std::string& name : golden_variants()) {
    const Checkpoint checkpoint = Checkpoint::open(golden_path(name));
    const Config& config = checkpoint.config();
    std::int64_t expected = 0;
    for (const auto& [tensor, stored] : checkpoint.tensors()) {
      const bool is_mtp = tensor.starts_with("model.layers." + std::to_string(config.layers) + ".");
      if (!is_mtp && tensor != "model.word_embeddings.weight") expected += std::ssize(stored.view.data);
    }
    const CostModel model(config, summarize(checkpoint), memory_layout(config, CacheType::F32, false));
    const StepSlice slice{0, 1};
    EXPECT_EQ(sum_of_weights(model.cost_of({std::span(&slice, 1), 1, model.num_experts()})), expected) << name;
  }
  // By hand for the model with odd shapes: 4 KDA layers and 3 MLA, the last one included, 3 heads of 64, latents of 48 + 32, tails of 9 rows of 192.
  const Checkpoint odd = Checkpoint::open(golden_path("f_odd_f32"));
  const CostModel model(odd.config(), summarize(odd), memory_layout(odd.config(), CacheType::F32, false));
  const StepCost cost = decode(model, 9);
  EXPECT_EQ(cost.state_bytes, 2 * 4 * (3 * 64 * 64 * 4 + 9 * 192 * 4));
  EXPECT_EQ(cost.latent_bytes, 10 * 3 * 80 * 4);
  EXPECT_EQ(model.experts_of_a_row(), 5 * 3);
}

}  // namespace
}  // namespace calandra
