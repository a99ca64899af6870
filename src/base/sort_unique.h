#pragma once

#include <algorithm>
#include <vector>

namespace calandra {

/// Sorts, and keeps one of those that are equal.
template <class T>
void sort_unique(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

}  // namespace calandra
