#include "checkpoint/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace calandra {
namespace {

/// Growth of the residual stream that a synthetic checkpoint aims at: its rms ends near sqrt(1 + kResidualGrowth^2).
constexpr double kResidualGrowth = 1.5;

/// [channels, taps] -> [taps, channels]
std::vector<float> transpose_taps(const std::vector<float>& w, std::int64_t taps) {
  const std::size_t num_taps = static_cast<std::size_t>(taps);
  const std::size_t channels = w.size() / num_taps;
  std::vector<float> out(w.size());
  for (std::size_t channel = 0; channel < channels; ++channel) {
    for (std::size_t tap = 0; tap < num_taps; ++tap) out[tap * channels + channel] = w[channel * num_taps + tap];
  }
  return out;
}

/// One walk over the network. Every function binds one part of a layer and is the only place of its tensor names.
class Walk {
 public:
  Walk(const Config& config, TensorSource& source)
      : c_(config), source_(source), step_(kResidualGrowth / std::sqrt(2.0 * static_cast<double>(config.layers))) {}

  ModelWeights model() {
    ModelWeights model;
    model.embedding =
        source_.matrix(spec("model.word_embeddings.weight", {c_.vocab, c_.hidden}, Role::Embedding, Component::Embedding));
    for (std::int64_t i = 0; i < c_.layers; ++i) model.layers.push_back(layer(i));
    if (c_.mtp_layers > 0 && source_.has_mtp(c_)) model.mtp = mtp();
    model.final_norm = norm("model.norm", c_.hidden, Component::Norm);
    model.head = c_.tied_head ? model.embedding
                              : source_.matrix(spec("lm_head.weight", {c_.vocab, c_.hidden}, Role::Head, Component::Head, 2.5));
    return model;
  }

 private:
  /// In the MTP layer every tensor counts as the layer's.
  TensorSpec spec(std::string name, Shape shape, Role role, Component component, double gain = 1.0) const {
    TensorSpec result;
    result.name = std::move(name);
    result.shape = std::move(shape);
    result.role = role;
    result.component = layer_ == c_.layers ? Component::Mtp : component;
    result.layer = layer_;
    result.gain = gain;
    return result;
  }

  WeightMatrix linear(const std::string& name, std::int64_t outputs, std::int64_t inputs, Role role, Component component,
                      double gain) {
    return source_.matrix(spec(name + ".weight", {outputs, inputs}, role, component, gain));
  }

  std::vector<float> norm(const std::string& name, std::int64_t size, Component component) {
    return source_.vector(spec(name + ".weight", {size}, Role::Norm, component));
  }

  LayerWeights layer(std::int64_t index) {
    layer_ = index;
    LayerWeights weights = layer_body(layer_prefix(index));
    layer_ = -1;
    return weights;
  }

  MtpWeights mtp() {
    layer_ = c_.layers;
    const std::string prefix = layer_prefix(layer_);
    MtpWeights mtp;
    mtp.embedding_norm = norm(prefix + "enorm", c_.hidden, Component::Mtp);
    mtp.hidden_norm = norm(prefix + "hnorm", c_.hidden, Component::Mtp);
    mtp.join = linear(prefix + "eh_proj", c_.hidden, 2 * c_.hidden, Role::MtpJoin, Component::Mtp, 1.0);
    mtp.layer = layer_body(prefix);
    mtp.final_norm = norm(prefix + "final_layernorm", c_.hidden, Component::Mtp);
    layer_ = -1;
    return mtp;
  }

  LayerWeights layer_body(const std::string& prefix) {
    LayerWeights weights;
    weights.input_norm = norm(prefix + "input_layernorm", c_.hidden, Component::Norm);
    if (c_.is_mla(layer_)) {
      weights.mixer = mla(prefix + "attention.");
    } else {
      weights.mixer = kda(prefix + "attention.");
    }
    weights.post_norm = norm(prefix + "post_attention_layernorm", c_.hidden, Component::Norm);
    if (c_.is_moe(layer_)) {
      weights.mlp = moe(prefix + "mlp.");
    } else {
      MlpWeights dense = mlp(prefix + "mlp.", c_.dense_width, Component::DenseMlp, step_ / 0.9);
      dense.down.shards = virtual_shards(c_.dense_width, c_.dense_width % kScaleBlock == 0 ? c_.dense_width / kScaleBlock : 1);
      weights.mlp = dense;
    }
    return weights;
  }

  KdaWeights kda(const std::string& p) {
    const std::int64_t width = c_.kda_width();
    const auto projection = [&](const char* name, std::int64_t outputs, std::int64_t inputs, double gain) {
      return linear(p + name, outputs, inputs, Role::Projection, Component::Kda, gain);
    };
    KdaWeights w;
    w.q = projection("q_proj", width, c_.hidden, 1.4);
    w.k = projection("k_proj", width, c_.hidden, 1.4);
    w.v = projection("v_proj", width, c_.hidden, 1.4);
    w.conv_q = conv(p + "q_conv1d");
    w.conv_k = conv(p + "k_conv1d");
    w.conv_v = conv(p + "v_conv1d");
    if (c_.low_rank_gates) {
      w.decay_in = projection("f_a_proj", c_.head_dim, c_.hidden, 1.0);
      w.decay = projection("f_b_proj", width, c_.head_dim, 0.8);
      w.gate_in = projection("g_a_proj", c_.head_dim, c_.hidden, 1.0);
      w.gate = projection("g_b_proj", width, c_.head_dim, 1.5);
    } else {
      w.decay = projection("f_proj", width, c_.hidden, 0.8);
      w.gate = projection("g_proj", width, c_.hidden, 1.5);
    }
    w.beta = linear(p + "b_proj", c_.heads, c_.hidden, Role::Beta, Component::Kda, 1.5);
    w.decay_rate = source_.vector(spec(p + "A_log", {c_.heads}, Role::DecayRate, Component::Kda));
    // In double, so that the result does not depend on the C library's float version.
    for (float& rate : w.decay_rate) rate = static_cast<float>(std::exp(static_cast<double>(rate)));
    w.dt_bias = source_.vector(spec(p + "dt_bias", {width}, Role::DecayBias, Component::Kda));
    w.out_norm = norm(p + "o_norm", c_.head_dim, Component::Kda);
    w.out = projection("o_proj", c_.hidden, width, step_ / 0.6);
    w.out.shards = virtual_shards(width, c_.heads);
    return w;
  }

  std::vector<float> conv(const std::string& name) {
    TensorSpec taps = spec(name + ".weight", {c_.kda_width(), 1, c_.conv_taps}, Role::Conv, Component::Kda);
    taps.other_shapes = {{c_.kda_width(), c_.conv_taps}};
    return transpose_taps(source_.vector(taps), c_.conv_taps);
  }

  MlaWeights mla(const std::string& p) {
    const auto projection = [&](const char* name, std::int64_t outputs, std::int64_t inputs, double gain) {
      return linear(p + name, outputs, inputs, Role::MlaProjection, Component::Mla, gain);
    };
    const std::int64_t query_width = c_.heads * (c_.nope_dim + c_.rope_dim);
    const std::int64_t out_width = c_.heads * c_.value_dim;
    MlaWeights w;
    if (c_.q_rank) {
      w.q_in = projection("q_a_proj", *c_.q_rank, c_.hidden, 1.0);
      w.q_norm = norm(p + "q_a_layernorm", *c_.q_rank, Component::Mla);
      w.q = projection("q_b_proj", query_width, *c_.q_rank, 1.35);
    } else {
      w.q = projection("q_proj", query_width, c_.hidden, 1.35);
    }
    w.kv_in = projection("kv_a_proj_with_mqa", c_.latent_row(), c_.hidden, 1.3);
    w.kv_norm = norm(p + "kv_a_layernorm", c_.kv_rank, Component::Mla);
    w.kv = projection("kv_b_proj", c_.heads * (c_.nope_dim + c_.value_dim), c_.kv_rank, 1.25);
    if (c_.attention_gate != AttentionGate::None) {
      const std::int64_t gates = c_.attention_gate == AttentionGate::HeadWise ? c_.heads : out_width;
      w.gate = linear(p + "g_proj", gates, c_.hidden, Role::AttentionGate, Component::Mla, 1.5);
    }
    w.out = linear(p + "dense", c_.hidden, out_width, Role::Projection, Component::Mla, step_ / 0.3);
    w.out.shards = virtual_shards(out_width, c_.heads);
    return w;
  }

  MlpWeights mlp(const std::string& p, std::int64_t width, Component component, double down_gain) {
    const Role role = component == Component::RoutedExpert ? Role::ExpertProjection : Role::Projection;
    MlpWeights w;
    w.gate = linear(p + "gate_proj", width, c_.hidden, role, component, 1.3);
    w.up = linear(p + "up_proj", width, c_.hidden, role, component, 1.2);
    w.down = linear(p + "down_proj", c_.hidden, width, role, component, down_gain);
    return w;
  }

  /// An expert whose output a synthetic checkpoint scales by what its limit lets through.
  MlpWeights expert(const std::string& p, std::int64_t width, Component component, float limit) {
    MlpWeights w = mlp(p, width, component, step_ / (limit > 0 ? std::min(0.9, static_cast<double>(limit)) : 0.9));
    w.limit = limit;
    return w;
  }

  MoeWeights moe(const std::string& p) {
    MoeWeights w;
    w.router = linear(p + "gate", c_.experts, c_.hidden, Role::Router, Component::Router, 1.3);
    TensorSpec bias = spec(p + "gate.expert_bias", {c_.experts}, Role::RouterBias, Component::Router);
    bias.alias = p + "gate.e_score_correction_bias";
    w.bias = source_.vector(bias);
    for (std::int64_t e = 0; e < c_.experts; ++e) {
      w.experts.push_back(
          expert(fmt::format("{}experts.{}.", p, e), c_.expert_width, Component::RoutedExpert, c_.routed_limit(layer_)));
    }
    if (c_.shared_width > 0) {
      w.shared = expert(p + "shared_experts.", c_.shared_width, Component::SharedExpert, c_.shared_limit(layer_));
    }
    return w;
  }

  const Config& c_;
  TensorSource& source_;
  const double step_;        // rms of what each of the 2 L sub-layers adds to a synthetic residual stream
  std::int64_t layer_ = -1;  // the layer at hand
};

/// Hands out nothing and remembers what it was asked for.
class ListingSource : public TensorSource {
 public:
  WeightMatrix matrix(const TensorSpec& spec) override {
    specs.push_back(spec);
    return {};
  }
  std::vector<float> vector(const TensorSpec& spec) override {
    specs.push_back(spec);
    return {};
  }
  bool has_mtp(const Config&) override { return true; }

  std::vector<TensorSpec> specs;
};

}  // namespace

std::string layer_prefix(std::int64_t layer) { return fmt::format("model.layers.{}.", layer); }

ModelWeights bind(const Config& config, TensorSource& source) { return Walk(config, source).model(); }

std::vector<TensorSpec> list_tensors(const Config& config) {
  ListingSource source;
  bind(config, source);
  return std::move(source.specs);
}

}  // namespace calandra
