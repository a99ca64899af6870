#include "engine/suffix_index.h"

#include <algorithm>
#include <bit>

namespace calandra {

std::size_t SuffixIndex::bucket(std::span<const std::int32_t> tokens, std::int64_t end) const {
  // Multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4): the upper bits.
  std::uint64_t hash = 0;
  for (std::int64_t i = end - kLeastMatch; i < end; ++i)
    hash = (hash ^ static_cast<std::uint32_t>(tokens[static_cast<std::size_t>(i)])) * 0x9e3779b97f4a7c15u;
  return static_cast<std::size_t>(hash >> (64 - std::countr_zero(latest_.size())));
}

/// Takes in all places but the text's end.
void SuffixIndex::grow(std::span<const std::int32_t> tokens) {
  if (latest_.size() < tokens.size()) {
    latest_.assign(std::bit_ceil(std::max<std::size_t>(64, 2 * tokens.size())), 0);
    earlier_.clear();
  }
  for (std::int64_t end = std::ssize(earlier_); end < std::ssize(tokens); ++end) {
    earlier_.push_back(0);
    if (end < kLeastMatch) continue;
    std::int32_t& latest = latest_[bucket(tokens, end)];
    earlier_.back() = latest;
    latest = static_cast<std::int32_t>(end);
  }
}

SuffixIndex::Match SuffixIndex::find(std::span<const std::int32_t> tokens) {
  Match best;
  const auto size = std::ssize(tokens);
  if (size <= kLeastMatch) return best;
  grow(tokens);
  std::int64_t end = latest_[bucket(tokens, size)];
  for (int places = 0; end > 0 && places < kMostPlaces; ++places, end = earlier_[static_cast<std::size_t>(end)]) {
    const std::int64_t most = std::min(end, kMostMatch);
    std::int64_t length = 0;
    while (length < most &&
           tokens[static_cast<std::size_t>(end - 1 - length)] == tokens[static_cast<std::size_t>(size - 1 - length)])
      ++length;
    if (length >= kLeastMatch && length > best.length) best = {length, end};
  }
  return best;
}

}  // namespace calandra
