#pragma once
// How a forward pass computes: which kernels, which threads, and in what precision activations enter a product.

#include "base/thread_pool.h"
#include "kernels/kernels.h"

#include <cstdint>
#include <span>
#include <vector>

namespace calandra {

enum class Activations : std::uint8_t {
  Fp32,  // nothing is rounded; latents and convolution tails are stored as float32
  Bf16,  // inputs of products, latents and tails are bf16; the default
  Fp8,   // as Bf16, and inputs of block-FP8 weights go through dynamic e4m3; to compare with engines that do so
};

constexpr CacheType cache_type_of(Activations activations) {
  return activations == Activations::Fp32 ? CacheType::F32 : CacheType::BF16;
}

/// One product y = x W^T of a group.
struct Product {
  const WeightMatrix* weight = nullptr;
  ConstRows x;
  Rows y;
};

class Compute {
 public:
  Compute(const Kernels& kernels, ThreadPool& threads, Activations activations, bool power_of_two_scales)
      : kernels_(kernels), threads_(threads), activations_(activations), power_of_two_scales_(power_of_two_scales) {}

  const Kernels& kernels() const { return kernels_; }
  ThreadPool& threads() const { return threads_; }
  Activations activations() const { return activations_; }

  /// Rounds rows that are about to enter a product or a cache.
  void round(Rows x) const;

  /// y [m, w.rows] = x W^T; x [m, w.cols] has been rounded.
  void linear(const WeightMatrix& w, ConstRows x, Rows y) const;

  /// Several independent products at once, so that small ones share the threads.
  void linear(std::span<const Product> products) const;

 private:
  ConstRows input_for(const WeightMatrix& w, ConstRows x, std::vector<float>& scratch) const;

  const Kernels& kernels_;
  ThreadPool& threads_;
  Activations activations_;
  bool power_of_two_scales_;  // of Fp8 activations
};

}  // namespace calandra
