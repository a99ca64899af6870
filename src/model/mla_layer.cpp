// Gated multi-head latent attention in the absorbed form: one latent row a token serves all heads (docs/model.md, MLA).

#include "base/integer.h"
#include "model/forward.h"
#include "model/profile.h"
#include "model/workspace.h"

#include <algorithm>
#include <array>

namespace calandra {
namespace {

// Heads whose queries share one walk over the latents, with those of up to kAttentionRows tokens (workspace.h).
constexpr std::int64_t kHeadsPerTask = 8;

}  // namespace

void ForwardPass::mla(const MlaWeights& w, std::int64_t layer, Rows normed, Rows out) {
  const Timed timed(Family::MlaProducts);
  const std::int64_t rows = normed.rows;
  const Rows query = work_->query.take(rows, config_.heads * (config_.nope_dim + config_.rope_dim));
  const Rows latent = work_->latent.take(rows, config_.latent_row());
  if (w.q_in) {
    const Rows query_in = work_->query_in.take(rows, w.q_in.rows);
    compute_.linear(std::array{Product{&w.q_in, normed, query_in}, Product{&w.kv_in, normed, latent}});
    norm_rows(query_in, w.q_norm, query_in, Outputs::Rounded);
    compute_.linear(w.q, query_in, query);
  } else {
    compute_.linear(std::array{Product{&w.q, normed, query}, Product{&w.kv_in, normed, latent}});
  }
  cache_latents(w, layer, latent);
  rotate_queries(query);
  const Rows absorbed = absorb(w, query);
  const Rows context = attend(absorbed, layer);
  const Rows attention = project_values(w, context);
  apply_gate(w, normed, attention);
  compute_.linear(w.out, attention, out);
}

LatentCache ForwardPass::cache_of(const Segment& segment, std::int64_t layer) const {
  return layer < config_.layers ? segment.memory->latents(kind_index_[static_cast<std::size_t>(layer)])
                                : segment.memory->mtp_latents();
}

void ForwardPass::cache_latents(const MlaWeights& w, std::int64_t layer, Rows latent) const {
  const Kernels& kernels = compute_.kernels();
  const auto rank = static_cast<std::size_t>(config_.kv_rank);
  compute_.for_rows(latent.rows, [&](std::int64_t r) {
    const std::span<float> row = span_of(latent, r);
    kernels.rms_norm(row.first(rank), w.kv_norm, config_.norm_eps, row.first(rank));
    kernels.rope(row.subspan(rank), span_of(ConstRows(cos_), r), span_of(ConstRows(sin_), r));
    const Segment& segment = *work_->segment_of_row[static_cast<std::size_t>(r)];
    const LatentCache cache = cache_of(segment, layer);
    kernels.store_cache(row, cache.rows.type, cache.row(segment.position_of(r)));
  });
}

void ForwardPass::rotate_queries(Rows query) const {
  const std::int64_t nope = config_.nope_dim, width = nope + config_.rope_dim;
  const auto rotated = static_cast<std::size_t>(config_.rope_dim);
  compute_.for_rows(query.rows, [&](std::int64_t r) {
    for (std::int64_t head = 0; head < config_.heads; ++head) {
      compute_.kernels().rope({query.row(r) + head * width + nope, rotated}, span_of(ConstRows(cos_), r),
                              span_of(ConstRows(sin_), r));
    }
    compute_.round(span_of(query, r));
  });
}

Rows ForwardPass::absorb(const MlaWeights& w, ConstRows query) {
  const std::int64_t nope = config_.nope_dim, rope = config_.rope_dim, rank = config_.kv_rank;
  const Rows absorbed = work_->absorbed.take(query.rows, config_.heads * (rank + rope));
  compute_.threads().for_each(config_.heads, 1, [&](std::int64_t head, std::int64_t /*end*/) {
    const ConstRows q = query.columns(head * (nope + rope), nope + rope);
    const Rows target = absorbed.columns(head * (rank + rope), rank + rope);
    compute_.kernels().matmul_transposed(w.kv.slice(head * (nope + config_.value_dim), nope), q.columns(0, nope),
                                         target.columns(0, rank), 0, rank);
    for (std::int64_t r = 0; r < query.rows; ++r) {
      compute_.round(span_of(target.columns(0, rank), r));
      std::copy_n(q.row(r) + nope, rope, target.row(r) + rank);  // has been rounded
    }
  });
  return absorbed;
}

Rows ForwardPass::attend(ConstRows absorbed, std::int64_t layer) {
  const Timed timed(Family::MlaAttention);
  const std::int64_t width = config_.latent_row(), rank = config_.kv_rank;
  const Rows context = work_->context.take(absorbed.rows, config_.heads * rank);
  const std::int64_t groups = ceil_div(config_.heads, kHeadsPerTask);
  const std::vector<RowRun>& runs = work_->attention_runs;
  compute_.threads().for_each(std::ssize(runs) * groups, 1, [&](std::int64_t task, std::int64_t /*end*/) {
    const RowRun& run = runs[static_cast<std::size_t>(task / groups)];
    const std::int64_t head = task % groups * kHeadsPerTask, heads = std::min(kHeadsPerTask, config_.heads - head);
    const Rows out = context.slice(run.first_row, run.rows).columns(head * rank, heads * rank);
    const MlaQueries queries{run.rows, heads, absorbed.row(run.first_row) + head * width, absorbed.stride, out.data, out.stride};
    compute_.kernels().mla_attend(queries, cache_of(*run.segment, layer).rows, run.segment->position_of(run.first_row) + 1,
                                  attention_scale_);
    for (std::int64_t r = 0; r < run.rows; ++r) compute_.round(span_of(out, r));
  });
  return context;
}

/// o = W_V context, per head.
Rows ForwardPass::project_values(const MlaWeights& w, ConstRows context) {
  const std::int64_t nope = config_.nope_dim, value = config_.value_dim, rank = config_.kv_rank;
  const Rows attention = work_->attention.take(context.rows, config_.heads * value);
  compute_.threads().for_each(config_.heads, 1, [&](std::int64_t head, std::int64_t /*end*/) {
    compute_.kernels().matmul(w.kv.slice(head * (nope + value) + nope, value), context.columns(head * rank, rank),
                              attention.columns(head * value, value), 0, value);
  });
  return attention;
}

/// Gates the rows, if there is a gate, and rounds them.
void ForwardPass::apply_gate(const MlaWeights& w, ConstRows normed, Rows attention) {
  Rows gate;
  if (w.gate) {
    gate = work_->attention_gate.take(attention.rows, w.gate.rows);
    compute_.linear(w.gate, normed, gate);
  }
  compute_.for_rows(attention.rows, [&](std::int64_t r) {
    if (w.gate) {
      const std::int64_t channels = attention.cols / gate.cols;  // of one gate: value_dim, or 1 if element-wise
      compute_.kernels().sigmoid(span_of(ConstRows(gate), r), span_of(gate, r));
      float* out = attention.row(r);
      for (std::int64_t g = 0; g < gate.cols; ++g) {
        for (std::int64_t c = g * channels; c < (g + 1) * channels; ++c) out[c] *= gate.row(r)[g];
      }
    }
    compute_.round(span_of(attention, r));
  });
}

}  // namespace calandra
