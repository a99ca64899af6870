#include "memory/pool.h"

#include "base/error.h"
#include "base/sort_unique.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace calandra {
namespace {

// A NaN both as float32 and as two bf16 values.
constexpr int kPoisonByte = 0xFF;

}  // namespace

BlockPool::BlockPool(std::int64_t block_bytes, std::int64_t num_blocks, FreedMemory freed)
    : block_bytes_(block_bytes), num_blocks_(num_blocks), freed_(freed) {
  if (num_blocks < 1) fail("memory pool: {} blocks, expected at least 1", num_blocks);
  std::int64_t total = 0;
  if (__builtin_mul_overflow(block_bytes, num_blocks, &total)) {
    fail("memory pool: {} blocks of {} bytes are more than this machine can address", num_blocks, block_bytes);
  }
  // Reserved, not yet resident: a page of the system is taken when first written.
  void* address = ::mmap(nullptr, static_cast<std::size_t>(total), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) fail("memory pool: cannot reserve {} bytes: {}", total, std::strerror(errno));
  base_ = static_cast<std::byte*>(address);
  free_.reserve(static_cast<std::size_t>(num_blocks));
  for (std::int64_t block = num_blocks - 1; block >= 0; --block) give_back(block);
}

BlockPool::~BlockPool() {
  if (base_ != nullptr) ::munmap(base_, static_cast<std::size_t>(block_bytes_ * num_blocks_));
}

bool BlockPool::provide(std::int64_t blocks) {
  if (num_free() < blocks && reclaim_) reclaim_(blocks);
  return num_free() >= blocks;
}

std::int64_t BlockPool::take() {
  if (!provide(1)) return -1;
  const std::int64_t block = free_.back();
  free_.pop_back();
  return block;
}

void BlockPool::give_back(std::int64_t block) {
  if (freed_ == FreedMemory::Poisoned) std::memset(data(block), kPoisonByte, static_cast<std::size_t>(block_bytes_));
  free_.push_back(block);
}

PagePool::PagePool(BlockPool& blocks, std::int64_t page_bytes, std::int64_t pages_per_block)
    : blocks_(blocks), page_bytes_(page_bytes), pages_per_block_(pages_per_block) {
  const std::int64_t pages = blocks.num_blocks() * pages_per_block;
  holders_.resize(static_cast<std::size_t>(pages));
  used_in_block_.resize(static_cast<std::size_t>(blocks.num_blocks()));
  owners_.resize(static_cast<std::size_t>(blocks.num_blocks()));
}

std::int64_t PagePool::take(Owner owner) {
  const std::int64_t block = blocks_.take();
  if (block < 0) return -1;
  ++num_blocks_;
  owners_[static_cast<std::size_t>(block)] = owner;
  return hold(block * pages_per_block_);
}

std::int64_t PagePool::take_beside(std::int64_t neighbour, Owner owner) {
  const std::int64_t block = neighbour / pages_per_block_;
  if (used_in_block_[static_cast<std::size_t>(block)] == pages_per_block_) return -1;
  Owner& filled_by = owners_[static_cast<std::size_t>(block)];
  if (filled_by != Owner::None && filled_by != owner) return -1;
  filled_by = owner;
  std::int64_t page = block * pages_per_block_;
  while (holders_[static_cast<std::size_t>(page)] > 0) ++page;
  return hold(page);
}

void PagePool::leave(std::int64_t page, Owner owner) {
  Owner& filled_by = owners_[static_cast<std::size_t>(page / pages_per_block_)];
  if (filled_by == owner) filled_by = Owner::None;
}

std::int64_t PagePool::hold(std::int64_t page) {
  holders_[static_cast<std::size_t>(page)] = 1;
  ++used_in_block_[static_cast<std::size_t>(page / pages_per_block_)];
  ++num_used_;
  return page;
}

void PagePool::add_holder(std::int64_t page) { ++holders_[static_cast<std::size_t>(page)]; }

void PagePool::drop_holder(std::int64_t page) {
  if (--holders_[static_cast<std::size_t>(page)] > 0) return;
  --num_used_;
  const std::int64_t block = page / pages_per_block_;
  if (--used_in_block_[static_cast<std::size_t>(block)] > 0) {
    if (blocks_.freed() == FreedMemory::Poisoned) std::memset(data(page), kPoisonByte, static_cast<std::size_t>(page_bytes_));
    return;
  }
  --num_blocks_;
  blocks_.give_back(block);
}

std::byte* PagePool::data(std::int64_t page) const {
  return blocks_.data(page / pages_per_block_) + page % pages_per_block_ * page_bytes_;
}

bool BlockList::grow(std::int64_t count) {
  if (!pool_->provide(count)) return false;
  for (std::int64_t i = 0; i < count; ++i) blocks_.push_back(pool_->take());
  return true;
}

void BlockList::clear() {
  for (const std::int64_t block : blocks_) pool_->give_back(block);
  blocks_.clear();
}

PageList::PageList(const PageList& other) : pool_(other.pool_), owner_(pool_->new_owner()), pages_(other.pages_) {
  for (const std::int64_t page : pages_) pool_->add_holder(page);
}

bool PageList::push_fresh() {
  std::int64_t page = -1;
  for (auto held = pages_.rbegin(); held != pages_.rend() && page < 0; ++held) page = pool_->take_beside(*held, owner_);
  if (page < 0) page = pool_->take(owner_);
  if (page < 0) return false;
  pages_.push_back(page);
  return true;
}

bool PageList::push_copy(const PageList& other, std::int64_t i) {
  if (!push_fresh()) return false;
  std::memcpy((*this)[size() - 1], other[i], static_cast<std::size_t>(pool_->page_bytes()));
  return true;
}

std::int64_t PageList::num_blocks(std::int64_t count) const {
  std::vector<std::int64_t> blocks(pages_.begin(), pages_.begin() + count);
  for (std::int64_t& block : blocks) block /= pool_->pages_per_block();
  sort_unique(blocks);
  return std::ssize(blocks);
}

void PageList::resize(std::int64_t count) {
  if (size() <= count) return;
  close();
  while (size() > count) {
    pool_->drop_holder(pages_.back());
    pages_.pop_back();
  }
}

void PageList::close() {
  for (const std::int64_t page : pages_) pool_->leave(page, owner_);
}

}  // namespace calandra
