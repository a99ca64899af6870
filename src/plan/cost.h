#pragma once
// What a step of the network costs: bytes to move and operations to do, from stored sizes and shapes alone. A step reads every weight
// once however many rows it has, and of the routed experts those that its rows chose; it reads and writes the state of each of its
// sequences once and reads each one's latents once. So a measured time against these bytes is a share of what memory can do; a
// kernel that reads something twice shows as a lower share. The MTP layer is not part of a step: what a draft of it takes is a cost of its
// own, to be added.

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

/// The formulas for one model, as its tensors are stored. An expert counts as the average of the routed experts of the main layers, also
/// in the MTP layer, whose tensors a summary does not tell apart.
class CostModel {
 public:
  CostModel(const Config& config, const ModelSummary& summary, const MemoryLayout& layout);

  StepCost cost_of(const Step& step) const;

  /// One run of the MTP layer over the rows of these slices: what filling its cache takes. Of its routed experts it reads as many as are
  /// to be expected. Nothing if no such layer runs.
  StepCost cost_of_mtp(std::span<const StepSlice> slices) const;
  /// The same, and the head over those rows: with a row of each of some sequences, what one more draft for each takes.
  StepCost cost_of_draft(std::span<const StepSlice> slices) const;
  /// What a sequence with drafts moves beyond cost_of() of all its rows: the pass over drafts reads its states and tails and leaves them
  /// alone, and committing those that were accepted reads and writes them. So one more read.
  std::int64_t commit_bytes() const { return layout_.state_bytes() + layout_.tails_bytes(); }

  /// Whether there is an MTP layer, and it runs.
  bool has_mtp() const { return has_mtp_; }
  std::int64_t moe_layers() const { return moe_layers_; }
  /// Distinct experts of one row, summed over the layers: what a token decoded alone reads.
  std::int64_t experts_of_a_row() const { return moe_layers_ * top_k_; }
  /// All of them, which no step exceeds.
  std::int64_t num_experts() const { return moe_layers_ * experts_; }
  /// Distinct experts to be expected of so many rows, summed over the layers, if rows choose independently and all experts are alike. What
  /// is known of rows only on average may be no whole number of them.
  std::int64_t expected_experts(double rows) const;

 private:
  struct Stored {
    std::int64_t parameters = 0;
    std::int64_t bytes = 0;
  };
  std::int64_t attention_operations(std::int64_t positions, std::int64_t layers) const;
  double expected_share(double rows) const;  // of a layer's experts

  std::array<Stored, kNumComponents> stored_{};  // the head holds a tied table; the embedding's rows are not counted
  Stored expert_;                                // the average
  Stored mtp_;                                   // without its routed experts
  bool has_mtp_ = false;
  MemoryLayout layout_;
  std::int64_t moe_layers_ = 0;
  std::int64_t experts_ = 0;  // of a layer
  std::int64_t top_k_ = 0;
};

}  // namespace calandra
