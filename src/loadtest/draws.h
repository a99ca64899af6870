#pragma once
// The random numbers of a load: which words, how long, when the next request comes. The same seed and the same purpose give the same
// numbers on every machine, whatever else is drawn, so a load can be repeated.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>

namespace calandra {

/// Lengths from `least` to `most`, both included.
struct LengthRange {
  std::int64_t least = 1, most = 1;
};

class Draws {
 public:
  /// `purpose` tells streams of one seed apart.
  Draws(std::uint64_t seed, std::initializer_list<std::uint64_t> purpose);

  /// Uniform in [0, 1).
  double unit();
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(unit() * static_cast<double>(limit)); }
  /// The time between two arrivals of a Poisson process with `rate` arrivals a second.
  double gap(double rate);
  /// Log-uniform: a length from 100 to 200 is as likely as one from 1,000 to 2,000. Lengths of real prompts spread over orders of
  /// magnitude, and a uniform draw would hardly ever be short.
  std::int64_t length(const LengthRange& range);

 private:
  std::mt19937_64 engine_;  // its numbers are fixed by the standard; those of the standard's distributions are not
};

}  // namespace calandra
