#pragma once
// A bit for each token id.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace calandra {

class TokenMask {
 public:
  TokenMask() = default;
  explicit TokenMask(std::int32_t size) { clear(size); }

  /// For `size` tokens, none of them in it.
  void clear(std::int32_t size) {
    size_ = size;
    words_.assign((static_cast<std::size_t>(size) + 63) / 64, 0);
  }
  std::int32_t size() const { return size_; }

  bool test(std::int32_t id) const { return (word(id) >> (id % 64) & 1) != 0; }
  void set(std::int32_t id) { word(id) |= std::uint64_t{1} << (id % 64); }
  void reset(std::int32_t id) { word(id) &= ~(std::uint64_t{1} << (id % 64)); }

  std::int32_t count() const {
    std::int32_t count = 0;
    for (const std::uint64_t w : words_) count += std::popcount(w);
    return count;
  }

  /// Of the same size.
  TokenMask& operator|=(const TokenMask& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }

  /// Bit i of word w is token 64 w + i.
  std::span<const std::uint64_t> words() const { return words_; }

  bool operator==(const TokenMask&) const = default;

 private:
  std::uint64_t word(std::int32_t id) const { return words_[static_cast<std::size_t>(id) / 64]; }
  std::uint64_t& word(std::int32_t id) { return words_[static_cast<std::size_t>(id) / 64]; }

  std::vector<std::uint64_t> words_;
  std::int32_t size_ = 0;
};

}  // namespace calandra
