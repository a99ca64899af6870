#pragma once
// A checkpoint with rows, heads and low ranks as wide as those of Ling-3.1-flash, with its MTP layer, and as little else as there can be: a KDA
// layer, an MLA layer, 16 heads, 16 narrow experts in MXFP4, 1,024 tokens.

#include "checkpoint/synthetic.h"
#include "support/golden.h"

#include <nlohmann/json.hpp>

#include <filesystem>

namespace calandra {

/// Made on first use in this process, in a second.
inline std::filesystem::path wide_slice_folder() {
  static const TemporaryFolder folder;
  static const std::filesystem::path made = [] {
    SyntheticOptions options;
    options.model = LingModel::Flash31;
    options.format = SyntheticFormat::Fp4;
    options.layers = 8;
    options.experts = 16;
    options.vocab = 1024;
    nlohmann::ordered_json config = synthetic_config(options);
    const std::size_t layers = 2;
    config["num_hidden_layers"] = layers;
    config["layer_group_size"] = layers;
    config["first_k_dense_replace"] = 1;
    config["num_attention_heads"] = config["num_key_value_heads"] = 16;
    config["intermediate_size"] = 2048;
    config["moe_intermediate_size"] = config["moe_shared_expert_intermediate_size"] = 256;
    config["quantization_config"]["modules_to_not_convert"] = {
        "word_embeddings", "attention.b_proj", "1.mlp.gate", "1.attention.g_proj", "eh_proj", "2.mlp.gate", "lm_head"};
    for (const char* list : {"expert_swiglu_limit_list", "share_expert_swiglu_limit_list"}) {
      auto& limits = config[list];
      while (limits.is_array() && limits.size() > layers) limits.erase(limits.begin());
    }
    make_checkpoint(config, options, folder / "wide");
    return folder / "wide";
  }();
  return made;
}

}  // namespace calandra
