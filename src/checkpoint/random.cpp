#include "checkpoint/random.h"

#include <cmath>
#include <numbers>
#include <utility>

namespace calandra {
namespace {

constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15u;  // SplitMix64's odd step, 2^64 / golden ratio

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// FNV-1a, 64 bits.
std::uint64_t hash(std::string_view text) {
  std::uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return h;
}

/// x with P(X > x) = p for a standard normal X and 0 < p < 1/2, by Newton's method from `x`.
double upper_quantile(double p, double x) {
  for (int step = 0; step < 50; ++step) {
    const double tail = 0.5 * std::erfc(x / std::numbers::sqrt2);
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    const double change = (tail - p) / density;
    x += change;
    if (std::abs(change) < 1e-12) break;
  }
  return x;
}

constexpr std::size_t kQuantiles = 65536;

/// The middle quantiles of 65,536 equal slices of the normal distribution, scaled to variance 1.
std::vector<float> make_quantiles() {
  std::vector<double> half(kQuantiles / 2);
  double x = 0, squares = 0;
  for (std::size_t i = 0; i < half.size(); ++i) {
    const double p = 0.5 - (static_cast<double>(i) + 0.5) / static_cast<double>(kQuantiles);
    x = half[i] = upper_quantile(p, x);
    squares += x * x;
  }
  const double scale = 1 / std::sqrt(squares / static_cast<double>(half.size()));
  std::vector<float> table(kQuantiles);
  for (std::size_t i = 0; i < half.size(); ++i) {
    table[i] = static_cast<float>(half[i] * scale);
    table[i + half.size()] = -table[i];
  }
  return table;
}

const float* quantiles() {
  static const std::vector<float> table = make_quantiles();
  return table.data();
}

}  // namespace

RandomStream::RandomStream(std::uint64_t seed, std::string_view name) : key_(mix(mix(seed + kGamma) ^ hash(name))) {}

std::uint64_t RandomStream::bits(std::uint64_t index) const { return mix(key_ + kGamma * (index + 1)); }

double RandomStream::uniform(double low, double high) { return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53; }

double RandomStream::normal() {
  const double u = 1 - uniform(0, 1);  // in (0, 1]
  const double angle = uniform(0, 2 * std::numbers::pi);
  return std::sqrt(-2 * std::log(u)) * std::cos(angle);
}

std::vector<double> RandomStream::shuffled_range(std::int64_t count, double low, double high) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = low + (high - low) * static_cast<double>(i) / static_cast<double>(values.size() > 1 ? values.size() - 1 : 1);
  }
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[next() % i]);
  return values;
}

void RandomStream::normal_row(std::int64_t row, std::span<float> out) const {
  const float* table = quantiles();
  const std::uint64_t words = (out.size() + 3) / 4;
  // Half of the counter's range is kept for next().
  std::uint64_t index = (std::uint64_t{1} << 63) + static_cast<std::uint64_t>(row) * words;
  std::size_t i = 0;
  for (; i + 4 <= out.size(); i += 4) {
    const std::uint64_t word = bits(index++);
    out[i] = table[word & 0xFFFF];
    out[i + 1] = table[(word >> 16) & 0xFFFF];
    out[i + 2] = table[(word >> 32) & 0xFFFF];
    out[i + 3] = table[word >> 48];
  }
  if (i == out.size()) return;
  for (std::uint64_t word = bits(index); i < out.size(); word >>= 16) out[i++] = table[word & 0xFFFF];
}

}  // namespace calandra
