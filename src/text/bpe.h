#pragma once
// Byte-pair encoding of one piece of text: every byte becomes its token, then the adjacent pair with the lowest merge rank
// (the leftmost of equals) is merged until none is left. Immutable; safe from many threads.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace calandra {

/// Maps a pair of token ids to the rank of its merge: a flat table with linear probing, at most half full. Most questions are
/// about pairs that have none, and the table of a large vocabulary outgrows the near caches: a bitmap answers most of those.
class MergeTable {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  explicit MergeTable(std::size_t num_merges);
  void insert(std::int32_t left, std::int32_t right, std::uint32_t rank);  // the last rank of a pair stands

  std::uint32_t rank(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right), hash = hash_of(key);
    if ((present_[hash >> present_shift_ >> 6] >> (hash >> present_shift_ & 63) & 1) == 0) return kNone;
    for (std::size_t i = hash >> shift_;; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].rank;
      if (slots_[i].key == kEmpty) return kNone;
    }
  }

 private:
  struct Slot {
    std::uint64_t key;
    std::uint32_t rank;
  };
  static constexpr std::uint64_t kEmpty = UINT64_MAX;  // ids are never negative

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  static std::uint64_t hash_of(std::uint64_t key) { return key * 0x9E3779B97F4A7C15u; }

  std::vector<Slot> slots_;
  std::size_t mask_;
  int shift_;
  std::vector<std::uint64_t> present_;  // a bit by the leading bits of the hash: whether any key has them
  int present_shift_;
};

class Bpe {
 public:
  struct Merge {
    std::int32_t left, right, result;
  };

  /// What one thread needs, reused between calls.
  struct Scratch {
    struct Symbol {
      std::int32_t id;
      std::uint32_t previous, next;  // positions in `symbols`; kEnd at the ends
      std::uint32_t rank;            // of the merge with `next`; MergeTable::kNone if there is none or this symbol is gone
    };
    std::vector<Symbol> symbols;
    std::vector<std::uint64_t> queue;  // a heap of rank << 32 | position, the lowest on top
  };

  /// `byte_ids` are the tokens of the 256 bytes, `merges` are in order of rank.
  Bpe(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges);

  /// Appends the tokens of `piece` (less than 4 GiB) to `ids`. n log n in its size.
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;
  void merge_at(std::uint32_t position, Scratch& scratch) const;

  std::array<std::int32_t, 256> byte_ids_;
  MergeTable ranks_;
  std::vector<std::uint32_t> byte_pair_ranks_;  // by left byte * 256 + right byte: small enough to stay in cache
  std::vector<std::int32_t> results_;           // by rank
};

}  // namespace calandra
