#pragma once
// Random numbers for synthetic weights: a pure function of (seed, name, index), so that tensors and their rows can be drawn in any
// order and by any number of threads. SplitMix64 as a counter generator; not for cryptography. The sampler of the engine
// does not use this.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace calandra {

/// Random numbers in sequence for small tensors, and by position for large ones.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::string_view name);

  /// The next 64 bits.
  std::uint64_t next() { return bits(counter_++); }
  /// Uniform in [low, high).
  double uniform(double low, double high);
  /// Standard normal (Box-Muller).
  double normal();
  /// `count` values evenly spaced over [low, high], both included, in random order.
  std::vector<double> shuffled_range(std::int64_t count, double low, double high);

  /// Standard normal numbers of row `row` of a matrix, whatever else has been drawn. Four a 64-bit word, as quantiles of
  /// 16 random bits each: about two cycles a number, no number beyond 4.33.
  void normal_row(std::int64_t row, std::span<float> out) const;

 private:
  std::uint64_t bits(std::uint64_t index) const;

  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

}  // namespace calandra
