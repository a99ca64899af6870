#pragma once
// Where in a text the tokens that it ends with have come before.

#include <cstdint>
#include <span>
#include <vector>

namespace calandra {

class SuffixIndex {
 public:
  /// Shorter repetitions say little about what follows.
  static constexpr std::int64_t kLeastMatch = 3;
  /// Longer ones say no more.
  static constexpr std::int64_t kMostMatch = 64;

  struct Match {
    std::int64_t length = 0;  // tokens before `end` that are those before the text's end; 0: none
    std::int64_t end = 0;     // the token there came after them
  };

  /// Of the places that end with the text's last kLeastMatch tokens, the latest kMostPlaces are looked at: the one with the longest match, of
  /// equal ones the latest. Always called with the same text, which may have grown meanwhile; takes time for what is new and those
  /// places.
  Match find(std::span<const std::int32_t> tokens);

 private:
  static constexpr int kMostPlaces = 32;

  void grow(std::span<const std::int32_t> tokens);
  std::size_t bucket(std::span<const std::int32_t> tokens, std::int64_t end) const;

  std::vector<std::int32_t> latest_;   // by hash of kLeastMatch tokens: the end of the latest place, or 0
  std::vector<std::int32_t> earlier_;  // by end of a place: that of the one before with the same hash, or 0
};

}  // namespace calandra
