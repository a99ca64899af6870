// The multi-token-prediction layer: row i joins the hidden row of token i with the embedding of token i + 1 and predicts
// token i + 2 (docs/model.md, MTP).

#include "model/forward.h"
#include "model/workspace.h"

#include <algorithm>
#include <array>

namespace calandra {

ConstRows ForwardPass::mtp_rows(ConstRows hidden, std::span<const std::int32_t> next_tokens, std::span<const Segment> segments,
                                Observer* observer) {
  const MtpWeights& w = *weights_.mtp;
  const std::int64_t rows = hidden.rows, h = config_.hidden;
  const Rows joined = work_->mtp_joined.take(rows, 2 * h);
  const Rows embedding = joined.columns(0, h);
  embed(next_tokens, embedding);
  norm_rows(embedding, w.embedding_norm, embedding, Outputs::Rounded);
  norm_rows(hidden, w.hidden_norm, joined.columns(h, h), Outputs::Rounded);
  const Rows x = work_->mtp_x.take(rows, h);
  compute_.linear(w.join, joined, x);
  place(segments);
  run_block(config_.layers, x, segments, observer);
  const Rows u = work_->mtp_out.take(rows, h);
  norm_rows(x, w.final_norm, u, Outputs::Exact);
  return u;
}

void ForwardPass::fill_mtp(std::span<const Segment> segments, std::span<const Slice> slices, ConstRows hidden,
                           Observer* observer) {
  // The rows this pass completes: from the last token before the slice up to the last but one of the slice.
  std::vector<Segment>& parts = work_->mtp_segments;
  parts.clear();
  std::int64_t rows = 0;
  const Rows inputs = work_->mtp_hidden.take(hidden.rows, config_.hidden);
  std::vector<std::int32_t>& tokens = work_->mtp_tokens;
  tokens.clear();
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    const bool resumes = segment.first_position > 0;
    const Segment part{segment.memory, std::max<std::int64_t>(0, segment.first_position - 1), rows,
                       segment.rows - (resumes ? 0 : 1)};
    if (part.rows == 0) continue;
    if (resumes) std::ranges::copy(segment.memory->last_hidden(), inputs.row(rows++));
    for (std::int64_t t = 0; t + 1 < segment.rows; ++t)
      std::copy_n(hidden.row(segment.first_row + t), config_.hidden, inputs.row(rows++));
    const auto given = slices[s].tokens.subspan(resumes ? 0 : 1);
    tokens.insert(tokens.end(), given.begin(), given.end());
    parts.push_back(part);
  }
  if (rows == 0) return;
  const ConstRows u = mtp_rows(inputs.slice(0, rows), tokens, parts, observer);
  if (observer != nullptr) observer->mtp_output(u);
}

ConstRows ForwardPass::mtp(SequenceMemory& memory, std::int64_t first, ConstRows hidden,
                           std::span<const std::int32_t> next_tokens, Observer* observer) {
  const ThreadPool::Step step(compute_.threads());
  const std::array part{Segment{&memory, first, 0, hidden.rows}};
  return mtp_rows(hidden, next_tokens, part, observer);
}

}  // namespace calandra
