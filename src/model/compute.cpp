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

/// x as such a weight sees it: x itself, or in Fp8 mode a quantised copy.
ConstRows Compute::quantised(const WeightMatrix& w, ConstRows x) {
  const bool block_fp8 = w.format == WeightFormat::Fp8 || w.format == WeightFormat::Fp8E8m0;
  if (activations_ != Activations::Fp8 || !block_fp8) return x;
  if (quantised_.size() == num_quantised_) quantised_.emplace_back();
  std::vector<float>& copies = quantised_[num_quantised_++];
  copies.resize(static_cast<std::size_t>(x.rows * x.cols));
  const Rows copy{copies.data(), x.rows, x.cols, x.cols};
  for (std::int64_t r = 0; r < x.rows; ++r) {
    std::copy_n(x.row(r), x.cols, copy.row(r));
    quantize_activations_fp8(part_of(copy, r, 0, x.cols), power_of_two_scales_);
  }
  return copy;
}

void Compute::begin_products() {
  inputs_.clear();
  input_of_.clear();
  num_quantised_ = 0;
}

/// Index of the input that a product of the weight with x takes.
std::size_t Compute::add_input(const WeightMatrix& w, ConstRows x) {
  constexpr std::size_t kLookBack = 8;  // products with the same rows follow each other
  for (std::size_t i = inputs_.size(); i-- > 0 && inputs_.size() - i <= kLookBack;) {
    if (inputs_[i].original == x.data && inputs_[i].format == w.format) return i;
  }
  const ConstRows seen = quantised(w, x);
  inputs_.push_back({x.data, w.format, seen, kernels_.packed_row_bytes(w.format, x.cols), 0, 0, seen});
  return inputs_.size() - 1;
}

/// Packs the rows of all inputs that products do not take as they are.
void Compute::pack_inputs() {
  constexpr std::int64_t kRowsAlone = 8;  // up to so many, waking the other threads costs more than it saves
  constexpr std::int64_t kRowsPerPiece = 16;
  std::int64_t rows = 0, bytes = 0;
  for (Input& input : inputs_) {
    input.first_packed_row = rows;
    input.first_byte = bytes;
    if (input.packed_row_bytes == 0) continue;
    rows += input.x.rows;
    bytes += input.packed_row_bytes * input.x.rows;
  }
  if (rows == 0) return;
  if (packed_.size() < static_cast<std::size_t>(bytes)) packed_ = AlignedArray<std::byte>(static_cast<std::size_t>(bytes));
  for (Input& input : inputs_) {
    if (input.packed_row_bytes == 0) continue;
    input.rows = Inputs(packed_.data() + input.first_byte, input.x.rows, input.x.cols, input.packed_row_bytes);
  }
  const auto pack = [&](std::int64_t begin, std::int64_t end) {
    const auto after = std::ranges::upper_bound(inputs_, begin, {}, &Input::first_packed_row);
    for (auto input = after - 1; begin < end; ++input) {
      if (input->packed_row_bytes == 0) continue;
      const std::int64_t row = begin - input->first_packed_row, count = std::min(end - begin, input->x.rows - row);
      kernels_.pack(input->format, input->x.slice(row, count),
                    packed_.data() + input->first_byte + row * input->packed_row_bytes);
      begin += count;
    }
  };
  rows <= kRowsAlone ? pack(0, rows) : threads_.for_each(rows, kRowsPerPiece, pack);
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
  begin_products();
  for (const Product& product : products) input_of_.push_back(add_input(*product.weight, product.x));
  pack_inputs();
  for_strips(products, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    const Product& product = products[i];
    kernels_.matmul(*product.weight, inputs_[input_of_[i]].rows, product.y, begin, end);
    if (product.outputs == Outputs::Exact) return;
    for (std::int64_t r = 0; r < product.y.rows; ++r) round(part_of(product.y, r, begin, end));
  });
}

void Compute::gated(std::span<const GatedProduct> products) {
  begin_products();
  for (const GatedProduct& product : products) {
    input_of_.push_back(add_input(*product.gate_weight, product.x));
    input_of_.push_back(add_input(*product.up_weight, product.x));
  }
  pack_inputs();
  for_strips(products, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    const GatedProduct& product = products[i];
    kernels_.matmul(*product.gate_weight, inputs_[input_of_[2 * i]].rows, product.y, begin, end);
    kernels_.matmul(*product.up_weight, inputs_[input_of_[2 * i + 1]].rows, product.up, begin, end);
    for (std::int64_t r = 0; r < product.y.rows; ++r) {
      const std::span<float> y = part_of(product.y, r, begin, end);
      kernels_.swiglu(y, part_of(product.up, r, begin, end), product.limit, y);
      round(y);
    }
  });
}

}  // namespace calandra
