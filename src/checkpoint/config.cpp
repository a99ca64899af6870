#include "checkpoint/config.h"

#include "base/error.h"
#include "checkpoint/key_reader.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace calandra {
namespace {

// Bounds far beyond any model, small enough that no size computed from them overflows.
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadDim = 256;  // of KDA
constexpr std::int64_t kHeadDimStep = 16;  // of KDA: rows of a state fill whole cache lines
constexpr std::int64_t kMaxMlaDim = 4096;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;
constexpr std::int64_t kMaxExperts = 16384;
constexpr std::int64_t kMaxExpertsOfAllLayers = 1 << 17;  // each has tensors of its own to look for
constexpr double kMaxYarnFactor = 1e4;
constexpr double kTiny = 1e-12;  // stands for "more than zero"

constexpr const char* kArchitecture = "BailingMoeV3ForCausalLM";

/// `architectures` decides: model_type "bailing_hybrid" names two families.
void check_architecture(KeyReader& keys, Config& config) {
  const std::string key = "architectures";
  const Json* value = keys.find(key);
  if (value == nullptr) keys.missing(key);
  if (*value != Json::array({kArchitecture})) keys.refuse(key, fmt::format("[\"{}\"]", kArchitecture));
  const std::optional<std::string> type = keys.optional_text("model_type");
  if (type && *type != "bailing_hybrid") {
    config.remarks.push_back(fmt::format("model_type is {}, usually \"bailing_hybrid\"", printable(*type)));
  }
}

void read_sizes(KeyReader& keys, Config& config) {
  config.vocab = keys.integer("vocab_size", 1, kMaxVocab);
  config.hidden = keys.integer("hidden_size", 1, kMaxWidth);
  config.layers = keys.integer("num_hidden_layers", 1, kMaxLayers);
  config.mtp_layers = keys.optional_integer("num_nextn_predict_layers", 0, 1).value_or(0);
  config.context = keys.integer("max_position_embeddings", 1, kMaxContext);
  config.tied_head = keys.optional_flag("tie_word_embeddings").value_or(false);
  config.norm_eps = static_cast<float>(keys.number("rms_norm_eps", kTiny, 1));
  config.dense_width = keys.integer("intermediate_size", 1, kMaxWidth);
  keys.expect("hidden_act", "silu");
  keys.expect("use_rmsnorm", true);
  keys.expect("use_bias", false);
  keys.expect("use_qkv_bias", false);
  keys.expect("mtp_use_kda", false);
  keys.expect("use_nGPT", false);
  keys.expect("value_norm", false);
  keys.expect("up_proj_norm", false);
}

/// True for MLA, by layer: the last layer of every group, and all of a trailing incomplete group.
std::vector<bool> read_layout(KeyReader& keys, std::int64_t layers) {
  const std::string key = "layer_group_size";
  std::vector<bool> mla;
  const Json* value = keys.find(key);
  if (value != nullptr && value->is_array()) {
    for (const std::int64_t kind : keys.integers(key, INT64_MIN, INT64_MAX)) mla.push_back(kind != 1);
    if (std::ssize(mla) != layers) keys.refuse(key, fmt::format("an integer, or one value for each of the {} layers", layers));
    return mla;
  }
  const std::int64_t group = keys.integer(key, 1, kMaxLayers);
  for (std::int64_t i = 0; i < layers; ++i) mla.push_back((i + 1) % group == 0 || i >= layers / group * group);
  return mla;
}

void read_kda(KeyReader& keys, Config& config) {
  config.head_dim = keys.integer("head_dim", kHeadDimStep, kMaxHeadDim);
  if (config.head_dim % kHeadDimStep != 0) keys.refuse("head_dim", fmt::format("a multiple of {}", kHeadDimStep));
  keys.expect("short_conv_kernel_size", 4);
  const std::optional<std::int64_t> kv_heads = keys.optional_integer("num_kv_heads_for_linear_attn", 0, kMaxHeads);
  if (kv_heads && *kv_heads != 0 && *kv_heads != config.heads) {
    keys.refuse("num_kv_heads_for_linear_attn", fmt::format("0 or {}", config.heads));
  }

  config.bounded_gate = keys.flag("kda_safe_gate");
  const std::optional<double> bound = keys.optional_number("kda_lower_bound", -1e6, 1e6);
  if (bound && *bound >= 0) keys.refuse("kda_lower_bound", "a number below 0");
  if (config.bounded_gate && !bound) keys.missing("kda_lower_bound");
  if (bound) config.gate_lower_bound = static_cast<float>(*bound);

  const std::optional<bool> full_rank = keys.optional_flag("no_kda_lora");
  const std::optional<bool> low_rank = keys.optional_flag("use_kda_lora");
  if (!full_rank && !low_rank) keys.missing("no_kda_lora");
  if (full_rank && low_rank && *full_rank == *low_rank) keys.refuse("use_kda_lora", "the opposite of no_kda_lora");
  config.low_rank_gates = full_rank ? !*full_rank : *low_rank;
}

AttentionGate read_attention_gate(KeyReader& keys) {
  const std::string key = "gated_attention_proj_granularity_type";
  if (!keys.has(key)) keys.missing(key);  // null means no gate, absence means nothing
  const std::optional<std::string> kind = keys.optional_text(key);
  if (!kind) return AttentionGate::None;
  if (*kind == "head_wise") return AttentionGate::HeadWise;
  if (*kind == "element_wise") return AttentionGate::ElementWise;
  keys.refuse(key, "\"head_wise\", \"element_wise\" or null");
}

void read_mla(KeyReader& keys, Config& config) {
  if (!keys.has("q_lora_rank")) keys.missing("q_lora_rank");  // null means a direct projection, absence means nothing
  config.q_rank = keys.optional_integer("q_lora_rank", 1, kMaxWidth);
  config.kv_rank = keys.integer("kv_lora_rank", 1, kMaxMlaDim);
  config.nope_dim = keys.integer("qk_nope_head_dim", 1, kMaxMlaDim);
  config.rope_dim = keys.integer("qk_rope_head_dim", 2, kMaxMlaDim);
  if (config.rope_dim % 2 != 0) keys.refuse("qk_rope_head_dim", "an even number");
  config.value_dim = keys.integer("v_head_dim", 1, kMaxMlaDim);
  config.attention_gate = read_attention_gate(keys);
  keys.expect("qk_head_dim", config.nope_dim + config.rope_dim);
  keys.expect("rotary_dim", config.rope_dim);
  keys.expect("num_key_value_heads", config.heads);
  keys.expect("rope_interleave", true);
  keys.expect("use_mla_nope", false);
  keys.expect("full_attention_type", "mla");
}

/// SwiGLU limits by layer. Missing, null and 0 mean none, so does an index beyond the end.
std::vector<float> read_limits(KeyReader& keys, const std::string& key, Config& config) {
  const Json* value = keys.find(key);
  if (value == nullptr) return {};
  const std::string expected = "a list of numbers from 0 to 1e6, or null";
  if (!value->is_array()) keys.refuse(key, expected);
  std::vector<float> limits;
  for (const Json& element : *value) {
    const double limit = element.is_number() ? element.get<double>() : 0;
    if (!(element.is_number() || element.is_null()) || !(limit >= 0 && limit <= 1e6)) keys.refuse(key, expected);
    limits.push_back(static_cast<float>(limit));
  }
  if (std::ssize(limits) != config.layers) {
    config.remarks.push_back(fmt::format("{} has {} values for {} layers", key, limits.size(), config.layers));
  }
  return limits;
}

void check_router(KeyReader& keys) {
  keys.expect("norm_topk_prob", true);
  keys.expect("score_function", "sigmoid");
  keys.expect("scoring_func", "sigmoid");
  keys.expect("topk_method", "noaux_tc");
  keys.expect("moe_router_enable_expert_bias", true);
  keys.expect("router_dtype", "fp32");
  keys.expect("scale_router_input", false);
  keys.expect("multi_gate", false);
  keys.refuse_value("router_type", "none");
}

void read_moe(KeyReader& keys, Config& config) {
  check_router(keys);
  config.experts = keys.integer("num_experts", 0, std::min(kMaxExperts, kMaxExpertsOfAllLayers / config.layers));
  config.first_moe_layer = keys.integer("first_k_dense_replace", 0, config.layers);
  config.routed_limits = read_limits(keys, "expert_swiglu_limit_list", config);
  config.shared_limits = read_limits(keys, "share_expert_swiglu_limit_list", config);
  if (config.experts == 0) {
    if (config.mtp_layers > 0) keys.refuse("num_experts", "experts for the MTP layer");
    keys.ignore({"moe_intermediate_size", "moe_shared_expert_intermediate_size", "num_shared_experts", "n_group", "topk_group",
                 "num_experts_per_tok", "routed_scaling_factor"});
    return;
  }
  config.expert_width = keys.integer("moe_intermediate_size", 1, kMaxWidth);
  const std::int64_t one_shared =
      keys.optional_integer("moe_shared_expert_intermediate_size", 1, kMaxWidth).value_or(config.expert_width);
  config.shared_width = one_shared * keys.integer("num_shared_experts", 0, 64);
  config.num_groups = static_cast<int>(keys.integer("n_group", 1, config.experts));
  const bool has_pairs = config.num_groups == 1 || config.experts / 2 >= config.num_groups;  // a group's score is its two best
  if (config.experts % config.num_groups != 0 || !has_pairs) {
    keys.refuse("n_group", fmt::format("a divisor of the {} experts that leaves at least 2 a group", config.experts));
  }
  config.kept_groups = static_cast<int>(keys.integer("topk_group", 1, config.num_groups));
  config.top_k =
      static_cast<int>(keys.integer("num_experts_per_tok", 1, config.experts / config.num_groups * config.kept_groups));
  config.routed_scaling = static_cast<float>(keys.number("routed_scaling_factor", kTiny, 1e6));
}

YarnScaling read_yarn(KeyReader& keys, std::int64_t context) {
  YarnScaling yarn;
  yarn.factor = keys.number("factor", 1, kMaxYarnFactor);
  yarn.original_context = keys.optional_integer("original_max_position_embeddings", 1, kMaxContext).value_or(context);
  yarn.beta_fast = keys.optional_number("beta_fast", kTiny, 1e6).value_or(yarn.beta_fast);
  yarn.beta_slow = keys.optional_number("beta_slow", kTiny, 1e6).value_or(yarn.beta_slow);
  yarn.attention_factor = keys.optional_number("attention_factor", kTiny, 1e6);
  yarn.mscale = keys.optional_number("mscale", 0, 1e6);
  yarn.mscale_all_dim = keys.optional_number("mscale_all_dim", 0, 1e6);
  // Publishers write 0 for "not set".
  if (yarn.mscale == 0.0) yarn.mscale.reset();
  if (yarn.mscale_all_dim == 0.0) yarn.mscale_all_dim.reset();
  keys.expect("truncate", true);
  return yarn;
}

std::int64_t scaled_context(const YarnScaling& yarn, const std::string& where) {
  const double context = std::floor(static_cast<double>(yarn.original_context) * yarn.factor);
  if (context > static_cast<double>(kMaxContext)) {
    fail("{}: YaRN factor {} makes a context of {:.0f} tokens, expected at most {}", where, yarn.factor, context, kMaxContext);
  }
  return static_cast<std::int64_t>(context);
}

void read_rope(KeyReader& keys, Config& config) {
  config.rope_theta = keys.number("rope_theta", 1.001, 1e15);
  keys.refuse_value("rope_parameters", "rope_theta and rope_scaling");
  const Json* value = keys.find("rope_scaling");
  if (value == nullptr) return;
  KeyReader scaling(*value, keys.where() + ": rope_scaling");
  const std::optional<std::string> old_name = scaling.optional_text("type");
  const std::optional<std::string> new_name = scaling.optional_text("rope_type");
  if (old_name && new_name && *old_name != *new_name) {
    scaling.refuse("rope_type", fmt::format("the same as type, {}", printable(*old_name)));
  }
  const std::string kind = new_name ? *new_name : old_name.value_or("default");
  if (kind == "yarn") {
    config.yarn = read_yarn(scaling, config.context);
    config.context = std::max(config.context, scaled_context(*config.yarn, scaling.where()));
  } else if (kind != "default") {
    scaling.refuse(new_name ? "rope_type" : "type", "\"yarn\" or \"default\"");
  }
  scaling.refuse_unknown();
}

/// Which tensors are quantised is decided tensor by tensor; this only refuses other schemes.
void read_quantization(KeyReader& keys, Config& config) {
  const Json* value = keys.find("quantization_config");
  if (value == nullptr) return;
  KeyReader scheme(*value, keys.where() + ": quantization_config");
  if (scheme.find("quant_method") == nullptr) scheme.missing("quant_method");
  scheme.expect("quant_method", "fp8");
  if (scheme.find("weight_block_size") == nullptr) scheme.missing("weight_block_size");
  scheme.expect("weight_block_size", Json::array({128, 128}));
  scheme.expect("fmt", "e4m3");
  scheme.expect("activation_scheme", "dynamic");
  scheme.expect("scale_fmt", "ue8m0");
  scheme.expect("routed_experts_quant_method", "mxfp4");
  scheme.expect("routed_experts_group_size", 32);
  scheme.expect("dequantize", false);
  scheme.ignore({"modules_to_not_convert"});
  scheme.refuse_unknown();
  config.fp8_power_of_two_activations = scheme.find("scale_fmt") != nullptr;
}

void read_ids(KeyReader& keys, Config& config) {
  config.bos_id = keys.optional_integer("bos_token_id", 0, config.vocab - 1);
  config.eos_ids = keys.integers("eos_token_id", 0, config.vocab - 1);
  config.pad_id = keys.optional_integer("pad_token_id", 0, config.vocab - 1);
}

/// Training settings, bookkeeping of other software, and keys that have no effect in this family.
void ignore_vestigial(KeyReader& keys) {
  keys.ignore({"auto_map",
               "torch_dtype",
               "dtype",
               "transformers_version",
               "use_cache",
               "_name_or_path",
               "_attn_implementation",
               "attn_implementation",
               "output_attentions",
               "output_hidden_states",
               "return_dict",
               "embedding_dropout",
               "attention_dropout",
               "output_dropout",
               "initializer_range",
               "output_router_logits",
               "seq_aux",
               "use_qk_norm",
               "linear_silu",
               "max_window_layers",
               "group_norm_size",
               "partial_rotary_factor",
               "mtp_loss_scaling_factor"});
}

void apply_overrides(const ConfigOverrides& overrides, const std::string& where, Config& config) {
  if (overrides.yarn_factor) {
    if (config.yarn) {
      fail("{}: rope_scaling: found YaRN with factor {}, expected none to add another factor", where, config.yarn->factor);
    }
    if (!(*overrides.yarn_factor >= 1 && *overrides.yarn_factor <= kMaxYarnFactor)) {
      fail("rope scaling: found YaRN factor {}, expected a number from 1 to {}", *overrides.yarn_factor, kMaxYarnFactor);
    }
    config.yarn.emplace();
    config.yarn->factor = *overrides.yarn_factor;
    config.yarn->original_context = config.stated_context;
    config.context = scaled_context(*config.yarn, "rope scaling");
    config.remarks.push_back(fmt::format("context {} by YaRN factor {} as asked for; config.json allows {}", config.context,
                                         config.yarn->factor, config.stated_context));
  }
  config.usable_context = config.context;
  if (overrides.context) {
    if (*overrides.context < 1 || *overrides.context > kMaxContext) {
      fail("context: found {}, expected an integer from 1 to {}", *overrides.context, kMaxContext);
    }
    config.context = *overrides.context;
  }
  if (const auto remark = config.untrained_context_remark()) config.remarks.push_back(*remark);
}

float limit_at(const std::vector<float>& limits, std::int64_t layer, std::int64_t layers) {
  return layer < std::min(std::ssize(limits), layers) ? limits[static_cast<std::size_t>(layer)] : 0.0f;
}

}  // namespace

std::optional<std::string> Config::untrained_context_remark() const {
  if (context <= usable_context) return std::nullopt;
  return fmt::format("context {} as asked for; positions from {} on were never trained", context, usable_context);
}

std::int64_t Config::num_mla_layers() const { return std::count(mla_layers.begin(), mla_layers.end(), true); }

float Config::routed_limit(std::int64_t layer) const { return limit_at(routed_limits, layer, layers); }

float Config::shared_limit(std::int64_t layer) const { return limit_at(shared_limits, layer, layers); }

Config parse_config(const std::string& text, const std::string& where, const ConfigOverrides& overrides) {
  const Json json = parse_json_object(text, where);
  KeyReader keys(json, where);
  Config config;
  check_architecture(keys, config);
  read_sizes(keys, config);
  config.heads = keys.integer("num_attention_heads", 1, kMaxHeads);
  config.mla_layers = read_layout(keys, config.layers);
  read_kda(keys, config);
  read_mla(keys, config);
  read_moe(keys, config);
  read_rope(keys, config);
  read_quantization(keys, config);
  read_ids(keys, config);
  keys.refuse_value("text_config", "a text model, with its keys at the top");
  ignore_vestigial(keys);
  for (const std::string& key : keys.unknown()) {
    config.remarks.push_back(fmt::format("{} is {}: an unknown key, ignored", printable(key), describe(json.at(key))));
  }
  config.stated_context = config.context;
  apply_overrides(overrides, where, config);
  return config;
}

Config read_config(const std::filesystem::path& folder, const ConfigOverrides& overrides) {
  const std::filesystem::path path = folder / "config.json";
  return parse_config(read_config_text(path), path.string(), overrides);
}

}  // namespace calandra
