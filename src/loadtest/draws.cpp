#include "loadtest/draws.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace calandra {
namespace {

std::mt19937_64 engine_of(std::uint64_t seed, std::initializer_list<std::uint64_t> purpose) {
  std::vector<std::uint32_t> words;
  const auto add = [&](std::uint64_t number) {
    words.push_back(static_cast<std::uint32_t>(number));
    words.push_back(static_cast<std::uint32_t>(number >> 32));
  };
  add(seed);
  for (const std::uint64_t number : purpose) add(number);
  std::seed_seq sequence(words.begin(), words.end());
  return std::mt19937_64(sequence);
}

}  // namespace

Draws::Draws(std::uint64_t seed, std::initializer_list<std::uint64_t> purpose) : engine_(engine_of(seed, purpose)) {}

double Draws::unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

double Draws::gap(double rate) { return -std::log1p(-unit()) / rate; }

std::int64_t Draws::length(const LengthRange& range) {
  const double low = std::log(static_cast<double>(range.least)), high = std::log(static_cast<double>(range.most) + 1);
  const double drawn = std::exp(low + unit() * (high - low));
  return std::clamp(static_cast<std::int64_t>(drawn), range.least, range.most);
}

}  // namespace calandra
