// What a step costs, against published figures (docs/model.md 10) and the files of the golden models.

#include "plan/cost.h"

#include "base/json.h"
#include "support/cost_models.h"
#include "support/golden.h"
#include "support/released.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace calandra {
namespace {

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

// ---- Drafts.

/// One more draft for each of `batch` sequences whose last row is at `position`.
StepCost draft(const CostModel& model, std::int64_t position = 0, std::int64_t batch = 1) {
  const std::vector<StepSlice> slices(static_cast<std::size_t>(batch), StepSlice{position, 1});
  return model.cost_of_draft(slices);
}

// docs/model.md 10.2 and 10.4, item by item: MLA, shared expert, router, eh_proj, norms, eight routed experts, head.
TEST(Cost, ADraftOf31FlashReadsThePublishedBytes) {
  const std::int64_t without_experts = 69'751'552 + 15'732'480 + 4'196'352 + 67'108'864 + 40'960;
  const StepCost fp8 = draft(cost_model(LingModel::Flash31, SyntheticFormat::Fp8));
  EXPECT_EQ(weight_bytes(fp8, Component::Mtp), without_experts + 8 * 15'732'480);
  EXPECT_EQ(weight_bytes(fp8, Component::Head), 1'287'651'328);
  EXPECT_EQ(sum_of_weights(fp8), weight_bytes(fp8, Component::Mtp) + weight_bytes(fp8, Component::Head));
  EXPECT_EQ(fp8.state_bytes, 0);
  EXPECT_EQ(weight_bytes(draft(cost_model(LingModel::Flash31, SyntheticFormat::Fp4)), Component::Mtp),
            without_experts + 8 * 8'355'840);

  const std::int64_t parameters = 69'732'352 + 9 * 15'728'640 + 142'641'152 / 68 + 5 * 4096 + 2 * 4096 * 4096 + 643'825'664;
  EXPECT_EQ(fp8.operations() - fp8.attention_operations, 2 * parameters);
}

TEST(Cost, ADraftReadsTheLatentsOfTheMtpLayer) {
  const CostModel& model = cost_model(LingModel::Flash31, SyntheticFormat::Fp8);
  EXPECT_EQ(draft(model, 999).latent_bytes, 1000 * 1152);  // docs/model.md: what the MTP layer adds a token
  EXPECT_EQ(draft(model, 999).attention_operations, 64 * 1000 * (2 * 576 + 2 * 512));
  EXPECT_EQ(draft(model, 999, 3).latent_bytes, 3 * 1000 * 1152);
}

TEST(Cost, CommittingReadsTheStateOnceMore) {
  EXPECT_EQ(cost_model(LingModel::Flash31, SyntheticFormat::Fp8).commit_bytes(), 264'241'152 + 9'289'728);
}

TEST(Cost, DraftsOfManySequencesReadTheLayerAndTheHeadOnce) {
  const CostModel& model = cost_model(LingModel::Flash31, SyntheticFormat::Fp8);
  const StepCost one = draft(model), two = draft(model, 0, 2), many = draft(model, 0, 10'000);
  EXPECT_EQ(weight_bytes(two, Component::Head), weight_bytes(one, Component::Head));
  // Of the second row's eight experts one in 64 is the first row's too: 7.875 more.
  EXPECT_EQ(weight_bytes(two, Component::Mtp) - weight_bytes(one, Component::Mtp), 7'875 * 15'732'480LL / 1000);
  EXPECT_EQ(weight_bytes(many, Component::Mtp) - weight_bytes(one, Component::Mtp), 504 * 15'732'480LL);
  EXPECT_EQ(two.operations(), 2 * one.operations());
}

TEST(Cost, AModelWithoutAnMtpLayerHasNoDrafts) {
  const CostModel& tiny = cost_model(LingModel::Tiny30, SyntheticFormat::Bf16);
  EXPECT_FALSE(tiny.has_mtp());
  EXPECT_TRUE(cost_model(LingModel::Flash31, SyntheticFormat::Fp8).has_mtp());
  EXPECT_EQ(draft(tiny, 1000, 3).bytes(), 0);
  EXPECT_EQ(draft(tiny, 1000, 3).operations(), 0);
  EXPECT_EQ(draft(cost_model(LingModel::Flash31, SyntheticFormat::Fp8), 0, 0).bytes(), 0) << "nobody drafts";
}

// The files themselves, where all experts are stored alike: drafts of very many sequences read the whole layer, and the head.
TEST(Cost, DraftsThatReadEveryExpertOfAGoldenModelReadItsMtpLayer) {
  int models = 0;
  for (const std::string& name : golden_variants()) {
    const Checkpoint checkpoint = Checkpoint::open(golden_path(name));
    const Config& config = checkpoint.config();
    if (config.mtp_layers == 0) continue;
    std::int64_t expected = 0;
    for (const auto& [tensor, stored] : checkpoint.tensors()) {
      const bool is_head = tensor == (config.tied_head ? "model.word_embeddings.weight" : "lm_head.weight");
      if (is_head || tensor.starts_with("model.layers." + std::to_string(config.layers) + "."))
        expected += std::ssize(stored.view.data);
    }
    const CostModel model(config, summarize(checkpoint), memory_layout(config, CacheType::F32, true));
    EXPECT_EQ(sum_of_weights(draft(model, 0, 10'000)), expected) << name;
    ++models;
  }
  EXPECT_GT(models, 0);
}

/// Distinct experts of so many rows of a layer, each of which draws top_k different ones: the mean of many tries.
double drawn_experts(std::size_t experts, std::size_t top_k, int rows) {
  std::mt19937_64 random(7);
  std::vector<std::size_t> deck(experts);
  std::iota(deck.begin(), deck.end(), std::size_t{0});
  constexpr int kTries = 400;
  std::int64_t sum = 0;
  for (int n = 0; n < kTries; ++n) {
    std::set<std::size_t> chosen;
    for (int row = 0; row < rows; ++row)
      for (std::size_t i = 0; i < top_k; ++i) {
        std::swap(deck[i], deck[i + random() % (experts - i)]);
        chosen.insert(deck[i]);
      }
    sum += std::ssize(chosen);
  }
  return static_cast<double>(sum) / kTries;
}

TEST(Cost, ExpectedExpertsAreThoseThatRowsDraw) {
  const CostModel& flash = cost_model(LingModel::Flash31, SyntheticFormat::Fp8);
  EXPECT_EQ(flash.expected_experts(0), 0);
  EXPECT_EQ(flash.expected_experts(1), flash.experts_of_a_row());
  EXPECT_EQ(flash.expected_experts(100'000), flash.num_experts());
  for (const int rows : {2, 4, 16, 64}) {
    const double drawn = 68 * drawn_experts(512, 8, rows);
    EXPECT_NEAR(static_cast<double>(flash.expected_experts(rows)), drawn, 0.01 * drawn) << rows << " rows";
  }
  EXPECT_GT(flash.expected_experts(2.5), flash.expected_experts(2));
  EXPECT_LT(flash.expected_experts(2.5), flash.expected_experts(3));
}

}  // namespace
}  // namespace calandra
