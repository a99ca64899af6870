#include "checkpoint/summary.h"

#include "base/json.h"
#include "support/golden.h"
#include "support/released.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <map>

namespace calandra {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const ComponentSummary& part(const ModelSummary& summary, Component component) {
  for (const ComponentSummary& c : summary.components) {
    if (c.component == component) return c;
  }
  static const ComponentSummary none;
  return none;
}

/// A column of docs/model.md 10.2.
struct Published {
  LingModel model;
  std::array<std::int64_t, 9> parts;  // kda, mla, dense, routed, shared, router, norms, embedding, head
  std::int64_t main, mtp, with_mtp, active, active_with_embedding;
};

const std::array<Published, 3>& published() {
  static const std::array<Published, 3> columns = {{
      {LingModel::Flash31,
       {12706811712, 627591168, 503316480, 547608330240, 1069547520, 142641152, 593920, 643825664, 643825664},
       563946483520,
       8174197248,
       572120680768,
       24250707776,
       24894533440},
      {LingModel::Flash30,
       {2206746080, 223759872, 94371840, 120795955200, 235929600, 52449280, 217600, 402391040, 402391040},
       124414211552,
       3072194048,
       127486405600,
       5103302112,
       5505693152},
      {LingModel::Tiny30,
       {340662816, 43995648, 21233664, 6945767424, 54263808, 4524928, 75264, 241434624, 241434624},
       7893392800,
       0,
       7893392800,
       1140301216,
       1381735840},
  }};
  return columns;
}

constexpr std::array<Component, 9> kParts = {Component::Kda,          Component::Mla,          Component::DenseMlp,
                                             Component::RoutedExpert, Component::SharedExpert, Component::Router,
                                             Component::Norm,         Component::Embedding,    Component::Head};

TEST(Summary, ParametersAreThePublishedOnes) {
  for (const Published& column : published()) {
    SCOPED_TRACE(name_of(column.model));
    const ModelSummary summary = summary_of(whole(column.model, SyntheticFormat::Bf16));
    for (std::size_t i = 0; i < kParts.size(); ++i)
      EXPECT_EQ(part(summary, kParts[i]).parameters, column.parts[i]) << name_of(kParts[i]);
    EXPECT_EQ(part(summary, Component::Mtp).parameters, column.mtp);
    EXPECT_EQ(summary.main_parameters, column.main);
    EXPECT_EQ(summary.parameters, column.with_mtp);
    EXPECT_EQ(summary.active_parameters, column.active);
    EXPECT_EQ(summary.active_parameters_with_embedding, column.active_with_embedding);
    EXPECT_THAT(summary.missing, IsEmpty());
    EXPECT_THAT(summary.surplus, IsEmpty());
  }
}

TEST(Summary, BytesOfThe31FlashReleaseAreThePublishedOnesItemByItem) {
  const ModelSummary summary = summary_of(whole(LingModel::Flash31, SyntheticFormat::Fp8));
  // docs/model.md 10.4
  const std::map<Component, std::int64_t> expected = {
      {Component::Kda, 12734184960},         {Component::Mla, 630122112},
      {Component::DenseMlp, 503439360},      {Component::RoutedExpert, 547742023680},
      {Component::SharedExpert, 1069808640}, {Component::Router, 285351936},
      {Component::Norm, 1179648 + 8192},     {Component::Embedding, 1287651328},
      {Component::Head, 1287651328},         {Component::Mtp, 69751552 + 8055029760 + 15732480 + 4196352 + 40960 + 67108864}};
  for (const auto& [component, bytes] : expected) EXPECT_EQ(part(summary, component).bytes, bytes) << name_of(component);
  EXPECT_EQ(summary.bytes, 573753281152);
  EXPECT_EQ(summary.bytes_per_token, 25070215296);
}

TEST(Summary, BytesOfOtherFormatsAreThePublishedOnes) {
  // docs/model.md 10.2, 10.3, 10.5
  const ModelSummary fp4 = summary_of(whole(LingModel::Flash31, SyntheticFormat::Fp4));
  EXPECT_EQ(fp4.bytes, 313151343232);
  EXPECT_EQ(fp4.bytes_per_token, 21057323136);
  EXPECT_EQ(summary_of(whole(LingModel::Flash30, SyntheticFormat::Bf16)).bytes, 254973142144);
  EXPECT_EQ(summary_of(whole(LingModel::Tiny30, SyntheticFormat::Bf16)).bytes, 15786865792);
}

TEST(Summary, PartsAddUpAndTypesToo) {
  for (const SyntheticFormat format :
       {SyntheticFormat::Bf16, SyntheticFormat::Fp8, SyntheticFormat::Fp8E8m0, SyntheticFormat::Fp4}) {
    SyntheticOptions options = whole(LingModel::Flash30, format);
    options.layers = 6;
    options.experts = 16;
    const std::vector<TensorHeader> tensors = synthetic_tensors(options);
    std::int64_t bytes = 0;
    for (const TensorHeader& tensor : tensors) bytes += num_bytes(tensor.type, tensor.shape);
    const ModelSummary summary = summarize(config_of(options), tensors);
    EXPECT_EQ(summary.bytes, bytes);
    std::int64_t by_type = 0;
    for (const ComponentSummary& c : summary.components) {
      for (const auto& [type, amount] : c.bytes_by_type) by_type += amount;
    }
    EXPECT_EQ(by_type, bytes);
    EXPECT_EQ(to_json(summary).at("bytes"), bytes);
    EXPECT_EQ(to_json(summary).at("components").size(), summary.components.size());
  }
}

TEST(Summary, ATiedHeadCountsOnceAndIsReadForEveryToken) {
  auto json = synthetic_config(whole(LingModel::Tiny30, SyntheticFormat::Bf16));
  const std::vector<TensorHeader> tensors = synthetic_tensors(whole(LingModel::Tiny30, SyntheticFormat::Bf16));
  const ModelSummary untied = summarize(parse_config(dump_json(json), "config.json"), tensors);
  json["tie_word_embeddings"] = true;
  const ModelSummary tied = summarize(parse_config(dump_json(json), "config.json"), tensors);
  EXPECT_EQ(tied.parameters, 7893392800 - 241434624);
  EXPECT_EQ(tied.active_parameters, untied.active_parameters);
  EXPECT_EQ(tied.bytes_per_token, untied.bytes_per_token);
  EXPECT_THAT(tied.surplus, ElementsAre("lm_head.weight"));
}

TEST(Summary, TellsMissingAndSurplusTensorsAndLimitLists) {
  const SyntheticOptions options = whole(LingModel::Flash30, SyntheticFormat::Fp8);
  std::vector<TensorHeader> tensors = synthetic_tensors(options);
  std::erase_if(tensors, [](const TensorHeader& t) { return t.name == "model.layers.3.attention.A_log"; });
  tensors.push_back({"model.layers.3.attention.rotary_emb.inv_freq", ElementType::F32, {32}});
  const ModelSummary summary = summarize(config_of(options), tensors);
  EXPECT_THAT(summary.missing, ElementsAre("model.layers.3.attention.A_log"));
  EXPECT_THAT(summary.surplus, ElementsAre("model.layers.3.attention.rotary_emb.inv_freq"));
  EXPECT_THAT(summary.remarks, Contains("missing: model.layers.3.attention.A_log"));
  EXPECT_THAT(summary.remarks, Contains("not part of the network: model.layers.3.attention.rotary_emb.inv_freq"));
  EXPECT_THAT(summary.remarks, Contains("SwiGLU limits of routed experts: 4 in layers 35 to 41"));
  EXPECT_THAT(summary.remarks, Contains("SwiGLU limits of shared experts: 5 in layers 34 to 39, 7 in layers 40 to 41"));
}

TEST(Summary, CountsGoldenVariantsAsTheirFilesDo) {
  for (const std::string& name : golden_variants()) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = Checkpoint::open(golden_path(name));
    const ModelSummary summary = summarize(checkpoint);
    std::int64_t bytes = 0;
    for (const auto& [tensor_name, tensor] : checkpoint.tensors()) bytes += static_cast<std::int64_t>(tensor.view.data.size());
    EXPECT_EQ(summary.bytes, bytes);
    EXPECT_THAT(summary.missing, IsEmpty());
    EXPECT_THAT(summary.surplus, IsEmpty());
  }
}

TEST(Summary, KnowsTheBundledModelCard) {
  // models/austen-5m/README.md: 5.77 M parameters, of these 0.49 M in the MTP layer; 32768 tokens as configured.
  const ModelSummary summary = summarize(Checkpoint::open(source_path("models/austen-5m")));
  EXPECT_NEAR(static_cast<double>(summary.parameters), 5.77e6, 0.005e6);
  EXPECT_NEAR(static_cast<double>(part(summary, Component::Mtp).parameters), 0.49e6, 0.005e6);
  EXPECT_THAT(summary.remarks, Not(Contains(HasSubstr("README.md"))));
}

TEST(Summary, TellsWhenACardPromisesAnotherContext) {
  EXPECT_THAT(contradicted_context_claim("It has\na 1M-token context window.", 262144).value_or(""),
              AllOf(HasSubstr("1M"), HasSubstr("262144")));
  EXPECT_TRUE(contradicted_context_claim("Context Length: 131,072 (native)", 262144));
  EXPECT_TRUE(contradicted_context_claim("| max_position_embeddings | 1048576 |", 262144));
  EXPECT_TRUE(contradicted_context_claim("supports 256K context", 131072));
}

TEST(Summary, FindsNoContradictionWhereThereIsNone) {
  EXPECT_FALSE(contradicted_context_claim("", 262144));
  EXPECT_FALSE(contradicted_context_claim("supports 256K context, 262,144 tokens", 262144));
  EXPECT_FALSE(contradicted_context_claim("a context of 256K (256,000)", 256000));
  EXPECT_FALSE(contradicted_context_claim("trained at 32K, then extended to a context of 128k.", 131072));
  EXPECT_FALSE(contradicted_context_claim("Ling-3.1-flash, 560B-A25B, trained on 20T tokens", 262144));
  EXPECT_FALSE(contradicted_context_claim("In 2025 long context was 4x cheaper, see 3.1.2", 262144));
}

}  // namespace
}  // namespace calandra
