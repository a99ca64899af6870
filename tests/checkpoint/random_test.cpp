#include "checkpoint/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace calandra {
namespace {

TEST(RandomStream, RowsAreNormalNumbers) {
  const RandomStream random(3, "weights");
  std::vector<float> x(1 << 20);
  random.normal_row(5, x);
  const double n = static_cast<double>(x.size());
  double mean = 0, square = 0, fourth = 0, neighbours = 0;
  int beyond_1 = 0, beyond_3 = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = static_cast<double>(x[i]);
    mean += v / n;
    square += v * v / n;
    fourth += v * v * v * v / n;
    if (i > 0) neighbours += v * static_cast<double>(x[i - 1]) / n;
    if (v > 1) ++beyond_1;
    if (v > 3) ++beyond_3;
  }
  EXPECT_NEAR(mean, 0, 0.005);
  EXPECT_NEAR(square, 1, 0.01);
  EXPECT_NEAR(fourth, 3, 0.05);
  EXPECT_NEAR(neighbours, 0, 0.005);
  EXPECT_NEAR(beyond_1 / n, 0.158655, 0.002);  // tables of the normal distribution
  EXPECT_NEAR(beyond_3 / n, 0.0013499, 0.0002);
}

TEST(RandomStream, RowsDependOnSeedNameAndRowOnly) {
  const auto row = [](std::uint64_t seed, const char* name, std::int64_t index, int drawn_before) {
    RandomStream random(seed, name);
    for (int i = 0; i < drawn_before; ++i) random.next();
    std::vector<float> x(101);  // not a multiple of four
    random.normal_row(index, x);
    return x;
  };
  const std::vector<float> expected = row(1, "a", 7, 0);
  EXPECT_EQ(row(1, "a", 7, 9), expected);
  EXPECT_NE(row(2, "a", 7, 0), expected);
  EXPECT_NE(row(1, "b", 7, 0), expected);
  EXPECT_NE(row(1, "a", 8, 0), expected);
}

TEST(RandomStream, ShuffledRangeHoldsEveryValueOnce) {
  RandomStream random(1, "bias");
  std::vector<double> values = random.shuffled_range(101, -1, 1);
  EXPECT_FALSE(std::is_sorted(values.begin(), values.end()));
  std::sort(values.begin(), values.end());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], -1 + 0.02 * static_cast<double>(i), 1e-12);
  EXPECT_EQ(random.shuffled_range(1, 5, 6), std::vector<double>{5});
}

TEST(RandomStream, UniformFillsItsRangeAndNormalIsNormal) {
  RandomStream random(1, "x");
  double low = 1, high = 0, square = 0;
  for (int i = 0; i < 100000; ++i) {
    const double u = random.uniform(0, 1);
    low = std::min(low, u);
    high = std::max(high, u);
    const double v = random.normal();
    square += v * v / 100000;
  }
  EXPECT_GE(low, 0);
  EXPECT_LT(low, 0.001);
  EXPECT_LT(high, 1);
  EXPECT_GT(high, 0.999);
  EXPECT_NEAR(square, 1, 0.02);
}

}  // namespace
}  // namespace calandra
