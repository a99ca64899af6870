#pragma once
// config.json as one validated, immutable struct. A value the engine does not implement is refused by key, never guessed.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace calandra {

/// YaRN, only if the user or the checkpoint sets rope_scaling.
inline constexpr std::int64_t kMaxContext = std::int64_t{1} << 31;

struct YarnScaling {
  double factor = 1.0;
  std::int64_t original_context = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
};

enum class AttentionGate : std::uint8_t { None, HeadWise, ElementWise };

/// Shapes below use h = hidden, H = heads, D = head_dim, C = kv_rank, R = rope_dim, N = nope_dim, E = experts.
struct Config {
  std::int64_t vocab = 0;
  std::int64_t hidden = 0;
  std::int64_t layers = 0;          // without the MTP layer
  std::int64_t mtp_layers = 0;      // 0 or 1
  std::int64_t context = 0;         // tokens a sequence may have
  std::int64_t stated_context = 0;  // what the files allow
  std::int64_t usable_context = 0;  // the same with a YaRN factor that was asked for: beyond it, positions are untrained
  bool tied_head = false;
  float norm_eps = 1e-6f;

  std::int64_t heads = 0;       // of KDA and of MLA
  std::int64_t head_dim = 128;  // KDA key and value size
  std::int64_t conv_taps = 4;
  bool bounded_gate = true;  // kda_safe_gate
  float gate_lower_bound = -5.0f;
  bool low_rank_gates = false;  // f_a / f_b and g_a / g_b

  std::optional<std::int64_t> q_rank;  // q_lora_rank
  std::int64_t kv_rank = 0;            // C
  std::int64_t nope_dim = 0;           // N
  std::int64_t rope_dim = 0;           // R
  std::int64_t value_dim = 0;          // v_head_dim
  AttentionGate attention_gate = AttentionGate::None;
  double rope_theta = 0;
  std::optional<YarnScaling> yarn;

  std::int64_t dense_width = 0;
  std::int64_t experts = 0;  // 0: every layer is dense
  std::int64_t expert_width = 0;
  std::int64_t shared_width = 0;  // of all shared experts together; 0: none
  std::int64_t first_moe_layer = 0;
  int top_k = 0;
  int num_groups = 1;
  int kept_groups = 1;
  float routed_scaling = 1.0f;
  std::vector<float> routed_limits;  // SwiGLU limit by main layer, 0: none; may be short
  std::vector<float> shared_limits;

  bool fp8_power_of_two_activations = false;  // quantization_config.scale_fmt is "ue8m0"

  std::vector<bool> mla_layers;  // by main layer: true MLA, false KDA

  std::optional<std::int64_t> bos_id;
  std::vector<std::int64_t> eos_ids;
  std::optional<std::int64_t> pad_id;

  /// Notes for `inspect`: unknown keys with a non-null value, and claims that contradict each other.
  std::vector<std::string> remarks;

  std::int64_t kda_width() const { return heads * head_dim; }     // P
  std::int64_t latent_row() const { return kv_rank + rope_dim; }  // values cached a token and MLA layer
  bool is_mla(std::int64_t layer) const { return layer >= layers || mla_layers[static_cast<std::size_t>(layer)]; }
  bool is_moe(std::int64_t layer) const { return layer >= layers || (experts > 0 && layer >= first_moe_layer); }
  std::int64_t num_mla_layers() const;  // main layers only
  std::int64_t num_kda_layers() const { return layers - num_mla_layers(); }
  float routed_limit(std::int64_t layer) const;
  float shared_limit(std::int64_t layer) const;
  /// What to say of a context that goes beyond what the model was made for, if this one does.
  std::optional<std::string> untrained_context_remark() const;
  /// Multiplies attention scores: (N + R)^-1/2, and mscale_all_dim's factor squared if set.
  float attention_scale() const;
};

/// Rotation speed of each of the R / 2 pairs, and what multiplies cos and sin.
struct RopeParameters {
  std::vector<double> inverse_frequencies;
  double factor = 1.0;
};
RopeParameters rope_parameters(const Config& config);

/// cos and sin [R / 2] of every pair's angle at `position`, times the factor.
void rotation_at(const RopeParameters& rope, std::int64_t position, std::span<float> cos, std::span<float> sin);

/// What a user may ask for by name against the file.
struct ConfigOverrides {
  std::optional<double> yarn_factor;    // --rope-scaling yarn:2; multiplies the context
  std::optional<std::int64_t> context;  // --context N
};

/// `text` is the content of config.json, `where` its path for messages. Throws Error that names the key, the value
/// found and what is expected.
Config parse_config(const std::string& text, const std::string& where, const ConfigOverrides& overrides = {});

/// The same for folder/config.json.
Config read_config(const std::filesystem::path& folder, const ConfigOverrides& overrides = {});

}  // namespace calandra
