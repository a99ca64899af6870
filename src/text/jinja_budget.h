#pragma once
// What a render may cost. Whoever makes or walks over data charges it first, so a template neither hangs nor fills memory.

#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace calandra::jinja {

class Budget {
 public:
  /// One text or list may take this much: what is alive at a time stays small although much may be made in all.
  static constexpr std::uint64_t kMaxValueBytes = std::uint64_t{64} << 20;
  /// A step of the interpreter, or one value looked at.
  static constexpr std::uint64_t kStep = 64;

  explicit Budget(std::uint64_t max_work) : left_(max_work) {}
  /// For data that came as JSON: a tree, so that walking it costs no more than it takes itself.
  static Budget unlimited() { return Budget(std::numeric_limits<std::uint64_t>::max()); }

  /// Charges bytes made or walked over. Throws Error when everything has cost too much.
  void spend(std::uint64_t bytes) {
    if (bytes > left_) fail("the render takes too much work");
    left_ -= bytes;
  }
  void spend_step() { spend(kStep); }

  /// Charges one value of `count` parts before it is made. Throws Error if it is too big.
  void make_room(std::uint64_t count, std::uint64_t part_bytes = 1) {
    if (part_bytes != 0 && count > kMaxValueBytes / part_bytes)
      fail("the render takes too much work: a value of more than {} bytes", kMaxValueBytes);
    spend(count * part_bytes);
  }

  /// Charges what a text has grown by since it was `charged` bytes long.
  void grow(std::size_t& charged, std::size_t size) {
    if (size > kMaxValueBytes) make_room(size);
    spend(size - charged);
    charged = size;
  }

  /// Charges looking for a part in a text: at worst the part is compared at every place, some 16 bytes at a time.
  void spend_search(std::size_t text_size, std::size_t part_size) {
    const std::uint64_t factor = 1 + part_size / 16;
    if (text_size > std::numeric_limits<std::uint64_t>::max() / factor) fail("the render takes too much work");
    spend(text_size * factor);
  }

 private:
  std::uint64_t left_;
};

}  // namespace calandra::jinja
