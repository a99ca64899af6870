// Gated multi-head latent attention in the absorbed form: one latent row a token serves all heads (docs/model.md, MLA).

#include "base/integer.h"
#include "model/forward.h"
#include "model/workspace.h"

#include <algorithm>

namespace calandra {
namespace {

// Heads whose queries share one walk over the latents.
constexpr std::int64_t kHeadsPerTask = 8;

}  // namespace

void ForwardPass::mla(const MlaWeights& w, std::int64_t layer, Rows normed, Rows out, std::span<const Segment> segments) {
  const std::int64_t rows = normed.rows;
  Rows query = work_->query.take(rows, config_.heads * (config_.nope_dim + config_.rope_dim));
  const Rows latent = work_->latent.take(rows, config_.latent_row());
  if (w.q_in) {
    const Rows query_in = work_->query_in.take(rows, w.q_in.rows);
    compute_.linear(std::array{Product{&w.q_in, normed, query_in}, Product{&w.kv_in, normed, latent}});
    norm_rows(query_in, w.q_norm, query_in);
    compute_.round(query_in);
    compute_.linear(w.q, query_in, query);
  } else {
    compute_.linear(std::array{Product{&w.q, normed, query}, Product{&w.kv_in, normed, latent}});
  }
  std::vector<LatentCache> caches;
  for (const Segment& segment : segments) {
    caches.push_back(layer < config_.layers ? segment.memory->latents(kind_index_[static_cast<std::size_t>(layer)])
                                            : segment.memory->mtp_latents());
  }
  cache_latents(w, latent, segments, caches);
  rotate_queries(query);
  compute_.round(query);
  const Rows absorbed = absorb(w, query);
  const Rows context = attend(absorbed, segments, caches);
  compute_.round(context);

  // o = W_V context, per head.
  const Kernels& kernels = compute_.kernels();
  const std::int64_t nope = config_.nope_dim, value = config_.value_dim;
  const Rows attention = work_->attention.take(rows, config_.heads * value);
  compute_.threads().for_each(config_.heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      kernels.matmul(w.kv.slice(head * (nope + value) + nope, value), context.columns(head * config_.kv_rank, config_.kv_rank),
                     attention.columns(head * value, value), 0, value);
    }
  });
  apply_gate(w, normed, attention);
  compute_.round(attention);
  compute_.linear(w.out, attention, out);
}

void ForwardPass::cache_latents(const MlaWeights& w, Rows latent, std::span<const Segment> segments,
                                std::span<const LatentCache> caches) {
  const Kernels& kernels = compute_.kernels();
  const auto rank = static_cast<std::size_t>(config_.kv_rank);
  for (std::size_t s = 0; s < segments.size(); ++s) {
    for (std::int64_t t = 0; t < segments[s].rows; ++t) {
      const std::int64_t r = segments[s].first_row + t;
      const std::span<float> row = span_of(latent, r);
      kernels.rms_norm(row.first(rank), w.kv_norm, config_.norm_eps, row.first(rank));
      kernels.rope(row.subspan(rank), span_of(ConstRows(cos_), r), span_of(ConstRows(sin_), r));
      kernels.store_cache(row, caches[s].rows.type, caches[s].row(segments[s].first_position + t));
    }
  }
}

void ForwardPass::rotate_queries(Rows query) const {
  const std::int64_t nope = config_.nope_dim, width = nope + config_.rope_dim;
  for (std::int64_t r = 0; r < query.rows; ++r) {
    for (std::int64_t head = 0; head < config_.heads; ++head) {
      compute_.kernels().rope(
          span_of(query, r).subspan(static_cast<std::size_t>(head * width + nope), static_cast<std::size_t>(config_.rope_dim)),
          span_of(ConstRows(cos_), r), span_of(ConstRows(sin_), r));
    }
  }
}

Rows ForwardPass::absorb(const MlaWeights& w, ConstRows query) {
  const std::int64_t nope = config_.nope_dim, rope = config_.rope_dim, rank = config_.kv_rank;
  const Rows absorbed = work_->absorbed.take(query.rows, config_.heads * (rank + rope));
  compute_.threads().for_each(config_.heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      const ConstRows q = query.columns(head * (nope + rope), nope + rope);
      const Rows target = absorbed.columns(head * (rank + rope), rank + rope);
      compute_.kernels().matmul_transposed(w.kv.slice(head * (nope + config_.value_dim), nope), q.columns(0, nope),
                                           target.columns(0, rank), 0, rank);
      for (std::int64_t r = 0; r < query.rows; ++r) std::copy_n(q.row(r) + nope, rope, target.row(r) + rank);
    }
  });
  compute_.round(absorbed);
  return absorbed;
}

Rows ForwardPass::attend(ConstRows absorbed, std::span<const Segment> segments, std::span<const LatentCache> caches) {
  const std::int64_t width = config_.latent_row(), rank = config_.kv_rank;
  const Rows context = work_->context.take(absorbed.rows, config_.heads * rank);
  const std::int64_t groups = ceil_div(config_.heads, kHeadsPerTask);
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    compute_.threads().for_each(segment.rows * groups, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t task = first; task < last; ++task) {
        const std::int64_t t = task / groups, head = task % groups * kHeadsPerTask;
        const std::int64_t heads = std::min(kHeadsPerTask, config_.heads - head);
        const std::int64_t r = segment.first_row + t;
        compute_.kernels().mla_attend({absorbed.row(r) + head * width, heads, width, width}, caches[s].rows,
                                      segment.first_position + t + 1, attention_scale_,
                                      {context.row(r) + head * rank, heads, rank, rank});
      }
    });
  }
  return context;
}

void ForwardPass::apply_gate(const MlaWeights& w, ConstRows normed, Rows attention) {
  if (!w.gate) return;
  const std::int64_t gates = w.gate.rows, channels = attention.cols / gates;  // of one gate: value_dim, or 1 if element-wise
  const Rows gate = work_->attention_gate.take(attention.rows, gates);
  compute_.linear(w.gate, normed, gate);
  for (std::int64_t r = 0; r < attention.rows; ++r) {
    compute_.kernels().sigmoid(span_of(ConstRows(gate), r), span_of(gate, r));
    for (std::int64_t c = 0; c < attention.cols; ++c) attention.row(r)[c] *= gate.row(r)[c / channels];
  }
}

}  // namespace calandra
