#pragma once
// What a prefix tree is keyed by: the tokens of a request, or, where there are none, opaque segments of a length.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace calandra {

/// A sequence of `size()` units that can be cut anywhere. `unit(i)` tells apart what follows at i: two keys whose units at i are equal
/// have at least one unit in common from there. `common(i, other, j)` counts all of them.
/// `slice(begin, end)` is a part, `joined(next)` what it came from.
template <class Key>
concept PrefixKey = requires(const Key& key, std::int64_t i) {
  { key.size() } -> std::same_as<std::int64_t>;
  { key.unit(i) } -> std::same_as<std::uint64_t>;
  { key.common(i, key, i) } -> std::same_as<std::int64_t>;
  { key.slice(i, i) } -> std::same_as<Key>;
  { key.joined(key) } -> std::same_as<Key>;
};

class TokenKey {
 public:
  TokenKey() = default;
  explicit TokenKey(std::span<const std::int32_t> tokens) : tokens_(tokens.begin(), tokens.end()) {}

  std::int64_t size() const { return std::ssize(tokens_); }
  std::uint64_t unit(std::int64_t i) const { return static_cast<std::uint32_t>(tokens_[static_cast<std::size_t>(i)]); }
  std::int64_t common(std::int64_t i, const TokenKey& other, std::int64_t j) const {
    const auto from = tokens_.begin() + i;
    return std::mismatch(from, tokens_.end(), other.tokens_.begin() + j, other.tokens_.end()).first - from;
  }
  TokenKey slice(std::int64_t begin, std::int64_t end) const {
    return TokenKey(std::span(tokens_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
  }
  TokenKey joined(const TokenKey& next) const {
    TokenKey both = *this;
    both.tokens_.insert(both.tokens_.end(), next.tokens_.begin(), next.tokens_.end());
    return both;
  }

 private:
  std::vector<std::int32_t> tokens_;
};

/// Segments of text that is not there: those of equal id begin alike, for as long as the shorter is.
class SegmentKey {
 public:
  struct Segment {
    std::uint32_t id = 0;
    std::uint32_t length = 0;   // at least 1
    std::uint32_t skipped = 0;  // units of the segment before the first
  };

  SegmentKey() = default;
  explicit SegmentKey(std::span<const Segment> segments) {
    for (const Segment& segment : segments) append(segment);
  }

  std::int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  std::uint64_t unit(std::int64_t i) const {
    const std::size_t at = segment_at(i);
    return std::uint64_t{segments_[at].id} << 32 | static_cast<std::uint64_t>(segments_[at].skipped + offset(at, i));
  }
  std::int64_t common(std::int64_t i, const SegmentKey& other, std::int64_t j) const {
    std::int64_t count = 0;
    while (i + count < size() && j + count < other.size() && unit(i + count) == other.unit(j + count))
      count += std::min(left(i + count), other.left(j + count));
    return count;
  }
  SegmentKey slice(std::int64_t begin, std::int64_t end) const {
    SegmentKey part;
    for (std::int64_t i = begin; i < end; i += left(i)) {
      const std::size_t at = segment_at(i);
      part.append({segments_[at].id, static_cast<std::uint32_t>(std::min(left(i), end - i)),
                   segments_[at].skipped + static_cast<std::uint32_t>(offset(at, i))});
    }
    return part;
  }
  SegmentKey joined(const SegmentKey& next) const {
    SegmentKey both = *this;
    for (const Segment& segment : next.segments_) both.append(segment);
    return both;
  }

 private:
  void append(Segment segment) {
    const bool goes_on = !segments_.empty() && segments_.back().id == segment.id &&
                         segments_.back().skipped + segments_.back().length == segment.skipped;
    if (!goes_on) {
      segments_.push_back(segment);
      ends_.push_back(size() + segment.length);
    } else {
      segments_.back().length += segment.length;
      ends_.back() += segment.length;
    }
  }
  std::size_t segment_at(std::int64_t i) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(ends_, i) - ends_.begin());
  }
  std::int64_t offset(std::size_t at, std::int64_t i) const { return i - (ends_[at] - segments_[at].length); }
  /// Units of i's segment from i on.
  std::int64_t left(std::int64_t i) const { return ends_[segment_at(i)] - i; }

  std::vector<Segment> segments_;
  std::vector<std::int64_t> ends_;
};

}  // namespace calandra
