#include "checkpoint/synthetic.h"

#include "base/mapped_file.h"
#include "checkpoint/chat_template.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/summary.h"
#include "checkpoint/synthetic_weights.h"
#include "support/golden.h"
#include "support/json.h"
#include "tensor/element.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

namespace calandra {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr SyntheticFormat kFormats[] = {SyntheticFormat::Bf16, SyntheticFormat::Fp8, SyntheticFormat::Fp8E8m0,
                                        SyntheticFormat::Fp4};

/// A network of 5.8 M parameters with an MTP layer.
ordered_json small_config() { return read_json(source_path("models/austen-5m/config.json")); }

SyntheticOptions in_format(SyntheticFormat format, int num_threads = 1) {
  SyntheticOptions options;
  options.format = format;
  options.num_threads = num_threads;
  return options;
}

double rms(std::span<const float> values) {
  double squares = 0;
  for (const float v : values) squares += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

// ------------------------------------------------------------------ layout

TEST(Synthetic, EveryFormatStoresWhatTheGoldenFileOfThatFormatStores) {
  const std::map<std::string, SyntheticFormat> variants = {{"a_tiny_bf16", SyntheticFormat::Bf16},
                                                           {"b_flash_bf16", SyntheticFormat::Bf16},
                                                           {"c_flash31_fp8", SyntheticFormat::Fp8},
                                                           {"d_mix_fp4", SyntheticFormat::Fp4},
                                                           {"e_tiny_ue8m0", SyntheticFormat::Fp8E8m0}};
  using Entry = std::tuple<std::string, ElementType, Shape>;
  for (const auto& [name, format] : variants) {
    SCOPED_TRACE(name);
    const Checkpoint golden = Checkpoint::open(golden_path(name));
    std::set<Entry> expected, actual;
    for (const auto& [tensor_name, tensor] : golden.tensors()) expected.emplace(tensor_name, tensor.view.type, tensor.view.shape);
    for (const TensorSpec& spec : list_tensors(golden.config())) {
      for (const TensorHeader& h : stored_headers(spec, stored_as(spec, format, golden.config())))
        actual.emplace(h.name, h.type, h.shape);
    }
    EXPECT_EQ(actual, expected);
  }
}

TEST(Synthetic, ConfigHasTheKeysOfThePublishedOnes) {
  const std::map<std::string, SyntheticFormat> variants = {
      {"c_flash31_fp8", SyntheticFormat::Fp8}, {"d_mix_fp4", SyntheticFormat::Fp4}, {"e_tiny_ue8m0", SyntheticFormat::Fp8E8m0}};
  // These depend on the size of the network, or are what a golden variant changes to see more.
  const std::set<std::string> sized = {"vocab_size",
                                       "hidden_size",
                                       "intermediate_size",
                                       "moe_intermediate_size",
                                       "moe_shared_expert_intermediate_size",
                                       "num_hidden_layers",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "layer_group_size",
                                       "first_k_dense_replace",
                                       "q_lora_rank",
                                       "kv_lora_rank",
                                       "num_experts",
                                       "expert_swiglu_limit_list",
                                       "share_expert_swiglu_limit_list",
                                       "max_position_embeddings",
                                       "num_nextn_predict_layers",
                                       "bos_token_id",
                                       "eos_token_id",
                                       "pad_token_id",
                                       "modules_to_not_convert"};
  for (const auto& [name, format] : variants) {
    SCOPED_TRACE(name);
    ordered_json golden = read_json(golden_path(name) / "config.json");
    ordered_json ours = synthetic_config(in_format(format));
    for (ordered_json* json : {&golden, &ours}) {
      for (const std::string& key : sized) {
        json->erase(key);
        json->at("quantization_config").erase(key);
      }
    }
    EXPECT_EQ(with_sorted_keys(ours), with_sorted_keys(golden));
  }
}

TEST(Synthetic, FullFlash31HasThePublishedSizeAndTakesNoSpace) {
  const TemporaryFolder folder;
  SyntheticOptions options = in_format(SyntheticFormat::Fp8);
  options.model = LingModel::Flash31;
  options.headers_only = true;
  const SyntheticSize size = make_checkpoint(options, folder.path());
  EXPECT_EQ(size.tensor_bytes, 573753281152);
  EXPECT_EQ(size.parameters, 572120680768);

  const Checkpoint checkpoint = Checkpoint::open(folder.path(), {}, {}, ScaleCheck::Skip);
  EXPECT_THAT(checkpoint.remarks(), IsEmpty());
  const ModelSummary summary = summarize(checkpoint);
  EXPECT_EQ(summary.bytes, 573753281152);
  EXPECT_EQ(summary.parameters, 572120680768);
  std::int64_t on_disk = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    struct stat status = {};
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    on_disk += status.st_blocks * 512;
  }
  EXPECT_LT(on_disk, 100 << 20);
}

TEST(Synthetic, SlicesOfAllModelsOpenWithoutARemark) {
  for (const LingModel model : {LingModel::Tiny30, LingModel::Flash30, LingModel::Flash31}) {
    for (const SyntheticFormat format : kFormats) {
      SCOPED_TRACE(std::string(name_of(model)) + " " + std::string(name_of(format)));
      const TemporaryFolder folder;
      SyntheticOptions options = in_format(format);
      options.model = model;
      options.layers = model == LingModel::Tiny30 ? 4 : model == LingModel::Flash30 ? 12 : 8;
      options.experts = 16;
      options.vocab = 2048;
      options.headers_only = true;
      make_checkpoint(options, folder.path());
      const Checkpoint checkpoint = Checkpoint::open(folder.path(), {}, {}, ScaleCheck::Skip);
      EXPECT_THAT(checkpoint.remarks(), IsEmpty());
      EXPECT_THAT(checkpoint.config().remarks, IsEmpty());
      EXPECT_EQ(checkpoint.config().mtp_layers, model == LingModel::Tiny30 ? 0 : 1);
      EXPECT_EQ(checkpoint.config().eos_ids, std::vector<std::int64_t>{2048 - 24 + 4});
      EXPECT_EQ(checkpoint.generation().top_k, 20);
    }
  }
}

// ------------------------------------------------------------------ files

TEST(Synthetic, FilesDoNotDependOnThreadsOrShards) {
  const TemporaryFolder folder;
  for (const SyntheticFormat format : kFormats) {
    SCOPED_TRACE(name_of(format));
    const fs::path one = folder / (std::string(name_of(format)) + "1"), two = folder / (std::string(name_of(format)) + "2");
    make_checkpoint(small_config(), in_format(format, 1), one);
    make_checkpoint(small_config(), in_format(format, 2), two);
    EXPECT_TRUE(files_in(one) == files_in(two));

    const fs::path cut = folder / (std::string(name_of(format)) + "cut");
    SyntheticOptions options = in_format(format, 2);
    options.shard_bytes = 1'000'000;
    EXPECT_GT(make_checkpoint(small_config(), options, cut).shards, 4);
    const Checkpoint whole = Checkpoint::open(one), parts = Checkpoint::open(cut);
    EXPECT_THAT(whole.remarks(), IsEmpty());
    EXPECT_THAT(parts.remarks(), IsEmpty());
    ASSERT_EQ(whole.tensors().size(), parts.tensors().size());
    for (const auto& [name, tensor] : whole.tensors()) {
      EXPECT_TRUE(std::ranges::equal(tensor.view.data, parts.tensors().at(name).view.data)) << name;
    }
  }
}

TEST(Synthetic, AnotherSeedGivesOtherWeights) {
  const TemporaryFolder folder;
  SyntheticOptions options = in_format(SyntheticFormat::Bf16);
  make_checkpoint(small_config(), options, folder / "a");
  options.seed = 1;
  make_checkpoint(small_config(), options, folder / "b");
  const Checkpoint a = Checkpoint::open(folder / "a"), b = Checkpoint::open(folder / "b");
  for (const auto& [name, tensor] : a.tensors()) {
    EXPECT_FALSE(std::ranges::equal(tensor.view.data, b.tensors().at(name).view.data)) << name;
  }
}

TEST(Synthetic, RefusesWhatCannotBe) {
  const TemporaryFolder folder;
  const auto refusal = [&](LingModel model, std::optional<std::int64_t> layers, std::optional<std::int64_t> experts,
                           std::optional<std::int64_t> vocab) {
    SyntheticOptions options;
    options.model = model;
    options.layers = layers;
    options.experts = experts;
    options.vocab = vocab;
    return error_of([&] { make_checkpoint(options, folder / "new"); });
  };
  EXPECT_THAT(refusal(LingModel::Flash31, 5, {}, {}), AllOf(HasSubstr("--layers 5"), HasSubstr("multiple of 8")));
  EXPECT_THAT(refusal(LingModel::Flash30, 48, {}, {}), HasSubstr("up to 42"));
  EXPECT_THAT(refusal(LingModel::Tiny30, 0, {}, {}), HasSubstr("--layers 0"));
  EXPECT_THAT(refusal(LingModel::Tiny30, {}, 8, {}), AllOf(HasSubstr("--experts 8"), HasSubstr("from 16 to 128")));
  EXPECT_THAT(refusal(LingModel::Tiny30, {}, 20, {}), HasSubstr("multiple of 8"));
  EXPECT_THAT(refusal(LingModel::Tiny30, {}, {}, 279), AllOf(HasSubstr("--vocab 279"), HasSubstr("280")));
  EXPECT_THAT(refusal(LingModel::Tiny30, {}, {}, -1), HasSubstr("--vocab -1"));
  EXPECT_FALSE(fs::exists(folder / "new"));
  EXPECT_THAT(error_of([] { ling_model_of("ling-4"); }),
              AllOf(HasSubstr("ling-4"), HasSubstr("ling-3.0-tiny, ling-3.0-flash, ling-3.1-flash")));
  EXPECT_THAT(error_of([] { synthetic_format_of("int4"); }), AllOf(HasSubstr("int4"), HasSubstr("bf16, fp8, fp8-ue8m0, fp4")));
}

TEST(Synthetic, ModelsAreNamedAsTheHubNamesThemOrInSmallLetters) {
  for (const char* name : {"ling-3.0-tiny", "Ling-3.0-tiny", "inclusionAI/Ling-3.0-tiny"})
    EXPECT_EQ(ling_model_of(name), LingModel::Tiny30) << name;
  EXPECT_THAT(error_of([] { ling_model_of("someone/ling-3.0-tiny"); }), HasSubstr("expected one of"));
}

TEST(Synthetic, TouchesNoFolderThatHoldsSomething) {
  const TemporaryFolder folder;
  write_file(folder / "notes.txt", "mine");
  EXPECT_THAT(error_of([&] { make_checkpoint(small_config(), in_format(SyntheticFormat::Bf16), folder.path()); }),
              AllOf(HasSubstr(folder.path().string()), HasSubstr("found notes.txt in it")));
  EXPECT_EQ(files_in(folder.path()), (Files{{"notes.txt", "mine"}}));
  EXPECT_THAT(error_of([&] { make_checkpoint(small_config(), in_format(SyntheticFormat::Bf16), folder / "notes.txt"); }),
              HasSubstr("notes.txt: found a file, expected a new or empty folder"));
}

TEST(Synthetic, AFullDiskIsToldAndLeavesNothing) {
  const TemporaryFolder folder;
  const fs::path target = folder / "model";
  const auto make_with_small_files = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string error = error_of([&] { make_checkpoint(small_config(), in_format(SyntheticFormat::Bf16), target); });
    std::fputs(error.c_str(), stderr);
    std::exit(error.empty() ? 0 : 1);
  };
  EXPECT_EXIT(make_with_small_files(), ::testing::ExitedWithCode(1), "model.safetensors");
  EXPECT_FALSE(fs::exists(target));
}

TEST(Synthetic, ProgressReachesTheTotal) {
  const TemporaryFolder folder;
  std::int64_t last = 0, total = 0;
  const SyntheticSize size =
      make_checkpoint(small_config(), in_format(SyntheticFormat::Fp8), folder.path(), [&](std::int64_t done, std::int64_t all) {
        EXPECT_GE(done, last);
        last = done;
        total = all;
      });
  EXPECT_EQ(last, size.tensor_bytes);
  EXPECT_EQ(total, size.tensor_bytes);
}

TEST(Synthetic, TemplateIsTheBundledModels) {
  EXPECT_EQ(ling_chat_template(), read_text_file(source_path("models/austen-5m/chat_template.jinja")));
}

// ------------------------------------------------------------------ healthy weights

/// Values of a tensor of a 3.0-tiny slice with 4 layers, as drawn for BF16.
class Drawn {
 public:
  Drawn() : config_(parse_config(dump_json(synthetic_config(slice())), "config.json")), specs_(list_tensors(config_)) {}

  std::vector<float> values(const std::string& name) const {
    const TensorSpec& spec = *std::find_if(specs_.begin(), specs_.end(), [&](const TensorSpec& s) { return s.name == name; });
    const StoredAs stored = stored_as(spec, SyntheticFormat::Bf16, config_);
    const SyntheticTensor tensor(spec, stored, 0, config_);
    std::vector<float> out;
    for (std::int64_t piece = 0; piece < tensor.num_pieces(); ++piece) {
      const std::vector<std::byte> data = tensor.encode(piece).data;
      const std::size_t width = stored == StoredAs::F32 ? 4 : 2;
      for (std::size_t i = 0; i < data.size(); i += width) {
        out.push_back(width == 4 ? load_unaligned<float>(&data[i]) : bf16_decode(load_unaligned<std::uint16_t>(&data[i])));
      }
    }
    EXPECT_EQ(static_cast<std::int64_t>(out.size()), num_elements(spec.shape));
    return out;
  }

 private:
  static SyntheticOptions slice() {
    SyntheticOptions options;
    options.layers = 4;
    options.experts = 16;
    options.vocab = 2048;
    return options;
  }
  Config config_;
  std::vector<TensorSpec> specs_;
};

TEST(Synthetic, MatricesHaveTheSpreadOfTheRecipe) {
  const Drawn drawn;
  const double step = 1.5 / std::sqrt(2.0 * 4);  // tools/reference/make_model.py
  const auto expect_gain = [&](const std::string& name, double gain, double inputs) {
    EXPECT_NEAR(rms(drawn.values(name)) * std::sqrt(inputs), gain, 0.02 * gain) << name;
  };
  const std::string kda = "model.layers.0.attention.", mla = "model.layers.3.attention.";
  expect_gain("model.word_embeddings.weight", std::sqrt(1536.0), 1536);
  expect_gain(kda + "q_proj.weight", 1.4, 1536);
  expect_gain(kda + "f_proj.weight", 0.8, 1536);
  expect_gain(kda + "g_proj.weight", 1.5, 1536);
  expect_gain(kda + "b_proj.weight", 1.5, 1536);
  expect_gain(kda + "o_proj.weight", step / 0.6, 2048);
  expect_gain(mla + "q_a_proj.weight", 1.0, 1536);
  expect_gain(mla + "q_b_proj.weight", 1.35, 256);
  expect_gain(mla + "kv_a_proj_with_mqa.weight", 1.3, 1536);
  expect_gain(mla + "kv_b_proj.weight", 1.25, 512);
  expect_gain(mla + "dense.weight", step / 0.3, 2048);
  expect_gain("model.layers.0.mlp.gate_proj.weight", 1.3, 1536);
  expect_gain("model.layers.0.mlp.down_proj.weight", step / 0.9, 4608);
  expect_gain("model.layers.1.mlp.gate.weight", 1.3, 1536);
  expect_gain("model.layers.1.mlp.experts.7.up_proj.weight", 1.2, 1536);
  expect_gain("model.layers.1.mlp.experts.7.down_proj.weight", step / 0.9, 512);
  expect_gain("lm_head.weight", 2.5, 1536);
}

TEST(Synthetic, VectorsHaveTheRangesOfTheRecipe) {
  const Drawn drawn;
  const auto range = [](std::vector<float> v) {
    const auto [low, high] = std::minmax_element(v.begin(), v.end());
    return std::pair(*low, *high);
  };
  const auto [norm_low, norm_high] = range(drawn.values("model.layers.2.input_layernorm.weight"));
  EXPECT_GE(norm_low, 0.59f);
  EXPECT_LT(norm_low, 0.61f);
  EXPECT_GT(norm_high, 1.39f);
  EXPECT_LE(norm_high, 1.41f);

  const std::vector<float> taps = drawn.values("model.layers.1.attention.k_conv1d.weight");
  int negative = 0;
  for (std::size_t i = 3; i < taps.size(); i += 4) {
    EXPECT_GE(std::abs(taps[i]), 0.49f);
    EXPECT_LE(std::abs(taps[i]), 1.11f);
    if (taps[i] < 0) ++negative;
  }
  EXPECT_NEAR(negative / 2048.0, 0.25, 0.04);

  std::vector<float> bias = drawn.values("model.layers.1.mlp.gate.expert_bias");
  std::sort(bias.begin(), bias.end());
  for (std::size_t e = 0; e < bias.size(); ++e) EXPECT_NEAR(bias[e], -0.3 + 0.52 * static_cast<double>(e) / 15, 1e-6);
}

TEST(Synthetic, DecaysCoverTheirRangeInEveryHead) {
  const Drawn drawn;
  const std::vector<float> log_rates = drawn.values("model.layers.1.attention.A_log");
  const std::vector<float> bias = drawn.values("model.layers.1.attention.dt_bias");
  ASSERT_EQ(log_rates.size(), 16u);
  for (std::size_t head = 0; head < 16; ++head) {
    EXPECT_GE(log_rates[head], -0.4f);
    EXPECT_LT(log_rates[head], 0.7f);
    double slowest = 0, fastest = 1;
    for (std::size_t c = 0; c < 128; ++c) {
      // docs/model.md 4.4 with f = 0
      const double z = std::exp(static_cast<double>(log_rates[head])) * static_cast<double>(bias[head * 128 + c]);
      const double decay = std::exp(-5 / (1 + std::exp(-z)));
      slowest = std::max(slowest, decay);
      fastest = std::min(fastest, decay);
    }
    EXPECT_NEAR(slowest, 0.99898, 1e-4);  // exp(-5 sigmoid(-8.5))
    EXPECT_NEAR(fastest, 0.00897, 1e-4);  // exp(-5 sigmoid(2.8))
  }
}

TEST(Synthetic, NoTwoScalesOfAWeightAreAlike) {
  const TemporaryFolder folder;
  make_checkpoint(small_config(), in_format(SyntheticFormat::Fp8), folder / "fp8");
  const Checkpoint checkpoint = Checkpoint::open(folder / "fp8");
  int seen = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (!name.ends_with("_scale_inv")) continue;
    std::set<float> values;
    for (std::size_t i = 0; i < tensor.view.data.size(); i += 4) values.insert(load_unaligned<float>(&tensor.view.data[i]));
    EXPECT_EQ(static_cast<std::int64_t>(values.size()), num_elements(tensor.view.shape)) << name;
    ++seen;
  }
  EXPECT_GT(seen, 100);
}

TEST(Synthetic, QuantisedWeightsAreTheBf16OnesRounded) {
  const TemporaryFolder folder;
  make_checkpoint(small_config(), in_format(SyntheticFormat::Bf16), folder / "bf16");
  make_checkpoint(small_config(), in_format(SyntheticFormat::Fp8E8m0), folder / "fp8");
  const Checkpoint plain = Checkpoint::open(folder / "bf16"), fp8 = Checkpoint::open(folder / "fp8");
  const std::string name = "model.layers.0.mlp.gate_proj.weight";  // [512, 192]: a ragged last column of blocks
  const auto bf16 = plain.tensors().at(name).view.data;
  const auto codes = fp8.tensors().at(name).view.data;
  const auto scales = fp8.tensors().at(name + "_scale_inv").view.data;
  std::vector<float> expected, actual;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    expected.push_back(bf16_decode(load_unaligned<std::uint16_t>(&bf16[2 * i])));
    const std::size_t block = i / 192 / 128 * 2 + i % 192 / 128;
    actual.push_back(e4m3_decode(static_cast<std::uint8_t>(codes[i])) * e8m0_decode(static_cast<std::uint8_t>(scales[block])));
  }
  expect_close(actual, expected, 0.04, name);  // e4m3 has 3 bits behind the point: relative steps of 1/8 to 1/16
}

}  // namespace
}  // namespace calandra
