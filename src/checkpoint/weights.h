#pragma once
// The weights of a model, bound to their place in the network. Large matrices stay where the file is mapped; small
// vectors are decoded once to float32. Shapes as in config.h; a matrix is [outputs, inputs].

#include "checkpoint/config.h"
#include "kernels/matrix.h"
#include "tensor/safetensors.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace calandra {

struct KdaWeights {
  WeightMatrix q, k, v;                       // [P, h]
  WeightMatrix decay_in, decay;               // f: decay_in empty and decay [P, h], or [D, h] then [P, D]
  WeightMatrix gate_in, gate;                 // g: the same
  WeightMatrix beta;                          // b_proj [H, h]
  WeightMatrix out;                           // o_proj [h, P], in virtual shards
  std::vector<float> conv_q, conv_k, conv_v;  // [4, P], the current token's tap last
  std::vector<float> decay_rate;              // exp(A_log) [H]
  std::vector<float> dt_bias;                 // [P]
  std::vector<float> out_norm;                // [D]
};

struct MlaWeights {
  WeightMatrix q_in;           // q_a_proj [q_rank, h], or empty
  std::vector<float> q_norm;   // [q_rank]
  WeightMatrix q;              // q_b_proj [H (N + R), q_rank], or q_proj [H (N + R), h]
  WeightMatrix kv_in;          // kv_a_proj_with_mqa [C + R, h]
  std::vector<float> kv_norm;  // [C]
  WeightMatrix kv;             // kv_b_proj [H (N + value_dim), C]
  WeightMatrix gate;           // [H, h], [H value_dim, h], or empty
  WeightMatrix out;            // dense [h, H value_dim], in virtual shards
};

struct MlpWeights {
  WeightMatrix gate, up;  // [width, h]
  WeightMatrix down;      // [h, width]; of dense layers in virtual shards
  float limit = 0;        // SwiGLU limit, 0: none
};

struct MoeWeights {
  WeightMatrix router;      // [E, h]
  std::vector<float> bias;  // [E]
  std::vector<MlpWeights> experts;
  std::optional<MlpWeights> shared;
};

struct LayerWeights {
  std::vector<float> input_norm;  // [h]
  std::variant<KdaWeights, MlaWeights> mixer;
  std::vector<float> post_norm;  // [h]
  std::variant<MlpWeights, MoeWeights> mlp;
};

struct MtpWeights {
  std::vector<float> embedding_norm, hidden_norm;  // enorm, hnorm [h]
  WeightMatrix join;                               // eh_proj [h, 2h], embedding half first
  LayerWeights layer;                              // MLA and MoE
  std::vector<float> final_norm;                   // [h]
};

struct ModelWeights {
  WeightMatrix embedding;  // [vocab, h]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [h]
  WeightMatrix head;              // [vocab, h]
  std::optional<MtpWeights> mtp;
};

/// Part of a model for sums of parameters and bytes.
enum class Component : std::uint8_t { Embedding, Head, Kda, Mla, DenseMlp, RoutedExpert, SharedExpert, Router, Norm, Mtp };

/// What a tensor does: decides how a synthetic checkpoint draws it and which formats store it.
enum class Role : std::uint8_t {
  Embedding,
  Head,
  Norm,
  Projection,        // a linear that FP8 releases quantise
  ExpertProjection,  // the same, of a routed expert: MXFP4 in the fp4 release
  MlaProjection,     // the same, of MLA's query and latent: BF16 in the e8m0 release
  AttentionGate,     // MLA g_proj: BF16 except in the FP8 release's MTP layer
  Beta,
  Router,
  RouterBias,
  Conv,
  DecayRate,
  DecayBias,
  MtpJoin,
};

/// One logical tensor of a checkpoint. Shape of the weight itself, whatever the format packs.
struct TensorSpec {
  std::string name;  // "model.layers.3.attention.q_proj.weight"
  Shape shape;
  Role role = Role::Projection;
  Component component = Component::Norm;
  std::int64_t layer = -1;               // config.layers for MTP
  double gain = 1.0;                     // output spread of a synthetic weight for unit input
  std::string alias = {};                // another name some checkpoints use
  std::vector<Shape> other_shapes = {};  // accepted besides `shape`; A_log: any with as many elements
};

/// Where bind() takes its tensors from.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual WeightMatrix matrix(const TensorSpec& spec) = 0;
  /// All elements, in the order of storage.
  virtual std::vector<float> vector(const TensorSpec& spec) = 0;
  /// Whether a config's MTP layer is there.
  virtual bool has_mtp(const Config& config) = 0;
};

/// "model.layers.3.": how every tensor of a layer begins. The MTP layer is number config.layers.
std::string layer_prefix(std::int64_t layer);

/// Walks the network once, in layer order: the only code that knows tensor names. Asks `source` for every tensor.
ModelWeights bind(const Config& config, TensorSource& source);

/// Every tensor of a configuration, in the order of bind().
std::vector<TensorSpec> list_tensors(const Config& config);

}  // namespace calandra
