#pragma once
// The one header of size formulas: how many bytes a sequence takes and how they fill the blocks of the pool. The
// allocator and everything that predicts it use these and no others. All sizes in bytes unless the name says tokens,
// layers, pages or blocks.

#include "checkpoint/config.h"
#include "kernels/kernels.h"

#include <cstdint>

namespace calandra {

/// How a sequence's rows are kept. Tails are F32 or BF16: the convolution sees its inputs as they are kept.
struct CacheTypes {
  CacheType latents;
  CacheType tails;
  constexpr CacheTypes(CacheType of_latents, CacheType of_tails) : latents(of_latents), tails(of_tails) {}
  constexpr CacheTypes(CacheType both) : CacheTypes(both, both) {}
};

struct MemoryLayout {
  CacheTypes types = CacheType::BF16;
  std::int64_t kda_layers = 0;
  std::int64_t mla_layers = 0;  // main layers
  std::int64_t mtp_layers = 0;  // 1 if the MTP layer runs

  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t state_floats = 0;   // of one KDA layer: H D D
  std::int64_t tail_values = 0;    // of one KDA layer: 3 streams x 3 inputs x P
  std::int64_t replay_values = 0;  // of one KDA layer and token that is not certain yet: what a state and its tails take of it
  std::int64_t latent_dim = 0;     // C
  std::int64_t rope_dim = 0;       // R
  std::int64_t latent_row_values = 0;  // of one MLA layer and token: C + R
  std::int64_t latent_row_bytes = 0;

  /// The pool's unit: one KDA layer's state of a sequence; more where that is smaller than one token's latents of all layers.
  std::int64_t block_bytes = 0;

  std::int64_t tail_bytes = 0;       // of one KDA layer
  std::int64_t tails_per_block = 0;  // layers
  std::int64_t tail_blocks = 0;      // of a sequence

  /// Tokens of a page: 64, or less if a page of 64 would not fit a block. A power of two, so pages tile attention blocks.
  std::int64_t page_tokens = 0;
  std::int64_t page_bytes = 0;  // page_tokens rows of every main MLA layer
  std::int64_t pages_per_block = 0;
  std::int64_t mtp_page_bytes = 0;  // page_tokens rows of the MTP layer
  std::int64_t mtp_pages_per_block = 0;

  /// Blocks that hold what does not grow: states and tails.
  std::int64_t fixed_blocks() const { return kda_layers + tail_blocks; }
  /// Blocks of one sequence of that many tokens that shares nothing.
  std::int64_t sequence_blocks(std::int64_t tokens) const;

  // What a person asks for: bytes without the rounding to pages and blocks.
  std::int64_t state_bytes() const { return kda_layers * state_floats * 4; }
  std::int64_t tails_bytes() const { return kda_layers * tail_bytes; }
  std::int64_t cache_bytes_per_token() const;                                   // main layers
  std::int64_t replay_bytes() const { return kda_layers * replay_values * 4; }  // of one such token, while it is not
  std::int64_t mtp_cache_bytes_per_token() const;
};

/// Throws Error for FP8 tails.
MemoryLayout memory_layout(const Config& config, CacheTypes types, bool with_mtp);

}  // namespace calandra
