#pragma once
// Intermediate rows of a forward pass. Buffers grow to the largest batch seen and are reused.

#include "base/aligned.h"
#include "model/forward.h"

#include <array>
#include <cstdint>
#include <vector>

namespace calandra {

/// Reusable rows of float32.
class Buffer {
 public:
  /// [rows, cols], content unspecified. Invalidates earlier views of this buffer.
  Rows take(std::int64_t rows, std::int64_t cols) {
    const auto needed = static_cast<std::size_t>(rows * cols);
    if (data_.size() < needed) data_ = AlignedArray<float>(needed);
    return {data_.data(), rows, cols, cols};
  }

 private:
  AlignedArray<float> data_;
};

/// The rows of one sequence in a pass, and the position of the first of them.
struct ForwardPass::Segment {
  SequenceMemory* memory = nullptr;
  std::int64_t first_position = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::span<Boundary* const> boundaries = {};
  std::int64_t first_replay_row = -1;  // among the tokens of tentative slices; of others -1

  bool tentative() const { return first_replay_row >= 0; }
  std::int64_t end_row() const { return first_row + rows; }
  std::int64_t position_of(std::int64_t row) const { return first_position + row - first_row; }
  std::int64_t row_of(std::int64_t position) const { return first_row + position - first_position; }
};

/// What a KDA layer keeps of tokens that are not certain: the inputs of its convolutions, and k, v, decay [n, P] and beta [n, H] as the recurrence
/// takes them.
struct ForwardPass::KdaReplay {
  std::array<Rows, 3> inputs;  // q, k, v
  Rows k, v, decay, beta;
};

/// Consecutive rows of a segment that one task of the attention takes, at most kAttentionRows.
struct ForwardPass::RowRun {
  const Segment* segment = nullptr;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
};
inline constexpr std::int64_t kAttentionRows = 4;

/// Where each row's experts put their results: assignment a = row top_k + j.
struct ForwardPass::Assignments {
  std::vector<std::int32_t> experts;     // [T top_k] falling selection score within a row
  std::vector<float> weights;            // [T top_k]
  std::vector<std::size_t> by_expert;    // [T top_k] a row's assignments in ascending order of expert
  std::vector<std::int64_t> slots;       // [T top_k] row among the gathered rows, which are in order of expert
  std::vector<std::int64_t> first_slot;  // [E + 1] slots of expert e: first_slot[e] up to first_slot[e + 1]
  std::vector<std::int64_t> next_slot;   // [E] while slots are given out
};

struct ForwardPass::Workspace {
  std::vector<Segment> segments;
  std::vector<const Segment*> segment_of_row;
  std::vector<RowRun> attention_runs;

  // Whole pass. T rows; h, P, H, ... as in checkpoint/config.h.
  Buffer x;              // [T, h] residual stream
  Buffer normed;         // [T, h] input of a mixer or MLP
  Buffer mixed;          // [T, h] its output
  Buffer hidden;         // [T, h] final-norm rows
  ConstRows final_rows;  // those of the last run()
  Buffer head_input;     // [n, h]
  Buffer cos, sin;       // [T, R / 2] rotation of every row's position

  // KDA
  Buffer q, k, v;                 // [T, P] projections
  Buffer decay, gate;             // [T, P]
  Buffer low_rank;                // [T, D] between the two halves of a low-rank gate
  Buffer beta;                    // [T, H]
  Buffer conv_q, conv_k, conv_v;  // [T, P] after convolution
  Buffer history;                 // [sequences * 9, P] inputs before the slice, by stream
  Buffer kda_out;                 // [T, P]
  std::vector<Buffer> replay;     // by KDA layer: [tokens of tentative slices, MemoryLayout::replay_values]
  std::vector<std::int32_t> replay_tokens;

  // MLA
  Buffer query_in;        // [T, q_rank]
  Buffer query;           // [T, H (N + R)]
  Buffer latent;          // [T, C + R]
  Buffer absorbed;        // [T, H (C + R)]
  Buffer context;         // [T, H C]
  Buffer attention;       // [T, H value_dim]
  Buffer attention_gate;  // [T, H] or [T, H value_dim]

  // MLPs; A = T top_k assignments
  Buffer router_logits;           // [T, E]
  Buffer gathered;                // [A, h]
  Buffer expert_gate, expert_up;  // [A, expert width], or [T, width] of a dense MLP
  Buffer shared_gate, shared_up;  // [T, shared width]
  Buffer expert_out;              // [A, h]
  Buffer shared_out;              // [T, h]
  Assignments assignments;
  std::vector<GatedProduct> expert_inputs;
  std::vector<Product> expert_outputs;

  // MTP
  Buffer mtp_hidden;  // [T, h]
  Buffer mtp_joined;  // [T, 2h]
  Buffer mtp_x;       // [T, h]
  Buffer mtp_out;     // [T, h]
  Rows mtp_inputs;    // of mtp_hidden, as many rows as there may be
  std::vector<std::int32_t> mtp_tokens;
  std::vector<Segment> mtp_segments;
  std::vector<std::int32_t> committed_tokens;
  std::vector<std::int64_t> wanted_mtp_rows;
};

/// A row as a span.
inline std::span<float> span_of(Rows x, std::int64_t row) { return {x.row(row), static_cast<std::size_t>(x.cols)}; }
inline std::span<const float> span_of(ConstRows x, std::int64_t row) { return {x.row(row), static_cast<std::size_t>(x.cols)}; }

}  // namespace calandra
