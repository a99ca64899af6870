#pragma once
// The noise of one draw: a standard Gumbel number for every token, a function of (seed, position, sample, token). One block of
// the generator has the upper 32 bits of four tokens, which nearly always say that a token cannot win; another has the lower ones.

#include "engine/philox.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace calandra {

class GumbelNoise {
 public:
  GumbelNoise(std::uint64_t seed, std::int64_t position, std::uint32_t sample)
      : seed_(seed), position_(static_cast<std::uint64_t>(position)), sample_(sample) {}

  double of(std::int32_t token) const {
    const auto index = static_cast<std::uint32_t>(token);
    const std::uint64_t upper = block(index / 4)[index % 4], lower = block(index / 4 | kLowerWords)[index % 4];
    const double uniform = (static_cast<double>((upper << 32 | lower) >> 11) + 0.5) * 0x1.0p-53;  // inside (0, 1)
    return -std::log(-std::log(uniform));
  }

  /// Upper words of the tokens from `first`, a multiple of four.
  template <std::size_t kTokens>
  void upper_words(std::int32_t first, std::array<std::uint32_t, kTokens>& words) const {
    static_assert(kTokens % 4 == 0);
    for (std::size_t i = 0; i < kTokens / 4; ++i) {
      const auto four = block(static_cast<std::uint32_t>(first) / 4 + static_cast<std::uint32_t>(i));
      for (std::size_t word = 0; word < 4; ++word) words[4 * i + word] = four[word];
    }
  }

  /// Noise of a token with this upper word is not larger.
  static float most_for(std::uint32_t upper_word) {
    // -log(-log u) <= -log(1 - u), and 1 - u > 2 rest / 2^32. The bits of a float, as an integer, are no more than 2^23 (log2 + 127) of it.
    const auto rest = static_cast<float>(static_cast<std::int32_t>(~upper_word >> 1));
    const float log2_rest = static_cast<float>(std::bit_cast<std::int32_t>(rest)) * 0x1.0p-23f - 127.0f;
    constexpr float kLn2 = 0.69314718f, kRounding = 1e-3f;
    return (31.0f - log2_rest) * kLn2 + kRounding;
  }
  /// Of any token: -log(2^-54) is 37.4.
  static constexpr double kMost = 38;

 private:
  static constexpr std::uint32_t kLowerWords = std::uint32_t{1} << 31;  // no token's number reaches it

  std::array<std::uint32_t, 4> block(std::uint32_t index) const {
    return philox({index, static_cast<std::uint32_t>(position_), static_cast<std::uint32_t>(position_ >> 32), sample_},
                  {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
  }

  std::uint64_t seed_, position_;
  std::uint32_t sample_;
};

}  // namespace calandra
