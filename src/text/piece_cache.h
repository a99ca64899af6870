#pragma once
// Remembers the tokens of short pieces of text within one call: words come again. A direct-mapped table: a new piece takes
// the place of an old one of the same hash.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace calandra {

class PieceCache {
 public:
  /// For a text of `text_bytes`; a small text gets a small cache.
  explicit PieceCache(std::size_t text_bytes) : entries_(std::bit_ceil(std::clamp(text_bytes / 8, kMinEntries, kMaxEntries))) {}

  /// Appends the tokens of `piece`: those of last time, or else those that encode(ids) appends.
  template <class Encode>
  void encode(std::string_view piece, std::vector<std::int32_t>& ids, Encode&& encode) {
    if (piece.size() > kMaxPieceBytes) return encode(ids);
    Entry& entry = entries_[std::hash<std::string_view>{}(piece) & (entries_.size() - 1)];
    if (entry.size == piece.size() && std::memcmp(entry.piece.data(), piece.data(), piece.size()) == 0) {
      ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.num_ids);
      return;
    }
    const std::size_t before = ids.size();
    encode(ids);
    const std::size_t num_ids = ids.size() - before;
    if (num_ids > kMaxIds) return;
    std::ranges::copy(piece, entry.piece.begin());
    std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), entry.ids.begin());
    entry.size = static_cast<std::uint8_t>(piece.size());
    entry.num_ids = static_cast<std::uint8_t>(num_ids);
  }

 private:
  static constexpr std::size_t kMinEntries = 16;
  static constexpr std::size_t kMaxEntries = 1 << 14;
  static constexpr std::size_t kMaxPieceBytes = 30;
  static constexpr std::size_t kMaxIds = 8;

  struct alignas(64) Entry {  // one cache line
    std::uint8_t size = 0;    // 0: empty
    std::uint8_t num_ids = 0;
    std::array<char, kMaxPieceBytes> piece;
    std::array<std::int32_t, kMaxIds> ids;
  };

  std::vector<Entry> entries_;
};

}  // namespace calandra
