#pragma once
// The one pool behind everything that grows: equal blocks, each the size of one KDA layer's state. States and tails take
// whole blocks; latent pages share a block with pages of the same sequence and kind and are reference-counted, so that a
// boundary and the sequences that grew from it hold the same rows once. Sequences that share no boundary share no block:
// however their growth interleaves, each holds MemoryLayout::sequence_blocks() and gives all of them back. One thread at a time.

#include "memory/layout.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace calandra {

/// What freed memory looks like until it is handed out again.
enum class FreedMemory : std::uint8_t {
  AsIs,
  Poisoned,  // NaN bit patterns: a row read without having been written cannot go unnoticed
};

class BlockPool {
 public:
  BlockPool(std::int64_t block_bytes, std::int64_t num_blocks, FreedMemory freed);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Index of a free block, or -1 if there is none. Its content is unspecified.
  std::int64_t take();
  void give_back(std::int64_t block);

  /// Who is asked, before the pool says that it is dry, to give blocks back until `blocks` are free.
  using Reclaim = std::function<void(std::int64_t blocks)>;
  void set_reclaim(Reclaim reclaim) { reclaim_ = std::move(reclaim); }
  /// Whether that many blocks are free now, also by reclaiming.
  bool provide(std::int64_t blocks);

  std::byte* data(std::int64_t block) const { return base_ + block * block_bytes_; }
  std::int64_t block_bytes() const { return block_bytes_; }
  std::int64_t num_blocks() const { return num_blocks_; }
  std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
  FreedMemory freed() const { return freed_; }

 private:
  std::byte* base_ = nullptr;
  std::int64_t block_bytes_;
  std::int64_t num_blocks_;
  FreedMemory freed_;
  std::vector<std::int64_t> free_;  // last one is handed out next
  Reclaim reclaim_;
};

/// Pages of one kind, carved out of blocks.
class PagePool {
 public:
  PagePool(BlockPool& blocks, std::int64_t page_bytes, std::int64_t pages_per_block);

  /// Whoever takes pages: a block is filled by one of them, so that the others' growth does not scatter what it holds.
  enum class Owner : std::uint64_t { None };
  Owner new_owner() { return Owner{++last_owner_}; }

  /// A page with one holder: the first of a fresh block, now `owner`'s, or -1 if the pool is dry.
  std::int64_t take(Owner owner);
  /// The same from the block that `neighbour` lies in, or -1 if that is full or another's. Nobody's becomes `owner`'s.
  std::int64_t take_beside(std::int64_t neighbour, Owner owner);
  /// The block that `page` lies in becomes nobody's, if it is `owner`'s.
  void leave(std::int64_t page, Owner owner);
  void add_holder(std::int64_t page);
  std::int64_t num_holders(std::int64_t page) const { return holders_[static_cast<std::size_t>(page)]; }
  /// The last holder frees the page; the last page frees the block.
  void drop_holder(std::int64_t page);

  std::byte* data(std::int64_t page) const;
  std::int64_t page_bytes() const { return page_bytes_; }
  std::int64_t pages_per_block() const { return pages_per_block_; }
  std::int64_t num_used() const { return num_used_; }
  /// Blocks that hold at least one page.
  std::int64_t num_blocks() const { return num_blocks_; }

 private:
  std::int64_t hold(std::int64_t page);

  BlockPool& blocks_;
  std::int64_t page_bytes_;
  std::int64_t pages_per_block_;
  std::int64_t num_used_ = 0;
  std::int64_t num_blocks_ = 0;
  std::vector<std::uint32_t> holders_;        // by page
  std::vector<std::uint32_t> used_in_block_;  // by block
  std::vector<Owner> owners_;                 // by block
  std::uint64_t last_owner_ = 0;
};

/// Blocks of a pool by what is in them.
struct PoolUse {
  std::int64_t states = 0;  // and tails
  std::int64_t latents = 0;
  std::int64_t mtp_latents = 0;
  std::int64_t nothing = 0;
};

/// Everything a model's sequences take their memory from.
class MemoryPool {
 public:
  MemoryPool(const MemoryLayout& layout, std::int64_t num_blocks, FreedMemory freed = FreedMemory::AsIs)
      : layout_(layout),
        blocks_(layout.block_bytes, num_blocks, freed),
        latents_(blocks_, layout.page_bytes, layout.pages_per_block),
        mtp_latents_(blocks_, layout.mtp_page_bytes, layout.mtp_pages_per_block) {}

  const MemoryLayout& layout() const { return layout_; }
  BlockPool& blocks() { return blocks_; }
  PagePool& latents() { return latents_; }
  PagePool& mtp_latents() { return mtp_latents_; }

  PoolUse use() const {
    const std::int64_t latents = latents_.num_blocks(), mtp_latents = mtp_latents_.num_blocks(), nothing = blocks_.num_free();
    return {blocks_.num_blocks() - nothing - latents - mtp_latents, latents, mtp_latents, nothing};
  }

 private:
  MemoryLayout layout_;
  BlockPool blocks_;
  PagePool latents_;
  PagePool mtp_latents_;
};

/// Whole blocks of a pool, held until destroyed. Move-only.
class BlockList {
 public:
  explicit BlockList(BlockPool& pool) : pool_(&pool) {}
  ~BlockList() { clear(); }
  BlockList(BlockList&& other) noexcept : pool_(other.pool_), blocks_(std::exchange(other.blocks_, {})) {}
  BlockList& operator=(BlockList&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(blocks_, other.blocks_);
    return *this;
  }

  /// Adds `count` blocks; false and unchanged if the pool has fewer.
  bool grow(std::int64_t count);
  std::int64_t size() const { return static_cast<std::int64_t>(blocks_.size()); }
  std::byte* operator[](std::int64_t i) const { return pool_->data(blocks_[static_cast<std::size_t>(i)]); }

 private:
  void clear();
  BlockPool* pool_;
  std::vector<std::int64_t> blocks_;
};

/// References to pages, in position order. Copying shares the pages. Fresh ones come from the blocks of those the list holds
/// already, where no other list fills them, and from a block of its own when those are full.
class PageList {
 public:
  explicit PageList(PagePool& pool) : pool_(&pool), owner_(pool.new_owner()) {}
  ~PageList() { resize(0); }
  PageList(const PageList& other);
  PageList(PageList&& other) noexcept
      : pool_(other.pool_),
        owner_(std::exchange(other.owner_, other.pool_->new_owner())),
        pages_(std::exchange(other.pages_, {})) {}
  PageList& operator=(PageList other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(owner_, other.owner_);
    std::swap(pages_, other.pages_);
    return *this;
  }

  /// Adds a fresh page; false if the pool is dry.
  bool push_fresh();
  /// Adds a fresh page with the content of page `i` of `other`; false if the pool is dry.
  bool push_copy(const PageList& other, std::int64_t i);
  /// Drops pages from the end.
  void resize(std::int64_t count);
  /// Takes no more: other lists may fill its blocks.
  void close();
  /// Blocks that the first `count` pages lie in.
  std::int64_t num_blocks(std::int64_t count) const;
  /// Whether nobody else holds page `i`.
  bool alone(std::int64_t i) const { return pool_->num_holders(pages_[static_cast<std::size_t>(i)]) == 1; }
  std::int64_t size() const { return static_cast<std::int64_t>(pages_.size()); }
  std::byte* operator[](std::int64_t i) const { return pool_->data(pages_[static_cast<std::size_t>(i)]); }

 private:
  PagePool* pool_;
  PagePool::Owner owner_;
  std::vector<std::int64_t> pages_;
};

}  // namespace calandra
