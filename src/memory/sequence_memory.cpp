#include "memory/sequence_memory.h"

#include "base/integer.h"

#include <algorithm>
#include <cstring>

namespace calandra {
Boundary::Boundary(MemoryPool& pool) : fixed_(pool.blocks()), latents_(pool.latents()), mtp_latents_(pool.mtp_latents()) {}

SequenceMemory::SequenceMemory(MemoryPool& pool)
    : pool_(pool),
      fixed_(pool.blocks()),
      latents_(pool.latents()),
      mtp_latents_(pool.mtp_latents()),
      latent_pages_(static_cast<std::size_t>(pool.layout().mla_layers)),
      mtp_pages_(static_cast<std::size_t>(pool.layout().mtp_layers)) {}

std::unique_ptr<SequenceMemory> SequenceMemory::create(MemoryPool& pool) {
  std::unique_ptr<SequenceMemory> memory(new SequenceMemory(pool));
  if (!memory->fixed_.grow(pool.layout().fixed_blocks())) return nullptr;
  for (std::int64_t i = 0; i < memory->fixed_.size(); ++i) {
    std::memset(memory->fixed_[i], 0, static_cast<std::size_t>(pool.layout().block_bytes));
  }
  return memory;
}

std::unique_ptr<SequenceMemory> SequenceMemory::resume(MemoryPool& pool, const Boundary& boundary, BoundaryPages pages) {
  std::unique_ptr<SequenceMemory> memory(new SequenceMemory(pool));
  if (!memory->fixed_.grow(boundary.fixed_.size())) return nullptr;
  for (std::int64_t i = 0; i < memory->fixed_.size(); ++i) {
    std::memcpy(memory->fixed_[i], boundary.fixed_[i], static_cast<std::size_t>(pool.layout().block_bytes));
  }
  memory->position_ = boundary.position_;
  memory->hidden_ = boundary.hidden_;
  // Whole pages are shared. A page that is only partly behind the position will be written by this sequence: its own copy.
  const std::int64_t page_tokens = pool.layout().page_tokens;
  const auto share = [&](const PageList& from, PageList& to, std::int64_t rows, auto& pages_by_layer) {
    const std::int64_t count = std::min(from.size(), ceil_div(rows, page_tokens));
    const std::int64_t whole = std::min(from.size(), rows / page_tokens);
    to = from;
    to.resize(pages == BoundaryPages::Copied ? 0 : whole);
    while (to.size() < count) {
      if (!to.push_copy(from, to.size())) return false;
    }
    for (std::int64_t page = 0; page < to.size(); ++page) memory->index_page(to, page, pages_by_layer);
    return true;
  };
  if (!share(boundary.latents_, memory->latents_, boundary.position_, memory->latent_pages_)) return nullptr;
  const std::int64_t mtp_rows = std::max<std::int64_t>(0, boundary.position_ - 1);
  if (!share(boundary.mtp_latents_, memory->mtp_latents_, mtp_rows, memory->mtp_pages_)) return nullptr;
  return memory;
}

void SequenceMemory::index_page(const PageList& pages, std::int64_t page,
                                std::vector<std::vector<std::byte*>>& pages_by_layer) const {
  const std::int64_t layer_bytes = layout().page_tokens * layout().latent_row_bytes;
  for (std::size_t layer = 0; layer < pages_by_layer.size(); ++layer) {
    pages_by_layer[layer].push_back(pages[page] + static_cast<std::int64_t>(layer) * layer_bytes);
  }
}

bool SequenceMemory::grow(PageList& pages, std::int64_t count, std::vector<std::vector<std::byte*>>& pages_by_layer) {
  if (pages_by_layer.empty()) return true;
  const std::int64_t before = pages.size();
  while (pages.size() < count) {
    if (!pages.push_fresh()) {
      pages.resize(before);
      for (auto& layer : pages_by_layer) layer.resize(static_cast<std::size_t>(before));
      return false;
    }
    index_page(pages, pages.size() - 1, pages_by_layer);
  }
  return true;
}

bool SequenceMemory::reserve(std::int64_t end) {
  const std::int64_t pages = ceil_div(end, layout().page_tokens);
  const std::int64_t before = latents_.size();
  if (!grow(latents_, pages, latent_pages_)) return false;
  if (grow(mtp_latents_, pages, mtp_pages_)) return true;
  latents_.resize(before);
  for (auto& layer : latent_pages_) layer.resize(static_cast<std::size_t>(before));
  return false;
}

std::unique_ptr<Boundary> SequenceMemory::snapshot() const {
  std::unique_ptr<Boundary> boundary(new Boundary(pool_));
  if (!boundary->fixed_.grow(fixed_.size())) return nullptr;
  for (std::int64_t i = 0; i < fixed_.size(); ++i) {
    std::memcpy(boundary->fixed_[i], fixed_[i], static_cast<std::size_t>(layout().block_bytes));
  }
  boundary->position_ = position_;
  boundary->hidden_ = hidden_;
  boundary->latents_ = latents_;
  boundary->latents_.resize(std::min(latents_.size(), ceil_div(position_, layout().page_tokens)));
  boundary->mtp_latents_ = mtp_latents_;
  boundary->mtp_latents_.resize(std::min(mtp_latents_.size(), ceil_div(position_, layout().page_tokens)));
  return boundary;
}

std::span<float> SequenceMemory::state(std::int64_t kda_index, std::int64_t head) {
  const std::int64_t floats = layout().head_dim * layout().head_dim;
  return {reinterpret_cast<float*>(fixed_[kda_index]) + head * floats, static_cast<std::size_t>(floats)};
}

std::byte* SequenceMemory::tails(std::int64_t kda_index) {
  const std::int64_t block = layout().kda_layers + kda_index / layout().tails_per_block;
  return fixed_[block] + kda_index % layout().tails_per_block * layout().tail_bytes;
}

LatentCache SequenceMemory::cache(std::vector<std::vector<std::byte*>>& pages_by_layer, std::size_t layer) const {
  const std::span<std::byte* const> pages = pages_by_layer[layer];
  LatentCache cache;
  cache.rows.type = layout().types.latents;
  cache.rows.latent_dim = layout().latent_dim;
  cache.rows.rope_dim = layout().rope_dim;
  cache.rows.page_tokens = layout().page_tokens;
  cache.rows.pages = {const_cast<const std::byte* const*>(pages.data()), pages.size()};
  cache.pages = pages;
  cache.row_bytes = layout().latent_row_bytes;
  return cache;
}

LatentCache SequenceMemory::latents(std::int64_t mla_index) { return cache(latent_pages_, static_cast<std::size_t>(mla_index)); }

LatentCache SequenceMemory::mtp_latents() { return cache(mtp_pages_, 0); }

void SequenceMemory::advance(std::int64_t count, std::span<const float> hidden) {
  position_ += count;
  hidden_.assign(hidden.begin(), hidden.end());
}

}  // namespace calandra
