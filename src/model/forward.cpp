#include "model/forward.h"

#include "base/error.h"
#include "model/profile.h"
#include "model/workspace.h"

#include <algorithm>

namespace calandra {

ForwardPass::ForwardPass(const Config& config, const ModelWeights& weights, Compute& compute, bool with_mtp)
    : config_(config),
      weights_(weights),
      compute_(compute),
      with_mtp_(with_mtp && weights.mtp.has_value()),
      rope_(rope_parameters(config)),
      attention_scale_(config.attention_scale()),
      work_(std::make_unique<Workspace>()) {
  std::int64_t kda = 0, mla = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) kind_index_.push_back(config.is_mla(layer) ? mla++ : kda++);
  work_->replay.resize(static_cast<std::size_t>(kda));
}

ForwardPass::~ForwardPass() = default;

void ForwardPass::check(std::span<const Slice> slices) const {
  for (std::size_t s = 0; s < slices.size(); ++s) {
    if (slices[s].tokens.empty()) fail("batch: slice {} has no tokens", s);
    for (const std::int32_t token : slices[s].tokens) {
      if (token < 0 || token >= config_.vocab) fail("token id {}: expected 0 to {}", token, config_.vocab - 1);
    }
    std::int64_t after = slices[s].memory->position();
    const std::int64_t end = after + std::ssize(slices[s].tokens);
    if (slices[s].tentative && !slices[s].boundaries.empty()) fail("batch: boundaries in slice {}, which is tentative", s);
    for (const Boundary* boundary : slices[s].boundaries) {
      if (boundary->position() <= after || boundary->position() > end)
        fail("batch: a boundary at {} in slice {}, expected {} to {}", boundary->position(), s, after + 1, end);
      after = boundary->position();
    }
    for (std::size_t other = 0; other < s; ++other) {
      if (slices[other].memory == slices[s].memory) fail("batch: one sequence in slices {} and {}", other, s);
    }
  }
}

void ForwardPass::embed(std::span<const std::int32_t> tokens, Rows x) const {
  compute_.for_rows(std::ssize(tokens), [&](std::int64_t row) {
    compute_.kernels().decode_row(weights_.embedding, tokens[static_cast<std::size_t>(row)], span_of(x, row));
  });
}

void ForwardPass::norm_rows(ConstRows x, std::span<const float> weight, Rows y, Outputs outputs) const {
  compute_.for_rows(x.rows, [&](std::int64_t row) {
    compute_.kernels().rms_norm(span_of(x, row), weight, config_.norm_eps, span_of(y, row));
    if (outputs == Outputs::Rounded) compute_.round(span_of(y, row));
  });
}

std::span<const ForwardPass::Segment> ForwardPass::segments_of(std::span<const Slice> slices) {
  std::vector<Segment>& segments = work_->segments;
  segments.clear();
  std::vector<std::int32_t>& replayed = work_->replay_tokens;
  replayed.clear();
  std::int64_t row = 0;
  for (const Slice& slice : slices) {
    segments.push_back({slice.memory, slice.memory->position(), row, std::ssize(slice.tokens), slice.boundaries});
    row = segments.back().end_row();
    if (!slice.tentative) continue;
    segments.back().first_replay_row = std::ssize(replayed);
    replayed.insert(replayed.end(), slice.tokens.begin(), slice.tokens.end());
  }
  if (!replayed.empty()) {
    for (Buffer& buffer : work_->replay) buffer.take(std::ssize(replayed), slices.front().memory->layout().replay_values);
  }
  return segments;
}

void ForwardPass::place(std::span<const Segment> segments) {
  work_->segment_of_row.clear();
  work_->attention_runs.clear();
  for (const Segment& segment : segments) {
    work_->segment_of_row.insert(work_->segment_of_row.end(), static_cast<std::size_t>(segment.rows), &segment);
    for (std::int64_t row = segment.first_row; row < segment.end_row(); row += kAttentionRows)
      work_->attention_runs.push_back({&segment, row, std::min(kAttentionRows, segment.end_row() - row)});
  }
  const std::int64_t rows = segments.back().end_row();
  const auto pairs = static_cast<std::int64_t>(rope_.inverse_frequencies.size());
  cos_ = work_->cos.take(rows, pairs);
  sin_ = work_->sin.take(rows, pairs);
  compute_.for_rows(rows, [&](std::int64_t row) {
    rotation_at(rope_, work_->segment_of_row[static_cast<std::size_t>(row)]->position_of(row), span_of(cos_, row),
                span_of(sin_, row));
  });
}

ConstRows ForwardPass::run(std::span<const Slice> slices, Observer* observer) {
  check(slices);
  if (slices.empty()) fail("batch: no slices");
  const ThreadPool::Step step(compute_.threads());
  const std::span<const Segment> segments = segments_of(slices);
  const std::int64_t rows = segments.back().end_row();
  place(segments);
  const Rows x = work_->x.take(rows, config_.hidden);
  for (std::size_t s = 0; s < slices.size(); ++s) embed(slices[s].tokens, x.slice(segments[s].first_row, segments[s].rows));
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) run_block(layer, x, segments, observer);
  const Rows hidden = work_->hidden.take(rows, config_.hidden);
  norm_rows(x, weights_.final_norm, hidden, Outputs::Exact);
  work_->final_rows = hidden;
  if (with_mtp_) fill_mtp(segments, slices, hidden, observer);
  for (const Segment& segment : segments) {
    if (segment.tentative()) continue;
    for (Boundary* boundary : segment.boundaries)
      boundary->set_hidden(span_of(ConstRows(hidden), segment.row_of(boundary->position() - 1)));
    segment.memory->advance(segment.rows, span_of(ConstRows(hidden), segment.end_row() - 1));
  }
  return hidden;
}

/// Of the last run(); null if that memory had none.
const ForwardPass::Segment* ForwardPass::tentative_segment(const Commit& commit) const {
  for (const Segment& segment : work_->segments) {
    if (segment.memory == commit.memory && segment.tentative()) return &segment;
  }
  return nullptr;
}

ConstRows ForwardPass::commit(std::span<const Commit> commits) {
  bool replays = false;
  for (const Commit& commit : commits) {
    const Segment* const segment = tentative_segment(commit);
    const std::int64_t most = segment == nullptr ? 0 : segment->rows;
    if (commit.count < 0 || commit.count > most) fail("commit: {} tokens, expected 0 to {}", commit.count, most);
    if (commit.next && (!with_mtp_ || commit.memory->position() + commit.count == 0))
      fail("commit: a row of the MTP layer at {}, expected one behind a token, with that layer", commit.memory->position());
    replays = replays || commit.count > 0;
  }
  const ThreadPool::Step step(compute_.threads());
  if (replays) replay_kda(commits);
  const ConstRows u = with_mtp_ ? commit_mtp(commits) : ConstRows();
  for (const Commit& commit : commits) {
    if (const Segment* const segment = tentative_segment(commit); segment != nullptr && commit.count > 0)
      commit.memory->advance(commit.count, span_of(work_->final_rows, segment->first_row + commit.count - 1));
    if (commit.next) commit.memory->note_mtp_row(*commit.next);
  }
  for (Segment& segment : work_->segments) segment.first_replay_row = -1;
  return u;
}

void ForwardPass::block(std::int64_t layer, Rows x, std::span<const Slice> slices, Observer* observer) {
  const std::span<const Segment> segments = segments_of(slices);
  place(segments);
  run_block(layer, x, segments, observer);
}

void ForwardPass::run_block(std::int64_t layer, Rows x, std::span<const Segment> segments, Observer* observer) {
  const bool main = layer < config_.layers;
  const LayerWeights& w = main ? weights_.layers[static_cast<std::size_t>(layer)] : weights_.mtp->layer;
  const Rows normed = work_->normed.take(x.rows, config_.hidden);
  const Rows mixed = work_->mixed.take(x.rows, config_.hidden);

  norm_rows(x, w.input_norm, normed, Outputs::Rounded);
  if (const auto* kda_weights = std::get_if<KdaWeights>(&w.mixer)) {
    kda(*kda_weights, kind_index_[static_cast<std::size_t>(layer)], normed, mixed, segments);
  } else {
    mla(std::get<MlaWeights>(w.mixer), layer, normed, mixed);
  }
  add(mixed, x);

  norm_rows(x, w.post_norm, normed, Outputs::Rounded);
  if (const auto* dense = std::get_if<MlpWeights>(&w.mlp)) {
    mlp(*dense, normed, mixed);
  } else {
    moe(std::get<MoeWeights>(w.mlp), layer, normed, mixed, observer);
  }
  add(mixed, x);
  if (observer != nullptr) observer->block_output(layer, x);
}

void ForwardPass::add(ConstRows update, Rows x) const {
  compute_.for_rows(x.rows,
                    [&](std::int64_t row) { compute_.kernels().add_scaled(span_of(update, row), 1.0f, span_of(x, row)); });
}

void ForwardPass::head(ConstRows hidden, Rows logits) {
  const ThreadPool::Step step(compute_.threads());
  const Timed timed(Family::Head);
  const Rows input = work_->head_input.take(hidden.rows, hidden.cols);
  compute_.for_rows(hidden.rows, [&](std::int64_t row) {
    std::copy_n(hidden.row(row), hidden.cols, input.row(row));
    compute_.round(span_of(input, row));
  });
  compute_.linear(weights_.head, input, logits);
}

}  // namespace calandra
