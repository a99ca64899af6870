#pragma once
// How a forward pass computes: which kernels, which threads, and in what precision activations enter a product.

#include "base/aligned.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "memory/layout.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace calandra {

enum class Activations : std::uint8_t {
  Fp32,  // nothing is rounded; latents and convolution tails are stored as float32
  Bf16,  // inputs of products, latents and tails are bf16; the default
  Fp8,   // as Bf16, and inputs of block-FP8 weights go through dynamic e4m3; to compare with engines that do so
};

/// Tails, and latents unless `latents` says otherwise, as exact as the activations.
constexpr CacheTypes cache_types(Activations activations, std::optional<CacheType> latents = {}) {
  const CacheType plain = activations == Activations::Fp32 ? CacheType::F32 : CacheType::BF16;
  return {latents.value_or(plain), plain};
}

/// Whether outputs are rounded for the product or cache that they enter next.
enum class Outputs : std::uint8_t { Exact, Rounded };

/// One product y = x W^T of a group. x [m, w.cols] has been rounded.
struct Product {
  const WeightMatrix* weight = nullptr;
  ConstRows x;
  Rows y;
  Outputs outputs = Outputs::Exact;
};

/// The input half of an MLP, y = swiglu(x G^T, x U^T; limit), rounded. `up` [m, width] holds x U^T on the way.
struct GatedProduct {
  const WeightMatrix* gate_weight = nullptr;
  const WeightMatrix* up_weight = nullptr;
  float limit = 0;
  ConstRows x;
  Rows y;
  Rows up;
};

/// Keeps lists from call to call, so that a pass allocates nothing once the largest batch has been seen. One caller at a time.
class Compute {
 public:
  /// Activations that are not rounded to bf16 are multiplied in float32, whatever the kernels would do.
  Compute(const Kernels& kernels, ThreadPool& threads, Activations activations, bool power_of_two_scales)
      : kernels_(activations == Activations::Bf16 ? kernels : kernels_for(in_float32(kernels.isa))),
        threads_(threads),
        activations_(activations),
        power_of_two_scales_(power_of_two_scales) {}

  const Kernels& kernels() const { return kernels_; }
  ThreadPool& threads() const { return threads_; }

  /// Rounds values that are about to enter a product or a cache.
  void round(std::span<float> x) const {
    if (activations_ != Activations::Fp32) kernels_.round_bf16(x);
  }

  /// Calls body(row) for rows [0, count), shared among the threads.
  template <class Body>
  void for_rows(std::int64_t count, Body&& body) const {
    constexpr std::int64_t kRowsPerPiece = 4;
    threads_.for_each(count, kRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) body(row);
    });
  }

  /// y [m, w.rows] = x W^T.
  void linear(const WeightMatrix& w, ConstRows x, Rows y);

  /// Several independent products at once, so that small ones share the threads.
  void linear(std::span<const Product> products);
  void gated(std::span<const GatedProduct> products);

 private:
  std::size_t add_input(const WeightMatrix& w, ConstRows x);
  ConstRows quantised(const WeightMatrix& w, ConstRows x);
  void begin_products();
  void pack_inputs();
  template <class Item, class Body>
  void for_strips(std::span<const Item> items, Body body);

  const Kernels& kernels_;
  ThreadPool& threads_;
  Activations activations_;
  bool power_of_two_scales_;  // of Fp8 activations
  std::vector<std::int64_t> first_strip_;

  /// Rows that products of the present call share.
  struct Input {
    const float* original;  // with the format: whose input it is
    WeightFormat format;
    ConstRows x;
    std::int64_t packed_row_bytes;  // 0: taken as they are
    std::int64_t first_packed_row;  // of the rows of all inputs that are packed
    std::int64_t first_byte;        // in packed_
    Inputs rows;                    // what the kernel is given
  };
  std::vector<Input> inputs_;
  std::vector<std::size_t> input_of_;  // of the products, or of their two weights
  AlignedArray<std::byte> packed_;
  std::vector<std::vector<float>> quantised_;  // copies of rows, in Fp8 mode
  std::size_t num_quantised_ = 0;
};

}  // namespace calandra
