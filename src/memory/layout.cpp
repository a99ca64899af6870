#include "memory/layout.h"

#include "base/aligned.h"
#include "base/error.h"
#include "base/integer.h"

#include <algorithm>

namespace calandra {
namespace {

constexpr std::int64_t kPageTokens = 64;
constexpr std::int64_t kConvInputs = 3;   // inputs that a convolution of 4 taps looks back
constexpr std::int64_t kConvStreams = 3;  // q, k, v

}  // namespace

MemoryLayout memory_layout(const Config& config, CacheTypes types, bool with_mtp) {
  if (types.tails == CacheType::Fp8) fail("convolution tails as fp8: expected fp32 or bf16, as the convolution sees its inputs");
  MemoryLayout m;
  m.types = types;
  m.kda_layers = config.num_kda_layers();
  m.mla_layers = config.num_mla_layers();
  m.mtp_layers = with_mtp ? 1 : 0;
  m.heads = config.heads;
  m.head_dim = config.head_dim;
  m.state_floats = config.heads * config.head_dim * config.head_dim;
  m.tail_values = kConvStreams * kConvInputs * config.kda_width();
  m.replay_values = (3 + kConvStreams) * config.kda_width() + config.heads;  // k, v, decay; inputs of the convolutions; beta
  m.latent_dim = config.kv_rank;
  m.rope_dim = config.rope_dim;
  m.latent_row_values = config.latent_row();
  m.latent_row_bytes = cache_row_bytes(types.latents, m.latent_row_values);
  m.tail_bytes = cache_row_bytes(types.tails, m.tail_values);
  const std::int64_t widest = std::max(m.mla_layers, m.mtp_layers);
  m.block_bytes =
      ceil_div(std::max(m.state_floats * 4, m.latent_row_bytes * widest), std::int64_t{kCacheLine}) * std::int64_t{kCacheLine};

  m.tails_per_block = m.block_bytes / m.tail_bytes;
  m.tail_blocks = m.kda_layers > 0 ? ceil_div(m.kda_layers, m.tails_per_block) : 0;

  m.page_tokens = kPageTokens;
  while (m.page_tokens > 1 && m.page_tokens * m.latent_row_bytes * widest > m.block_bytes) m.page_tokens /= 2;
  m.page_bytes = m.page_tokens * m.latent_row_bytes * m.mla_layers;
  m.mtp_page_bytes = m.page_tokens * m.latent_row_bytes * m.mtp_layers;
  m.pages_per_block = m.page_bytes > 0 ? m.block_bytes / m.page_bytes : 0;
  m.mtp_pages_per_block = m.mtp_page_bytes > 0 ? m.block_bytes / m.mtp_page_bytes : 0;
  return m;
}

std::int64_t MemoryLayout::sequence_blocks(std::int64_t tokens) const {
  const std::int64_t pages = ceil_div(tokens, page_tokens);
  std::int64_t blocks = fixed_blocks();
  if (pages_per_block > 0) blocks += ceil_div(pages, pages_per_block);
  if (mtp_pages_per_block > 0) blocks += ceil_div(pages, mtp_pages_per_block);
  return blocks;
}

std::int64_t MemoryLayout::cache_bytes_per_token() const { return mla_layers * latent_row_bytes; }

std::int64_t MemoryLayout::mtp_cache_bytes_per_token() const { return mtp_layers * latent_row_bytes; }

}  // namespace calandra
