#include "model/compute.h"

#include "base/integer.h"
#include "kernels/quantize.h"

#include <algorithm>

namespace calandra {
namespace {

// Outputs of a weight that one task makes: enough that a panel of decoded weights pays, few enough that two threads share a
// small matrix evenly. A multiple of the outputs of every instruction set's tiles.
constexpr std::int64_t kStripOutputs = 48;

std::int64_t num_outputs(const Product& product) { return product.weight->rows; }
std::int64_t num_outputs(const GatedProduct& product) { return product.gate_weight->rows; }

std::span<float> part_of(Rows x, std::int64_t row, std::int64_t begin, std::int64_t end) {
  return {x.row(row) + begin, static_cast<std::size_t>(end - begin)};
}

}  // namespace

/// x as the weight sees it: x itself, or in Fp8 mode a quantised copy kept in `slot`.
ConstRows Compute::input_for(const WeightMatrix& w, ConstRows x, std::size_t slot) {
  const bool block_fp8 = w.format == WeightFormat::Fp8 || w.format == WeightFormat::Fp8E8m0;
  if (activations_ != Activations::Fp8 || !block_fp8) return x;
  if (quantised_.size() <= slot) quantised_.resize(slot + 1);
  quantised_[slot].resize(static_cast<std::size_t>(x.rows * x.cols));
  const Rows copy{quantised_[slot].data(), x.rows, x.cols, x.cols};
  for (std::int64_t r = 0; r < x.rows; ++r) {
    std::copy_n(x.row(r), x.cols, copy.row(r));
    quantize_activations_fp8(part_of(copy, r, 0, x.cols), power_of_two_scales_);
  }
  return copy;
}

/// Calls body(item, begin, end) for strips of the outputs of all items.
template <class Item, class Body>
void Compute::for_strips(std::span<const Item> items, Body body) {
  // Strips are numbered through all items; those of item i begin at first_strip_[i].
  first_strip_.clear();
  std::int64_t strips = 0;
  for (const Item& item : items) {
    first_strip_.push_back(strips);
    strips += ceil_div(num_outputs(item), kStripOutputs);
  }
  threads_.for_each(strips, 1, [&](std::int64_t strip, std::int64_t /*end*/) {
    const auto after = std::upper_bound(first_strip_.begin(), first_strip_.end(), strip);
    const auto i = static_cast<std::size_t>(after - first_strip_.begin() - 1);
    const std::int64_t begin = (strip - first_strip_[i]) * kStripOutputs;
    body(i, begin, std::min(num_outputs(items[i]), begin + kStripOutputs));
  });
}

void Compute::linear(const WeightMatrix& w, ConstRows x, Rows y) {
  const Product product{&w, x, y};
  linear(std::span(&product, 1));
}

void Compute::linear(std::span<const Product> products) {
  inputs_.clear();
  for (const Product& product : products) inputs_.push_back(input_for(*product.weight, product.x, inputs_.size()));
  for_strips(products, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    const Product& product = products[i];
    kernels_.matmul(*product.weight, inputs_[i], product.y, begin, end);
    if (product.outputs == Outputs::Exact) return;
    for (std::int64_t r = 0; r < product.y.rows; ++r) round(part_of(product.y, r, begin, end));
  });
}

void Compute::gated(std::span<const GatedProduct> products) {
  inputs_.clear();
  for (const GatedProduct& product : products) {
    inputs_.push_back(input_for(*product.gate_weight, product.x, inputs_.size()));
    inputs_.push_back(input_for(*product.up_weight, product.x, inputs_.size()));
  }
  for_strips(products, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    const GatedProduct& product = products[i];
    kernels_.matmul(*product.gate_weight, inputs_[2 * i], product.y, begin, end);
    kernels_.matmul(*product.up_weight, inputs_[2 * i + 1], product.up, begin, end);
    for (std::int64_t r = 0; r < product.y.rows; ++r) {
      const std::span<float> y = part_of(product.y, r, begin, end);
      kernels_.swiglu(y, part_of(product.up, r, begin, end), product.limit, y);
      round(y);
    }
  });
}

}  // namespace calandra
