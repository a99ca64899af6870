#pragma once
// Random weights with which activations stay healthy at any depth: the residual stream starts with rms 1 and ends near
// sqrt(1 + 1.5^2), KDA decays cover 0.005 to 0.9998, attention and router scores spread, logits have a spread of 2.5. Rows and
// groups of 32 columns carry random gains, so that no two scales of a quantised weight are alike.
//
// A tensor is a pure function of (seed, name). It is drawn and encoded in pieces of whole scale blocks, so that memory does
// not grow with its size and pieces can be made by any thread.

#include "checkpoint/random.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/storage.h"

#include <vector>

namespace calandra {

class SyntheticTensor : public TensorPieces {
 public:
  /// Draws the gains of rows and columns, or all of a vector. dt_bias follows the A_log of its layer.
  SyntheticTensor(const TensorSpec& spec, StoredAs stored, std::uint64_t seed, const Config& config);

  std::int64_t num_pieces() const override;
  std::int64_t elements_of_piece() const override { return rows_per_piece_ * cols_; }
  EncodedPiece encode(std::int64_t piece) const override;

 private:
  std::vector<float> draw_rows(std::int64_t begin, std::int64_t count) const;

  StoredAs stored_;
  RandomStream noise_;
  std::int64_t rows_ = 1;
  std::int64_t cols_ = 0;
  std::int64_t rows_per_piece_ = 1;
  double gain_ = 1;
  std::vector<float> row_gains_;  // [rows], or empty: all 1
  std::vector<float> col_gains_;  // [cols], or empty: all 1
  std::vector<float> values_;     // of a vector, which is drawn at once
};

}  // namespace calandra
