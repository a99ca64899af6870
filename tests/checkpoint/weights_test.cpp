// The network's tensors: names, counts and sizes against the published sums; binding against golden intermediate results.

#include "checkpoint/weights.h"

#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

namespace calandra {
namespace {

/// Parameters by component.
std::map<Component, std::int64_t> parameters(const Config& config) {
  std::map<Component, std::int64_t> sums;
  for (const TensorSpec& spec : list_tensors(config)) sums[spec.component] += num_elements(spec.shape);
  return sums;
}

struct PublishedSums {
  const char* model;
  std::int64_t kda, mla, dense, routed, shared, router, norm, embedding, mtp;
};

// Re-derived by hand from the published shapes; the totals are those of the model cards.
TEST(ListTensors, ParametersAddUpToThePublishedSums) {
  const PublishedSums published_sums[] = {
      {"ling-3.1-flash", 12706811712, 627591168, 503316480, 547608330240, 1069547520, 142641152, 593920, 643825664, 8174197248},
      {"ling-3.0-flash", 2206746080, 223759872, 94371840, 120795955200, 235929600, 52449280, 217600, 402391040, 3072194048},
      {"ling-3.0-tiny", 340662816, 43995648, 21233664, 6945767424, 54263808, 4524928, 75264, 241434624, 0}};
  for (const PublishedSums& expected : published_sums) {
    SCOPED_TRACE(expected.model);
    auto sums = parameters(published_config(expected.model));
    EXPECT_EQ(sums[Component::Kda], expected.kda);
    EXPECT_EQ(sums[Component::Mla], expected.mla);
    EXPECT_EQ(sums[Component::DenseMlp], expected.dense);
    EXPECT_EQ(sums[Component::RoutedExpert], expected.routed);
    EXPECT_EQ(sums[Component::SharedExpert], expected.shared);
    EXPECT_EQ(sums[Component::Router], expected.router);
    EXPECT_EQ(sums[Component::Norm], expected.norm);
    EXPECT_EQ(sums[Component::Embedding], expected.embedding);
    EXPECT_EQ(sums[Component::Head], expected.embedding);
    EXPECT_EQ(sums[Component::Mtp], expected.mtp);
  }
}

TEST(ListTensors, NamesAreThoseOfTheFilesAnotherProgramWrote) {
  for (const std::string& variant : golden_variants()) {
    SCOPED_TRACE(variant);
    const Checkpoint checkpoint = Checkpoint::open(golden_path(variant));
    std::set<std::string> expected;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      if (!name.ends_with("_scale_inv")) expected.insert(name);
    }
    std::set<std::string> listed;
    for (const TensorSpec& spec : list_tensors(checkpoint.config())) {
      listed.insert(expected.contains(spec.name) ? spec.name : spec.alias);
    }
    EXPECT_EQ(listed, expected);
    EXPECT_THAT(checkpoint.remarks(), testing::IsEmpty());
  }
}

TEST(ListTensors, ATiedHeadIsNotListed) {
  Config config = published_config("ling-3.0-tiny");
  const std::size_t untied = list_tensors(config).size();
  config.tied_head = true;
  EXPECT_EQ(list_tensors(config).size(), untied - 1);
}

TEST(ListTensors, ExpertsAreToldFromOtherProjectionsAlsoInTheMtpLayer) {
  std::int64_t experts = 0;
  for (const TensorSpec& spec : list_tensors(published_config("ling-3.0-flash"))) {
    const bool is_expert = spec.name.find(".mlp.experts.") != std::string::npos;
    EXPECT_EQ(spec.role == Role::ExpertProjection, is_expert) << spec.name;
    EXPECT_EQ(spec.component == Component::Mtp, spec.layer == 42) << spec.name;
    experts += is_expert;
  }
  EXPECT_EQ(experts, 41 * 512 * 3);
}

// ---- values, decoded here by the formats' definitions and not by the code under test

double small_float(unsigned code, int exponent_bits, int mantissa_bits, int bias) {
  const unsigned exponent = (code >> mantissa_bits) & ((1u << exponent_bits) - 1u);
  const auto mantissa = static_cast<double>(code & ((1u << mantissa_bits) - 1u)) / static_cast<double>(1u << mantissa_bits);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias) : std::ldexp(1 + mantissa, static_cast<int>(exponent) - bias);
  return (code >> (exponent_bits + mantissa_bits) & 1u) != 0 ? -magnitude : magnitude;
}

double little_endian_float(const std::byte* at) {
  const auto byte = [&](int i) { return std::to_integer<unsigned>(at[i]); };
  return small_float(byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24, 8, 23, 127);
}

double element(const WeightMatrix& w, std::int64_t row, std::int64_t col) {
  const std::int64_t index = (w.first_row + row) * w.stored_cols + col;
  const auto byte = [&](std::int64_t i) { return std::to_integer<unsigned>(w.data[i]); };
  const auto scale_index = (w.first_row + row) / 128 * ((w.stored_cols + 127) / 128) + col / 128;
  const auto exponent = [&](std::int64_t i) { return std::ldexp(1.0, std::to_integer<int>(w.scales[i]) - 127); };
  switch (w.format) {
    case WeightFormat::F32: return little_endian_float(w.data + 4 * index);
    case WeightFormat::BF16: return small_float(byte(2 * index) | byte(2 * index + 1) << 8, 8, 7, 127);
    case WeightFormat::F16: return small_float(byte(2 * index) | byte(2 * index + 1) << 8, 5, 10, 15);
    case WeightFormat::Fp8: return small_float(byte(index), 4, 3, 7) * little_endian_float(w.scales + 4 * scale_index);
    case WeightFormat::Fp8E8m0: return small_float(byte(index), 4, 3, 7) * exponent(scale_index);
    case WeightFormat::Mxfp4: return small_float(byte(index / 2) >> (index % 2 * 4) & 15u, 2, 1, 1) * exponent(index / 32);
  }
  return std::nan("");
}

std::vector<double> product(const WeightMatrix& w, const std::vector<double>& x) {
  std::vector<double> y(static_cast<std::size_t>(w.rows));
  for (std::int64_t r = 0; r < w.rows; ++r) {
    for (std::int64_t c = 0; c < w.cols; ++c) y[static_cast<std::size_t>(r)] += element(w, r, c) * x[static_cast<std::size_t>(c)];
  }
  return y;
}

std::vector<double> rms_norm(std::span<const float> x, const std::vector<float>& w, double eps) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * static_cast<double>(value);
  std::vector<double> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = static_cast<double>(x[i]) / std::sqrt(sum / static_cast<double>(x.size()) + eps) * static_cast<double>(w[i]);
  }
  return y;
}

std::vector<float> to_floats(const std::vector<double>& values) { return {values.begin(), values.end()}; }

/// A checkpoint with the golden results of a forward pass through it.
struct Golden {
  Checkpoint checkpoint;
  GoldenTensors results;

  explicit Golden(const std::string& variant)
      : checkpoint(Checkpoint::open(golden_path(variant))),
        results(GoldenTensors::load(golden_path(variant) / "golden.safetensors")) {}

  /// Row `row` of a tensor [rows, width].
  std::vector<float> row(const std::string& name, std::int64_t row_index) const {
    const std::vector<float> all = results.floats(name);
    const std::int64_t width = results.shape(name)[1];
    return {all.begin() + row_index * width, all.begin() + (row_index + 1) * width};
  }

  /// Normalised input of layer `layer` > 0 for the token in `row_index`.
  std::vector<double> mixer_input(std::int64_t layer, std::int64_t row_index) const {
    const LayerWeights& weights = checkpoint.weights().layers[static_cast<std::size_t>(layer)];
    return rms_norm(row(fmt::format("hidden.{}", layer - 1), row_index), weights.input_norm, 1e-6);
  }
};

constexpr std::int64_t kLast = 149;  // of the 150 golden tokens

TEST(Bind, TheHeadOfEveryVariantGivesTheGoldenLogits) {
  for (const std::string& variant : golden_variants()) {
    const Golden golden(variant);
    const std::vector<float> hidden = golden.row("hidden.final_norm", kLast);
    const std::vector<double> logits = product(golden.checkpoint.weights().head, {hidden.begin(), hidden.end()});
    expect_close(to_floats(logits), golden.row("logits", kLast), 1e-5, variant);
  }
}

TEST(Bind, QueryKeyAndValueProjectionsGiveTheGoldenConvolutionTails) {
  for (const std::string& variant : golden_variants()) {
    const Golden golden(variant);
    int compared = 0;
    for (std::int64_t layer = 1; layer < golden.checkpoint.config().layers; ++layer) {
      const auto* kda = std::get_if<KdaWeights>(&golden.checkpoint.weights().layers[static_cast<std::size_t>(layer)].mixer);
      const std::string prefix = fmt::format("kda.{}.conv_", layer);
      if (kda == nullptr || !golden.results.contains(prefix + "q@150")) continue;
      const std::vector<double> x = golden.mixer_input(layer, kLast);
      for (const auto& [name, matrix] : {std::pair("q", &kda->q), std::pair("k", &kda->k), std::pair("v", &kda->v)}) {
        const std::vector<float> tails = golden.results.floats(prefix + name + "@150");
        std::vector<float> newest;
        for (std::size_t i = 2; i < tails.size(); i += 3) newest.push_back(tails[i]);
        expect_close(to_floats(product(*matrix, x)), newest, 1e-5, fmt::format("{} layer {} {}", variant, layer, name));
        ++compared;
      }
    }
    EXPECT_GE(compared, 3) << variant;
  }
}

TEST(Bind, LatentProjectionsGiveTheGoldenLatents) {
  for (const std::string& variant : golden_variants()) {
    const Golden golden(variant);
    int compared = 0;
    for (std::int64_t layer = 1; layer < golden.checkpoint.config().layers; ++layer) {
      const auto* mla = std::get_if<MlaWeights>(&golden.checkpoint.weights().layers[static_cast<std::size_t>(layer)].mixer);
      if (mla == nullptr) continue;
      std::vector<float> latent = to_floats(product(mla->kv_in, golden.mixer_input(layer, kLast)));
      latent.resize(mla->kv_norm.size());
      std::vector<float> expected = golden.row(fmt::format("mla.{}.cache", layer), kLast);
      expected.resize(latent.size());
      expect_close(to_floats(rms_norm(latent, mla->kv_norm, 1e-6)), expected, 1e-5, fmt::format("{} layer {}", variant, layer));
      ++compared;
    }
    EXPECT_GT(compared, 0) << variant;
  }
}

TEST(Bind, EveryTensorIsAtItsPlace) {
  const Checkpoint checkpoint = Checkpoint::open(golden_path("c_flash31_fp8"));
  const auto at = [&](const std::string& name) { return checkpoint.tensors().at(name).view.data.data(); };
  const auto& layers = checkpoint.weights().layers;
  const auto& kda = std::get<KdaWeights>(layers[0].mixer);
  EXPECT_EQ(kda.decay.data, at("model.layers.0.attention.f_proj.weight"));
  EXPECT_EQ(kda.decay.scales, at("model.layers.0.attention.f_proj.weight_scale_inv"));
  EXPECT_EQ(kda.gate.data, at("model.layers.0.attention.g_proj.weight"));
  EXPECT_EQ(kda.beta.data, at("model.layers.0.attention.b_proj.weight"));
  EXPECT_EQ(kda.beta.format, WeightFormat::BF16);
  EXPECT_EQ(kda.out.data, at("model.layers.0.attention.o_proj.weight"));
  EXPECT_FALSE(kda.decay_in);
  const auto& dense = std::get<MlpWeights>(layers[0].mlp);
  EXPECT_EQ(dense.gate.data, at("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_EQ(dense.up.data, at("model.layers.0.mlp.up_proj.weight"));
  EXPECT_EQ(dense.down.data, at("model.layers.0.mlp.down_proj.weight"));
  const auto& mla = std::get<MlaWeights>(layers[7].mixer);
  EXPECT_EQ(mla.q_in.data, at("model.layers.7.attention.q_a_proj.weight"));
  EXPECT_EQ(mla.q.data, at("model.layers.7.attention.q_b_proj.weight"));
  EXPECT_EQ(mla.kv.data, at("model.layers.7.attention.kv_b_proj.weight"));
  EXPECT_EQ(mla.gate.data, at("model.layers.7.attention.g_proj.weight"));
  EXPECT_EQ(mla.out.data, at("model.layers.7.attention.dense.weight"));
  const auto& moe = std::get<MoeWeights>(layers[7].mlp);
  EXPECT_EQ(moe.router.data, at("model.layers.7.mlp.gate.weight"));
  EXPECT_EQ(moe.experts[5].gate.data, at("model.layers.7.mlp.experts.5.gate_proj.weight"));
  EXPECT_EQ(moe.experts[5].up.data, at("model.layers.7.mlp.experts.5.up_proj.weight"));
  EXPECT_EQ(moe.experts[5].down.data, at("model.layers.7.mlp.experts.5.down_proj.weight"));
  EXPECT_EQ(moe.experts[5].limit, checkpoint.config().routed_limit(7));
  EXPECT_EQ(moe.shared->down.data, at("model.layers.7.mlp.shared_experts.down_proj.weight"));
  EXPECT_EQ(moe.shared->limit, checkpoint.config().shared_limit(7));
  const MtpWeights& mtp = *checkpoint.weights().mtp;
  EXPECT_EQ(mtp.join.data, at("model.layers.8.eh_proj.weight"));
  EXPECT_EQ(std::get<MlaWeights>(mtp.layer.mixer).gate.format, WeightFormat::Fp8);
  EXPECT_EQ(std::get<MoeWeights>(mtp.layer.mlp).experts[0].limit, 0.0f);
  EXPECT_EQ(checkpoint.weights().embedding.data, at("model.word_embeddings.weight"));
}

TEST(Bind, TapsAreTransposedAndRatesAreExponentials) {
  const std::filesystem::path folder = golden_path("f_odd_f32");
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const GoldenTensors stored = GoldenTensors::load(folder / "model.safetensors");
  const auto& kda = std::get<KdaWeights>(checkpoint.weights().layers[1].mixer);
  const std::vector<float> taps = stored.floats("model.layers.1.attention.k_conv1d.weight");
  const std::size_t channels = taps.size() / 4;
  ASSERT_EQ(kda.conv_k.size(), taps.size());
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t tap = 0; tap < 4; ++tap) ASSERT_EQ(kda.conv_k[tap * channels + c], taps[c * 4 + tap]);
  }
  const std::vector<float> a_log = stored.floats("model.layers.1.attention.A_log");
  ASSERT_EQ(kda.decay_rate.size(), 3u);
  for (std::size_t h = 0; h < 3; ++h) EXPECT_FLOAT_EQ(kda.decay_rate[h], std::exp(a_log[h]));
  EXPECT_TRUE(kda.decay_in);
  EXPECT_EQ(kda.decay_in.rows, 64);
  EXPECT_EQ(kda.decay.cols, 64);
}

TEST(Bind, FormatsFollowTheTensorsNotTheConfig) {
  const Checkpoint mix = Checkpoint::open(golden_path("d_mix_fp4"));
  const auto& moe = std::get<MoeWeights>(mix.weights().layers[1].mlp);
  EXPECT_EQ(moe.experts[0].down.format, WeightFormat::Mxfp4);
  EXPECT_EQ(moe.experts[0].down.cols, 32);
  EXPECT_EQ(moe.shared->down.format, WeightFormat::Fp8);
  EXPECT_EQ(std::get<MoeWeights>(mix.weights().mtp->layer.mlp).experts[3].gate.format, WeightFormat::Mxfp4);
  const Checkpoint e8m0 = Checkpoint::open(golden_path("e_tiny_ue8m0"));
  EXPECT_EQ(std::get<MlaWeights>(e8m0.weights().layers[3].mixer).q.format, WeightFormat::BF16);
  EXPECT_EQ(std::get<MlaWeights>(e8m0.weights().layers[3].mixer).out.format, WeightFormat::Fp8E8m0);
}

/// Matrices of the right shape without data, to look at what bind() itself decides.
class EmptySource : public TensorSource {
 public:
  WeightMatrix matrix(const TensorSpec& spec) override {
    WeightMatrix matrix;
    matrix.rows = spec.shape[0];
    matrix.cols = spec.shape[1];
    return matrix;
  }
  std::vector<float> vector(const TensorSpec&) override { return {}; }
  bool has_mtp(const Config&) override { return false; }
};

TEST(Bind, OnlyProductsThatRanksSplitHaveVirtualShards) {
  EmptySource source;
  const ModelWeights weights = bind(published_config("ling-3.0-tiny"), source);
  EXPECT_EQ(std::get<KdaWeights>(weights.layers[0].mixer).out.shards, 4);  // 2048 columns, 16 heads: shards of 512
  EXPECT_EQ(std::get<MlaWeights>(weights.layers[3].mixer).out.shards, 4);
  EXPECT_EQ(std::get<MlpWeights>(weights.layers[0].mlp).down.shards, 4);  // 4608 = 36 blocks; 4 shards of 1152
  const auto& moe = std::get<MoeWeights>(weights.layers[1].mlp);
  EXPECT_EQ(moe.experts[0].down.shards, 1);
  EXPECT_EQ(moe.shared->down.shards, 1);
  EXPECT_EQ(std::get<KdaWeights>(weights.layers[0].mixer).q.shards, 1);
  EXPECT_FALSE(weights.mtp);
}

}  // namespace
}  // namespace calandra
