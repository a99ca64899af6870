#include "loadtest/percentiles.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace calandra {

double nearest_rank(const std::vector<double>& sorted, double p) {
  // p n / 100 in this order is exact where it is whole, so that no rank is one too high.
  const double rank = std::ceil(p * static_cast<double>(sorted.size()) / 100);
  return sorted[std::min(sorted.size(), std::max<std::size_t>(1, static_cast<std::size_t>(rank))) - 1];
}

Percentiles percentiles_of(std::vector<double> figures) {
  Percentiles result;
  if (figures.empty()) return result;
  std::sort(figures.begin(), figures.end());
  result.count = figures.size();
  result.mean = std::accumulate(figures.begin(), figures.end(), 0.0) / static_cast<double>(figures.size());
  result.p50 = nearest_rank(figures, 50);
  result.p90 = nearest_rank(figures, 90);
  result.p99 = nearest_rank(figures, 99);
  result.most = figures.back();
  return result;
}

}  // namespace calandra
