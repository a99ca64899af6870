#include "memory/sequence_memory.h"

#include "base/error.h"
#include "base/integer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace calandra {
namespace {

/// Rows that the MTP layer's cache has at a position.
std::int64_t mtp_rows_at(std::int64_t position) { return std::max<std::int64_t>(0, position - 1); }

/// visit(std::byte* data, bytes, first row, rows) of rows [begin, end) of `layers` layers, page by page.
template <class Visit>
void for_each_run_of_rows(const MemoryLayout& layout, const PageList& pages, std::int64_t layers, std::int64_t begin,
                          std::int64_t end, const Visit& visit) {
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (std::int64_t row = begin; row < end;) {
      const std::int64_t in_page = row % layout.page_tokens, rows = std::min(end - row, layout.page_tokens - in_page);
      std::byte* const data = pages[row / layout.page_tokens] + (layer * layout.page_tokens + in_page) * layout.latent_row_bytes;
      visit(data, rows * layout.latent_row_bytes, row, rows);
      row += rows;
    }
  }
}

}  // namespace

void FixedMemory::clear() {
  for (std::int64_t i = 0; i < blocks_.size(); ++i) std::memset(blocks_[i], 0, static_cast<std::size_t>(layout_->block_bytes));
}

void FixedMemory::copy(const FixedMemory& from) {
  for (std::int64_t i = 0; i < blocks_.size(); ++i)
    std::memcpy(blocks_[i], from.blocks_[i], static_cast<std::size_t>(layout_->block_bytes));
}

std::span<float> FixedMemory::state(std::int64_t kda_index, std::int64_t head) {
  const std::int64_t floats = layout_->head_dim * layout_->head_dim;
  return {reinterpret_cast<float*>(blocks_[kda_index]) + head * floats, static_cast<std::size_t>(floats)};
}

std::byte* FixedMemory::tails(std::int64_t kda_index) const {
  const std::int64_t block = layout_->kda_layers + kda_index / layout_->tails_per_block;
  return blocks_[block] + kda_index % layout_->tails_per_block * layout_->tail_bytes;
}

Boundary::Boundary(MemoryPool& pool)
    : layout_(pool.layout()), fixed_(pool), latents_(pool.latents()), mtp_latents_(pool.mtp_latents()) {}

SequenceMemory::SequenceMemory(MemoryPool& pool)
    : pool_(pool),
      fixed_(pool),
      latents_(pool.latents()),
      mtp_latents_(pool.mtp_latents()),
      latent_pages_(static_cast<std::size_t>(pool.layout().mla_layers)),
      mtp_pages_(static_cast<std::size_t>(pool.layout().mtp_layers)) {}

std::unique_ptr<SequenceMemory> SequenceMemory::create(MemoryPool& pool) {
  std::unique_ptr<SequenceMemory> memory(new SequenceMemory(pool));
  if (!memory->fixed_.allocate()) return nullptr;
  memory->fixed_.clear();
  return memory;
}

void Boundary::share_pages(PageList latents, PageList mtp_latents) {
  const std::int64_t pages = ceil_div(position_, layout_.page_tokens);
  latents_ = std::move(latents);
  latents_.resize(std::min(latents_.size(), pages));
  latents_.close();
  mtp_latents_ = std::move(mtp_latents);
  mtp_latents_.resize(std::min(mtp_latents_.size(), pages));
  mtp_latents_.close();
}

std::int64_t Boundary::held_blocks() const {
  return fixed_.size() + latents_.num_blocks(latents_.size()) + mtp_latents_.num_blocks(mtp_latents_.size());
}

std::int64_t Boundary::scattered_blocks() const {
  // The whole pages are shared and lie in `held` blocks; what follows begins a block of its own in the worst case.
  const auto beyond = [&](const PageList& pages, std::int64_t rows, std::int64_t pages_per_block) {
    const std::int64_t whole = std::min(pages.size(), rows / layout_.page_tokens);
    if (whole == 0) return std::int64_t{0};
    const std::int64_t held = pages.num_blocks(whole);
    return held - ceil_div(whole, pages_per_block) + (whole % pages_per_block == 0 ? 0 : 1);
  };
  return beyond(latents_, position_, layout_.pages_per_block) +
         beyond(mtp_latents_, mtp_rows_at(position_), layout_.mtp_pages_per_block);
}

StoredParts Boundary::rows(std::int64_t begin, std::int64_t end) const {
  StoredParts parts;
  const auto add = [&](const std::byte* data, std::int64_t bytes, std::int64_t, std::int64_t) {
    parts.emplace_back(data, static_cast<std::size_t>(bytes));
  };
  for_each_run_of_rows(layout_, latents_, layout_.mla_layers, begin, end, add);
  for_each_run_of_rows(layout_, mtp_latents_, layout_.mtp_layers, mtp_rows_at(begin), mtp_rows_at(end), add);
  return parts;
}

StoredParts Boundary::fixed() const {
  StoredParts parts;
  fixed_.for_each_part(
      [&](const std::byte* data, std::int64_t bytes) { parts.emplace_back(data, static_cast<std::size_t>(bytes)); });
  parts.push_back(std::as_bytes(std::span(hidden_)));
  return parts;
}

std::unique_ptr<SequenceMemory> SequenceMemory::resume(MemoryPool& pool, const Boundary& boundary, BoundaryPages pages) {
  std::unique_ptr<SequenceMemory> memory(new SequenceMemory(pool));
  if (!memory->fixed_.allocate()) return nullptr;
  memory->fixed_.copy(boundary.fixed_);
  memory->position_ = boundary.position_;
  memory->hidden_ = boundary.hidden_;
  memory->latents_ = boundary.latents_;
  memory->mtp_latents_ = boundary.mtp_latents_;
  return memory->own_pages(pages) ? std::move(memory) : nullptr;
}

std::unique_ptr<SequenceMemory> SequenceMemory::thaw(MemoryPool& pool, std::unique_ptr<Boundary> boundary) {
  std::unique_ptr<SequenceMemory> memory(new SequenceMemory(pool));
  memory->position_ = boundary->position_;
  memory->fixed_ = std::move(boundary->fixed_);
  memory->hidden_ = std::move(boundary->hidden_);
  memory->latents_ = std::move(boundary->latents_);
  memory->mtp_latents_ = std::move(boundary->mtp_latents_);
  return memory->own_pages(BoundaryPages::Shared) ? std::move(memory) : nullptr;
}

std::unique_ptr<Boundary> SequenceMemory::freeze(std::unique_ptr<SequenceMemory> memory) {
  memory->check_nothing_put_off();
  std::unique_ptr<Boundary> boundary(new Boundary(memory->pool_));
  boundary->position_ = memory->position_;
  boundary->fixed_ = std::move(memory->fixed_);
  boundary->hidden_ = std::move(memory->hidden_);
  boundary->share_pages(std::move(memory->latents_), std::move(memory->mtp_latents_));
  return boundary;
}

/// Whole pages are shared. A page that is only partly behind the position will be written by this sequence: its own copy, if anybody
/// else holds it.
bool SequenceMemory::own_pages(BoundaryPages mode) {
  const auto own = [&](PageList& pages, std::int64_t rows, auto& pages_by_layer) {
    const std::int64_t count = std::min(pages.size(), ceil_div(rows, layout().page_tokens));
    std::int64_t kept = mode == BoundaryPages::Copied ? 0 : std::min(count, rows / layout().page_tokens);
    if (kept == count - 1 && pages.alone(kept)) kept = count;
    const PageList from = pages;
    pages.resize(kept);
    while (pages.size() < count) {
      if (!pages.push_copy(from, pages.size())) return false;
    }
    for (std::int64_t page = 0; page < pages.size(); ++page) index_page(pages, page, pages_by_layer);
    return true;
  };
  return own(latents_, position_, latent_pages_) && own(mtp_latents_, mtp_rows_at(position_), mtp_pages_);
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

PartsToFill SequenceMemory::rows_to_fill(std::int64_t begin, std::int64_t end) {
  PartsToFill parts;
  const auto fill = [&](std::int64_t there) {
    return [&parts, there, row_bytes = layout().latent_row_bytes](std::byte* data, std::int64_t bytes, std::int64_t row,
                                                                  std::int64_t rows) {
      // Shared pages are being read by others: not even the same bytes are written there.
      const std::int64_t kept = std::clamp<std::int64_t>(there - row, 0, rows) * row_bytes;
      if (kept > 0) parts.push_back({nullptr, static_cast<std::size_t>(kept)});
      if (kept < bytes) parts.push_back({data + kept, static_cast<std::size_t>(bytes - kept)});
    };
  };
  for_each_run_of_rows(layout(), latents_, layout().mla_layers, begin, end, fill(position_));
  for_each_run_of_rows(layout(), mtp_latents_, layout().mtp_layers, mtp_rows_at(begin), mtp_rows_at(end),
                       fill(mtp_rows_at(position_)));
  return parts;
}

PartsToFill SequenceMemory::fixed_to_fill(std::int64_t hidden) {
  PartsToFill parts;
  fixed_.for_each_part([&](std::byte* data, std::int64_t bytes) { parts.push_back({data, static_cast<std::size_t>(bytes)}); });
  hidden_.resize(static_cast<std::size_t>(hidden));
  const std::span<std::byte> row = std::as_writable_bytes(std::span(hidden_));
  parts.push_back({row.data(), row.size()});
  return parts;
}

std::unique_ptr<Boundary> SequenceMemory::boundary_ahead(std::int64_t position) const {
  std::unique_ptr<Boundary> boundary(new Boundary(pool_));
  if (!boundary->fixed_.allocate()) return nullptr;
  boundary->position_ = position;
  boundary->share_pages(latents_, mtp_latents_);
  return boundary;
}

void SequenceMemory::check_nothing_put_off() const {
  if (!put_off_tokens_.empty())
    fail("a boundary at {}: {} rows of the MTP layer are put off, expected none", position_, put_off_tokens_.size());
}

void SequenceMemory::arrive(std::int64_t position) {
  position_ = position;
  mtp_row_token_.reset();
  clear_mtp_put_off();
}

void SequenceMemory::put_off_mtp_row(std::span<const float> hidden, std::int32_t next) {
  put_off_tokens_.push_back(next);
  put_off_hidden_.insert(put_off_hidden_.end(), hidden.begin(), hidden.end());
}

void SequenceMemory::clear_mtp_put_off() {
  put_off_tokens_.clear();
  put_off_hidden_.clear();
}

std::unique_ptr<Boundary> SequenceMemory::snapshot() const {
  check_nothing_put_off();
  std::unique_ptr<Boundary> boundary = boundary_ahead(position_);
  if (!boundary) return nullptr;
  boundary->fixed_.copy(fixed_);
  boundary->hidden_ = hidden_;
  return boundary;
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
  mtp_row_token_.reset();
}

}  // namespace calandra
