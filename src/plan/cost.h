#pragma once
// What a step of the network costs: bytes to move and operations to do, from stored sizes and shapes alone. A step reads every weight
// once however many rows it has, and of the routed experts those that its rows chose; it reads and writes the state of each of its
// sequences once and reads each one's latents once. So a measured time against these bytes is a share of what memory can do; a
// kernel that reads something twice shows as a lower share. The MTP layer is not part of a step.

#include "checkpoint/summary.h"
#include "memory/layout.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace calandra {

inline constexpr std::size_t kNumComponents = static_cast<std::size_t>(Component::Mtp) + 1;

/// The rows of one sequence in a step: tokens [position, position + tokens).
struct StepSlice {
  std::int64_t position = 0;
  std::int64_t tokens = 1;
};

struct Step {
  std::span<const StepSlice> slices;
  std::int64_t logit_rows = 0;
  std::int64_t experts_read = 0;  // distinct routed experts of this step, summed over the layers
};

/// An operation is an addition or a multiplication: a fused multiply-add is two.
struct StepCost {
  std::array<std::int64_t, kNumComponents> weight_bytes{};       // by Component, scales included
  std::array<std::int64_t, kNumComponents> weight_operations{};  // two a parameter and row
  std::int64_t state_bytes = 0;                                  // KDA states and convolution tails, read and written
  std::int64_t latent_bytes = 0;                                 // read
  std::int64_t recurrence_operations = 0;
  std::int64_t attention_operations = 0;  // scores and weighted latents of the absorbed form

  std::int64_t bytes() const;
  std::int64_t operations() const;
  StepCost& operator+=(const StepCost& other);
};

/// The formulas for one model, as its tensors are stored. An expert counts as the average of the routed experts.
class CostModel {
 public:
  CostModel(const Config& config, const ModelSummary& summary, const MemoryLayout& layout);

  StepCost cost_of(const Step& step) const;

  std::int64_t moe_layers() const { return moe_layers_; }
  /// Distinct experts of one row, summed over the layers: what a token decoded alone reads.
  std::int64_t experts_of_a_row() const { return moe_layers_ * top_k_; }
  /// All of them, which no step exceeds.
  std::int64_t num_experts() const { return moe_layers_ * experts_; }

 private:
  struct Stored {
    std::int64_t parameters = 0;
    std::int64_t bytes = 0;
  };
  std::array<Stored, kNumComponents> stored_{};  // the head holds a tied table; the embedding's rows are not counted
  MemoryLayout layout_;
  std::int64_t moe_layers_ = 0;
  std::int64_t experts_ = 0;  // of a layer
  std::int64_t top_k_ = 0;
};

}  // namespace calandra
