#pragma once
// What is said of many figures.

#include <cstddef>
#include <vector>

namespace calandra {

/// Percentiles by nearest rank: the p-th is the smallest figure that at least p percent of all are not above. It is always one of the
/// figures; of fewer than 100 the 99th is the largest.
struct Percentiles {
  std::size_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, most = 0;
};

/// All 0 for no figures.
Percentiles percentiles_of(std::vector<double> figures);

/// One of them, p from above 0 to 100. `sorted` is ascending and not empty.
double nearest_rank(const std::vector<double>& sorted, double p);

}  // namespace calandra
