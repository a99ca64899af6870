#pragma once
// A checkpoint ready to compute in a test, and what a run leaves behind.

#include "checkpoint/checkpoint.h"
#include "checkpoint/synthetic.h"
#include "model/forward.h"
#include "support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace calandra {

/// Folder of a test model: a golden variant, "austen-5m", or "slice-FORMAT": true widths of Ling-3.0-tiny, 4 layers, 32
/// experts, 2,048 tokens, made on first use in this process.
inline std::filesystem::path model_folder(const std::string& name) {
  if (name == "austen-5m") return source_path("models/austen-5m");
  if (!name.starts_with("slice-")) return golden_path(name);
  static const TemporaryFolder slices;
  const std::filesystem::path folder = slices / name;
  if (!std::filesystem::exists(folder)) {
    SyntheticOptions options;
    options.model = LingModel::Tiny30;
    options.format = synthetic_format_of(name.substr(6));
    options.layers = 4;
    options.experts = 32;
    options.vocab = 2048;
    make_checkpoint(options, folder);
  }
  return folder;
}

class TestModel {
 public:
  TestModel(const std::string& name, Isa isa, Activations activations, int num_threads = 2, std::optional<CacheType> latents = {})
      : checkpoint_(Checkpoint::open(model_folder(name))),
        threads_(num_threads),
        compute_(kernels_for(isa), threads_, activations, checkpoint_.config().fp8_power_of_two_activations),
        pass_(checkpoint_.config(), checkpoint_.weights(), compute_, true),
        layout_(memory_layout(checkpoint_.config(), cache_types(activations, latents), pass_.with_mtp())) {}

  const Config& config() const { return checkpoint_.config(); }
  const Kernels& kernels() const { return compute_.kernels(); }
  const MemoryLayout& layout() const { return layout_; }
  ForwardPass& pass() { return pass_; }

  /// A pool for that many sequences of that length; freed memory is poisoned.
  std::unique_ptr<MemoryPool> pool(std::int64_t sequences, std::int64_t tokens) const {
    return std::make_unique<MemoryPool>(layout_, sequences * (layout_.sequence_blocks(tokens) + 2), FreedMemory::Poisoned);
  }

  /// Embeddings of these tokens. [tokens, h]
  std::vector<float> embedded(std::span<const std::int32_t> tokens) const {
    const auto width = static_cast<std::size_t>(config().hidden);
    std::vector<float> values(tokens.size() * width);
    for (std::size_t t = 0; t < tokens.size(); ++t)
      kernels().decode_row(checkpoint_.weights().embedding, tokens[t], std::span(values).subspan(t * width, width));
    return values;
  }

  std::vector<float> logits(ConstRows hidden) {
    std::vector<float> values(static_cast<std::size_t>(hidden.rows * config().vocab));
    pass_.head(hidden, {values.data(), hidden.rows, config().vocab, config().vocab});
    return values;
  }

  /// Feeds tokens to one sequence and appends the final-norm rows to `hidden`.
  void feed(SequenceMemory& memory, std::span<const std::int32_t> tokens, std::vector<float>& hidden) {
    ASSERT_TRUE(memory.reserve(memory.position() + static_cast<std::int64_t>(tokens.size())));
    const Slice slice{&memory, tokens};
    const ConstRows rows = pass_.run(std::span(&slice, 1));
    hidden.insert(hidden.end(), rows.data, rows.data + rows.rows * rows.cols);
  }

  std::vector<std::int32_t> random_tokens(std::size_t count, unsigned seed) const {
    std::mt19937 random(seed);
    std::vector<std::int32_t> tokens(count);
    for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(config().vocab));
    return tokens;
  }

  /// Everything a sequence remembers, as numbers: states, tails, latents, MTP latents, last hidden row.
  std::vector<float> contents(SequenceMemory& memory) const {
    std::vector<float> all;
    const auto append = [&](const std::byte* data, CacheType type, std::int64_t count) {
      const std::size_t at = all.size();
      all.resize(at + static_cast<std::size_t>(count));
      kernels().load_cache(data, type, std::span(all).subspan(at));
    };
    const CacheTypes types = layout_.types;
    for (std::int64_t layer = 0; layer < layout_.kda_layers; ++layer) {
      for (std::int64_t head = 0; head < layout_.heads; ++head) {
        const auto state = memory.state(layer, head);
        all.insert(all.end(), state.begin(), state.end());
      }
      append(memory.tails(layer), types.tails, layout_.tail_values);
    }
    for (std::int64_t layer = 0; layer < layout_.mla_layers; ++layer) {
      for (std::int64_t t = 0; t < memory.position(); ++t)
        append(memory.latents(layer).row(t), types.latents, layout_.latent_row_values);
    }
    for (std::int64_t t = 0; layout_.mtp_layers > 0 && t + 1 < memory.position(); ++t)
      append(memory.mtp_latents().row(t), types.latents, layout_.latent_row_values);
    all.insert(all.end(), memory.last_hidden().begin(), memory.last_hidden().end());
    return all;
  }

 private:
  Checkpoint checkpoint_;
  ThreadPool threads_;
  Compute compute_;
  ForwardPass pass_;
  MemoryLayout layout_;
};

}  // namespace calandra
