#include "model/compute.h"

#include "base/integer.h"
#include "kernels/quantize.h"

#include <algorithm>

namespace calandra {
namespace {

// Rows of a weight that one task multiplies: small enough that two threads share a small matrix evenly.
constexpr std::int64_t kWeightRowsPerTask = 32;

}  // namespace

void Compute::round(Rows x) const {
  if (activations_ == Activations::Fp32) return;
  for (std::int64_t r = 0; r < x.rows; ++r) kernels_.round_bf16({x.row(r), static_cast<std::size_t>(x.cols)});
}

/// x as the weight sees it: x itself, or in Fp8 mode a quantised copy kept in `scratch`.
ConstRows Compute::input_for(const WeightMatrix& w, ConstRows x, std::vector<float>& scratch) const {
  const bool block_fp8 = w.format == WeightFormat::Fp8 || w.format == WeightFormat::Fp8E8m0;
  if (activations_ != Activations::Fp8 || !block_fp8) return x;
  scratch.resize(static_cast<std::size_t>(x.rows * x.cols));
  const Rows copy{scratch.data(), x.rows, x.cols, x.cols};
  for (std::int64_t r = 0; r < x.rows; ++r) {
    std::copy_n(x.row(r), x.cols, copy.row(r));
    quantize_activations_fp8({copy.row(r), static_cast<std::size_t>(x.cols)}, power_of_two_scales_);
  }
  return copy;
}

void Compute::linear(const WeightMatrix& w, ConstRows x, Rows y) const {
  const Product product{&w, x, y};
  linear(std::span(&product, 1));
}

void Compute::linear(std::span<const Product> products) const {
  // Tasks are numbered through all products; first_task[p] is where those of product p begin.
  std::vector<std::int64_t> first_task;
  std::vector<std::vector<float>> scratch(products.size());
  std::vector<ConstRows> inputs;
  std::int64_t tasks = 0;
  for (std::size_t p = 0; p < products.size(); ++p) {
    first_task.push_back(tasks);
    tasks += ceil_div(products[p].weight->rows, kWeightRowsPerTask);
    inputs.push_back(input_for(*products[p].weight, products[p].x, scratch[p]));
  }
  threads_.for_each(tasks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t task = first; task < last; ++task) {
      const auto p =
          static_cast<std::size_t>(std::upper_bound(first_task.begin(), first_task.end(), task) - first_task.begin() - 1);
      const WeightMatrix& w = *products[p].weight;
      const std::int64_t begin = (task - first_task[p]) * kWeightRowsPerTask;
      kernels_.matmul(w, inputs[p], products[p].y, begin, std::min(w.rows, begin + kWeightRowsPerTask));
    }
  });
}

}  // namespace calandra
