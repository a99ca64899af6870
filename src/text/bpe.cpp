#include "text/bpe.h"

#include <algorithm>
#include <functional>

namespace calandra {
namespace {

constexpr std::uint32_t kEnd = UINT32_MAX;
constexpr std::size_t kPresentBitsPerSlot = 8;  // of 16 to 32 bits a merge, 3 to 6 % answer wrongly that there may be one
constexpr std::size_t kMaxShortPiece = 32;      // up to here a scan for the lowest rank is faster than a heap

}  // namespace

MergeTable::MergeTable(std::size_t num_merges) {
  const std::size_t num_slots = std::bit_ceil(std::max<std::size_t>(2 * num_merges, 16));
  slots_.assign(num_slots, {kEmpty, kNone});
  mask_ = num_slots - 1;
  shift_ = 64 - std::countr_zero(num_slots);
  const std::size_t num_bits = num_slots * kPresentBitsPerSlot;
  present_.assign(num_bits / 64, 0);
  present_shift_ = 64 - std::countr_zero(num_bits);
}

void MergeTable::insert(std::int32_t left, std::int32_t right, std::uint32_t rank) {
  const std::uint64_t key = key_of(left, right), hash = hash_of(key);
  present_[hash >> present_shift_ >> 6] |= std::uint64_t{1} << (hash >> present_shift_ & 63);
  std::size_t i = hash >> shift_;
  while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & mask_;
  slots_[i] = {key, rank};
}

Bpe::Bpe(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges)
    : byte_ids_(byte_ids), ranks_(merges.size()) {
  results_.reserve(merges.size());
  for (const Merge& merge : merges) {
    ranks_.insert(merge.left, merge.right, static_cast<std::uint32_t>(results_.size()));
    results_.push_back(merge.result);
  }
  byte_pair_ranks_.reserve(byte_ids.size() * byte_ids.size());
  for (const std::int32_t left : byte_ids) {
    for (const std::int32_t right : byte_ids) byte_pair_ranks_.push_back(ranks_.rank(left, right));
  }
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (piece.empty()) return;
  auto& symbols = scratch.symbols;
  const auto count = static_cast<std::uint32_t>(piece.size());
  symbols.resize(count);
  const auto byte_at = [&](std::uint32_t i) { return std::size_t{static_cast<unsigned char>(piece[i])}; };
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t rank = i + 1 < count ? byte_pair_ranks_[byte_at(i) * 256 + byte_at(i + 1)] : MergeTable::kNone;
    symbols[i] = {byte_ids_[byte_at(i)], i - 1, i + 1, rank};
  }
  symbols.front().previous = symbols.back().next = kEnd;
  if (count <= kMaxShortPiece) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  for (std::uint32_t i = 0; i != kEnd; i = symbols[i].next) ids.push_back(symbols[i].id);
}

/// Joins the symbol at `position` with the next one and brings the ranks of both its pairs up to date.
void Bpe::merge_at(std::uint32_t position, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  Scratch::Symbol& symbol = symbols[position];
  Scratch::Symbol& gone = symbols[symbol.next];
  symbol.id = results_[symbol.rank];
  symbol.next = gone.next;
  gone.rank = MergeTable::kNone;
  symbol.rank = MergeTable::kNone;
  if (symbol.next != kEnd) {
    symbols[symbol.next].previous = position;
    symbol.rank = ranks_.rank(symbol.id, symbols[symbol.next].id);
  }
  if (symbol.previous != kEnd) {
    Scratch::Symbol& previous = symbols[symbol.previous];
    previous.rank = ranks_.rank(previous.id, symbol.id);
  }
}

void Bpe::merge_short(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  while (true) {
    std::uint32_t lowest = 0;
    for (std::uint32_t i = symbols[0].next; i != kEnd; i = symbols[i].next) {
      if (symbols[i].rank < symbols[lowest].rank) lowest = i;
    }
    if (symbols[lowest].rank == MergeTable::kNone) return;
    merge_at(lowest, scratch);
  }
}

void Bpe::merge_long(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  queue.clear();
  const auto entry_of = [&](std::uint32_t position) { return std::uint64_t{symbols[position].rank} << 32 | position; };
  for (std::uint32_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i].rank != MergeTable::kNone) queue.push_back(entry_of(i));
  }
  std::ranges::make_heap(queue, std::greater{});
  const auto push = [&](std::uint32_t position) {
    if (position == kEnd || symbols[position].rank == MergeTable::kNone) return;
    queue.push_back(entry_of(position));
    std::ranges::push_heap(queue, std::greater{});
  };
  while (!queue.empty()) {
    std::ranges::pop_heap(queue, std::greater{});
    const std::uint64_t entry = queue.back();
    queue.pop_back();
    const auto position = static_cast<std::uint32_t>(entry);
    if (symbols[position].rank != entry >> 32) continue;  // its pair has changed since
    merge_at(position, scratch);
    push(position);
    push(symbols[position].previous);
  }
}

}  // namespace calandra
