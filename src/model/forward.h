#pragma once
// The forward pass: a batch of slices in, final-norm hidden rows out. A slice is the next tokens of one sequence; prefill,
// decode, verification and mixed batches are the same call. Every row's bits depend on the tokens before it in its own
// sequence and on nothing else: not on neighbours, cuts or threads (docs/numerics.md).

#include "checkpoint/weights.h"
#include "memory/sequence_memory.h"
#include "model/compute.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace calandra {

/// The next tokens of one sequence. `memory` has room for them (reserve()); a sequence appears once in a batch.
struct Slice {
  SequenceMemory* memory = nullptr;
  std::span<const std::int32_t> tokens;
  /// To be filled as the pass goes by: boundaries ahead of the memory's position, the last one at the end of the tokens at most, in
  /// ascending order.
  std::span<Boundary* const> boundaries = {};
  /// The tokens behind the first may turn out to be others: the memory stays where it is until commit() says how many were right. Without
  /// boundaries.
  bool tentative = false;
  /// The row of the MTP layer that a slice of one token completes may wait for others, some kMostMtpRowsPutOff of them, or for settle().
  bool puts_off_mtp = false;
};

/// What came of a tentative slice.
struct Commit {
  SequenceMemory* memory = nullptr;
  std::int64_t count = 0;  // of its tokens, the first, that were right; 0 where the last run() had no such slice of this memory
  std::optional<std::int32_t> next;  // the token after them, from which the MTP layer predicts another
};

/// Rows of the MTP layer for one sequence: row first + i is made with next_tokens[i].
struct MtpSlice {
  SequenceMemory* memory = nullptr;
  std::int64_t first = 0;
  std::span<const std::int32_t> next_tokens;
};

/// Sees intermediate values as they are made, for `trace` and tests. Rows are in slice order.
class Observer {
 public:
  virtual ~Observer() = default;
  /// Residual stream after block `layer` (config.layers: the MTP block). x [rows, h]
  virtual void block_output(std::int64_t /*layer*/, ConstRows /*x*/) {}
  /// Chosen experts of one row, falling selection score. [top_k]
  virtual void routed(std::int64_t /*layer*/, std::int64_t /*row*/, std::span<const std::int32_t> /*experts*/,
                      std::span<const float> /*weights*/) {}
  /// MTP rows after final_layernorm, those that the pass makes. u [rows, h]
  virtual void mtp_output(ConstRows /*u*/) {}
};

class ForwardPass {
 public:
  /// `weights` and `compute` must outlive the pass. With MTP loaded and `with_mtp` the MTP cache is filled, too.
  ForwardPass(const Config& config, const ModelWeights& weights, Compute& compute, bool with_mtp);
  ~ForwardPass();

  /// Final-norm rows [tokens of all slices, h], valid until the next call. Moves every memory on by its slice, but for tentative ones. Throws
  /// Error for a token id outside the vocabulary, before anything is written.
  ConstRows run(std::span<const Slice> slices, Observer* observer = nullptr);

  /// The memories are where a pass over the right tokens alone would have left them: what the KDA layers have kept of these tokens is
  /// replayed into states and tails, which takes one more read of the states. Each tentative slice of the last run() once. Returns the MTP rows
  /// u [n, h] of those with `next`, in order, valid until the next call.
  ConstRows commit(std::span<const Commit> commits);

  /// Makes the rows of the MTP layer that have been put off.
  void settle(SequenceMemory& memory);

  /// One block on given inputs: x [rows, h] in, residual stream after it out. `layer` may be config.layers for the MTP
  /// block. Writes the layer's memory at its position but does not move it.
  void block(std::int64_t layer, Rows x, std::span<const Slice> slices, Observer* observer = nullptr);

  /// Logits [rows, vocab] of final-norm rows, or of MTP rows.
  void head(ConstRows hidden, Rows logits);

  /// MTP rows u [n, h] (after final_layernorm): row i from hidden row i and the token after it, in the order of the slices. They are written
  /// into the MTP caches, without moving anything: rows at or past position - 1 are drafts that later passes overwrite.
  ConstRows mtp(std::span<const MtpSlice> slices, ConstRows hidden, Observer* observer = nullptr);

  bool with_mtp() const { return with_mtp_; }

 private:
  struct Workspace;
  struct Segment;
  struct RowRun;
  struct Assignments;
  struct KdaReplay;

  void check(std::span<const Slice> slices) const;
  /// The rows of the slices, at the positions of their memories. In the workspace until the next call.
  std::span<const Segment> segments_of(std::span<const Slice> slices);
  /// Says for the layers that follow which segment every row belongs to, and fills cos_ and sin_ for its position.
  void place(std::span<const Segment> segments);
  void embed(std::span<const std::int32_t> tokens, Rows x) const;
  void norm_rows(ConstRows x, std::span<const float> weight, Rows y, Outputs outputs) const;
  void add(ConstRows update, Rows x) const;
  void run_block(std::int64_t layer, Rows x, std::span<const Segment> segments, Observer* observer);

  void kda(const KdaWeights& w, std::int64_t kda_index, Rows normed, Rows out, std::span<const Segment> segments);
  void low_rank(const WeightMatrix& in, const WeightMatrix& w, ConstRows x, Rows y);
  KdaReplay replay_rows(std::int64_t kda_index, const Segment& segment) const;
  void replay_kda(std::span<const Commit> commits);

  void mla(const MlaWeights& w, std::int64_t layer, Rows normed, Rows out);
  /// The cache of a layer in the sequence of a segment.
  LatentCache cache_of(const Segment& segment, std::int64_t layer) const;
  void cache_latents(const MlaWeights& w, std::int64_t layer, Rows latent) const;
  void rotate_queries(Rows query) const;
  Rows absorb(const MlaWeights& w, ConstRows query);
  Rows attend(ConstRows absorbed, std::int64_t layer);
  Rows project_values(const MlaWeights& w, ConstRows context);
  void apply_gate(const MlaWeights& w, ConstRows normed, Rows attention);

  void mlp(const MlpWeights& w, ConstRows normed, Rows out);
  static GatedProduct gated_input(const MlpWeights& w, ConstRows x, Rows gate, Rows up);
  /// Fills the workspace's assignments.
  void route(const MoeWeights& w, std::int64_t layer, ConstRows normed, Observer* observer);
  void moe(const MoeWeights& w, std::int64_t layer, ConstRows normed, Rows out, Observer* observer);
  void combine(ConstRows routed, std::optional<ConstRows> shared, Rows out);

  ConstRows mtp_rows(ConstRows hidden, std::span<const std::int32_t> next_tokens, std::span<const Segment> segments,
                     Observer* observer);
  void begin_mtp(std::int64_t most_rows);
  void put_off_mtp(SequenceMemory& memory, std::span<const std::int32_t> tokens, ConstRows hidden);
  void add_mtp(SequenceMemory& memory, std::span<const std::int32_t> tokens, ConstRows hidden);
  ConstRows finish_mtp(Observer* observer);
  void fill_mtp(std::span<const Segment> segments, std::span<const Slice> slices, ConstRows hidden, Observer* observer);
  ConstRows commit_mtp(std::span<const Commit> commits);
  const Segment* tentative_segment(const Commit& commit) const;

  const Config& config_;
  const ModelWeights& weights_;
  Compute& compute_;
  const bool with_mtp_;
  RopeParameters rope_;
  float attention_scale_;
  std::vector<std::int64_t> kind_index_;  // by main layer: its number among layers of its kind
  std::unique_ptr<Workspace> work_;
  Rows cos_, sin_;  // [T, R / 2] of the rows in work
};

}  // namespace calandra
