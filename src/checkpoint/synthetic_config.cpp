#include "checkpoint/synthetic_config.h"

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/storage.h"
#include "checkpoint/synthetic_tokenizer.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

namespace calandra {
namespace {

using nlohmann::ordered_json;

/// SwiGLU limits: `limit` from layer `from` on, to the next entry.
struct Limit {
  std::int64_t from;
  int limit;
};

struct ModelValues {
  LingModel model;
  std::string_view name;
  std::int64_t hidden, dense_width, expert_width, layers, heads, group, dense_layers, experts;
  std::optional<std::int64_t> q_rank;
  std::int64_t mtp_layers;
  std::vector<Limit> routed_limits, shared_limits;  // empty: null
  std::int64_t context;
};

const std::array<ModelValues, 3>& all_models() {
  // clang-format off
  static const std::array<ModelValues, 3> models = {{
      {LingModel::Tiny30, "ling-3.0-tiny", 1536, 4608, 512, 24, 16, 4, 1, 128, 256, 0, {}, {}, 131072},
      {LingModel::Flash30, "ling-3.0-flash", 2560, 6144, 768, 42, 32, 6, 2, 512, std::nullopt, 1,
       {{35, 4}}, {{34, 5}, {40, 7}}, 262144},
      {LingModel::Flash31, "ling-3.1-flash", 4096, 10240, 1280, 72, 64, 8, 4, 512, 1536, 1, {{65, 10}}, {{64, 10}}, 262144},
  }};
  // clang-format on
  return models;
}

const ModelValues& values_of(LingModel model) { return all_models()[static_cast<std::size_t>(model)]; }

constexpr std::array<std::string_view, 4> kFormatNames = {"bf16", "fp8", "fp8-ue8m0", "fp4"};

constexpr std::int64_t kRouterGroups = 8;
constexpr std::int64_t kKeptGroups = 4;
constexpr std::int64_t kTopK = 8;

/// The sizes that a slice may change.
struct Slice {
  std::int64_t layers, experts, vocab;
};

Slice checked_slice(const SyntheticOptions& options, const ModelValues& values) {
  const Slice slice = {options.layers.value_or(values.layers), options.experts.value_or(values.experts),
                       options.vocab.value_or(kLingVocab)};
  if (slice.layers < values.group || slice.layers > values.layers || slice.layers % values.group != 0) {
    fail("--layers {}: {} has {} layers in groups of {}; expected a multiple of {} up to {}", slice.layers, values.name,
         values.layers, values.group, values.group, values.layers);
  }
  // The kept groups must hold top-k experts.
  constexpr std::int64_t kMinExperts = kTopK / kKeptGroups * kRouterGroups;
  if (slice.experts < kMinExperts || slice.experts > values.experts || slice.experts % kRouterGroups != 0) {
    fail("--experts {}: expected a multiple of {} (router groups) from {} to {}", slice.experts, kRouterGroups, kMinExperts,
         values.experts);
  }
  if (slice.vocab < min_synthetic_vocab() || slice.vocab > kLingVocab) {
    fail("--vocab {}: expected {} to {}", slice.vocab, min_synthetic_vocab(), kLingVocab);
  }
  return slice;
}

ordered_json limit_list(const std::vector<Limit>& limits, std::int64_t layers) {
  if (limits.empty()) return nullptr;
  std::vector<int> list(static_cast<std::size_t>(layers), 0);
  for (const Limit& limit : limits) {
    if (limit.from < layers) std::fill(list.begin() + static_cast<std::ptrdiff_t>(limit.from), list.end(), limit.limit);
  }
  return list;
}

/// quantization_config of a config that has none yet.
ordered_json quantization_of(const ordered_json& config, SyntheticFormat format) {
  const Config network = parse_config(dump_json(config), "config.json");
  const std::vector<TensorSpec> specs = list_tensors(network);
  std::vector<StoredSpec> tensors;
  tensors.reserve(specs.size());
  for (const TensorSpec& spec : specs) tensors.push_back({&spec, stored_as(spec, format, network)});
  return quantization_config(tensors);
}

/// Keys that are equal in all models.
constexpr const char* kFamilyConfig = R"({
  "hidden_act": "silu", "num_kv_heads_for_linear_attn": 0, "head_dim": 128, "short_conv_kernel_size": 4,
  "no_kda_lora": true, "use_kda_lora": false, "kda_safe_gate": true, "kda_lower_bound": -5.0,
  "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "qk_head_dim": 192, "v_head_dim": 128,
  "rotary_dim": 64, "partial_rotary_factor": 0.5, "rope_theta": 6000000, "rope_interleave": true, "rope_scaling": null,
  "use_mla_nope": false, "gated_attention_proj_granularity_type": "head_wise",
  "num_shared_experts": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "score_function": "sigmoid",
  "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_router_enable_expert_bias": true, "router_dtype": "fp32",
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "use_bias": false, "use_qkv_bias": false, "use_qk_norm": true,
  "use_rmsnorm": true, "use_cache": true, "max_window_layers": 20, "mtp_use_kda": false, "mtp_loss_scaling_factor": 0,
  "embedding_dropout": 0.0, "attention_dropout": 0.0, "output_dropout": 0.0, "initializer_range": 0.02,
  "output_router_logits": false, "group_norm_size": 1, "linear_silu": false, "seq_aux": true, "scale_router_input": false,
  "use_nGPT": false, "value_norm": false, "up_proj_norm": false, "torch_dtype": "bfloat16"
})";

template <class Names>
std::string listed(const Names& names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

}  // namespace

std::string_view name_of(LingModel model) { return values_of(model).name; }

LingModel ling_model_of(std::string_view name) {
  constexpr std::string_view kOwner = "inclusionai/";
  std::string wanted(name);
  std::ranges::transform(wanted, wanted.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (wanted.starts_with(kOwner)) wanted.erase(0, kOwner.size());
  std::vector<std::string_view> names;
  for (const ModelValues& values : all_models()) {
    if (values.name == wanted) return values.model;
    names.push_back(values.name);
  }
  fail("no model is called '{}'; expected one of {}", name, listed(names));
}

std::string_view name_of(SyntheticFormat format) { return kFormatNames[static_cast<std::size_t>(format)]; }

SyntheticFormat synthetic_format_of(std::string_view name) {
  const auto found = std::find(kFormatNames.begin(), kFormatNames.end(), name);
  if (found == kFormatNames.end()) fail("no format is called '{}'; expected one of {}", name, listed(kFormatNames));
  return static_cast<SyntheticFormat>(found - kFormatNames.begin());
}

ordered_json synthetic_config(const SyntheticOptions& options) {
  const ModelValues& values = values_of(options.model);
  const Slice slice = checked_slice(options, values);
  ordered_json config = {
      {"architectures", ordered_json::array({"BailingMoeV3ForCausalLM"})},
      {"model_type", "bailing_hybrid"},
      {"auto_map",
       {{"AutoConfig", "configuration_bailing_moe_v3.BailingMoeV3Config"},
        {"AutoModel", "modeling_bailing_moe_v3.BailingMoeV3Model"},
        {"AutoModelForCausalLM", "modeling_bailing_moe_v3.BailingMoeV3ForCausalLM"}}},
      {"vocab_size", slice.vocab},
      {"hidden_size", values.hidden},
      {"intermediate_size", values.dense_width},
      {"moe_intermediate_size", values.expert_width},
      {"moe_shared_expert_intermediate_size", values.expert_width},
      {"num_hidden_layers", slice.layers},
      {"num_attention_heads", values.heads},
      {"num_key_value_heads", values.heads},
      {"layer_group_size", values.group},
      {"first_k_dense_replace", std::min(values.dense_layers, slice.layers)},
      {"q_lora_rank", values.q_rank ? ordered_json(*values.q_rank) : ordered_json(nullptr)},
      {"num_experts", slice.experts},
      {"num_experts_per_tok", kTopK},
      {"n_group", kRouterGroups},
      {"topk_group", kKeptGroups},
      {"expert_swiglu_limit_list", limit_list(values.routed_limits, slice.layers)},
      {"share_expert_swiglu_limit_list", limit_list(values.shared_limits, slice.layers)},
      {"max_position_embeddings", values.context},
      {"num_nextn_predict_layers", values.mtp_layers},
      {"bos_token_id", added_token_id("<|startoftext|>", slice.vocab)},
      {"eos_token_id", added_token_id("<|role_end|>", slice.vocab)},
      {"pad_token_id", added_token_id("<|endoftext|>", slice.vocab)},
  };
  config.update(parse_json(kFamilyConfig, "kFamilyConfig"));
  if (options.format != SyntheticFormat::Bf16) config["quantization_config"] = quantization_of(config, options.format);
  return config;
}

ordered_json synthetic_generation_config(const ordered_json& config) {
  return {{"do_sample", true},
          {"temperature", 1.0},
          {"top_p", 0.95},
          {"top_k", 20},
          {"bos_token_id", config.at("bos_token_id")},
          {"eos_token_id", ordered_json::array({config.at("eos_token_id")})},
          {"pad_token_id", config.at("pad_token_id")}};
}

}  // namespace calandra
