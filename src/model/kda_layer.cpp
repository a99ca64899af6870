// Kimi Delta Attention: projections, short convolutions, decay gate, recurrence, gated norm (docs/model.md, KDA).

#include "kernels/scratch.h"
#include "model/forward.h"
#include "model/profile.h"
#include "model/workspace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace calandra {
namespace {

constexpr std::int64_t kStreams = 3;  // q, k, v
constexpr std::int64_t kHistory = 3;  // inputs that a convolution of 4 taps looks back

/// Channels [begin, begin + dim) of a KDA layer's tails, those of one head. Rows hold these channels alone.
struct HeadTails {
  const Kernels& kernels;
  CacheType type;
  std::int64_t width, begin, dim;

  std::byte* at(std::byte* tails, std::int64_t stream, std::int64_t i) const {
    return tails + cache_row_bytes(type, (stream * kHistory + i) * width + begin);
  }
  /// The inputs before a slice, oldest first.
  void load(std::byte* tails, std::int64_t stream, Rows before) const {
    for (std::int64_t i = 0; i < kHistory; ++i)
      kernels.load_cache(at(tails, stream, i), type, {before.row(i), static_cast<std::size_t>(dim)});
  }
  /// The inputs that the token after the first `count` of x looks back on.
  void keep(ConstRows before, ConstRows x, std::int64_t count, std::byte* tails, std::int64_t stream) const {
    for (std::int64_t i = 0; i < kHistory; ++i) {
      const std::int64_t t = count - kHistory + i;  // negative: still an input from before
      const float* input = t >= 0 ? x.row(t) : before.row(t + kHistory);
      kernels.store_cache({input, static_cast<std::size_t>(dim)}, type, at(tails, stream, i));
    }
  }
};

/// What the recurrence of one head takes of rows [begin, end). Its outputs go to `o`, row `begin` first.
KdaSteps steps_of(ConstRows q, ConstRows k, ConstRows v, ConstRows decay, ConstRows beta, std::int64_t head, std::int64_t dim,
                  std::int64_t begin, std::int64_t end, Rows o) {
  KdaSteps steps;
  steps.tokens = end - begin;
  steps.key_dim = steps.value_dim = dim;
  steps.q = q.row(begin) + head * dim;
  steps.k = k.row(begin) + head * dim;
  steps.decay = decay.row(begin) + head * dim;
  steps.v = v.row(begin) + head * dim;
  steps.stride = k.stride;
  steps.beta = beta.row(begin) + head;
  steps.beta_stride = beta.stride;
  steps.o = o.data;
  steps.o_stride = o.stride;
  return steps;
}

}  // namespace

void ForwardPass::kda(const KdaWeights& w, std::int64_t kda_index, Rows normed, Rows out, std::span<const Segment> segments) {
  const Timed timed(Family::KdaProducts);
  const Kernels& kernels = compute_.kernels();
  const std::int64_t rows = normed.rows, heads = config_.heads, dim = config_.head_dim, width = config_.kda_width();
  const Rows q = work_->q.take(rows, width), k = work_->k.take(rows, width), v = work_->v.take(rows, width);
  const Rows decay = work_->decay.take(rows, width), gate = work_->gate.take(rows, width);
  const Rows beta = work_->beta.take(rows, heads);
  // The convolution sees its inputs as the tails will keep them: rounded.
  const std::array products{Product{&w.q, normed, q, Outputs::Rounded}, Product{&w.k, normed, k, Outputs::Rounded},
                            Product{&w.v, normed, v, Outputs::Rounded}, Product{&w.beta, normed, beta},
                            Product{&w.decay, normed, decay},           Product{&w.gate, normed, gate}};
  if (w.decay_in) {
    compute_.linear(std::span(products).first(4));
    low_rank(w.decay_in, w.decay, normed, decay);
    low_rank(w.gate_in, w.gate, normed, gate);
  } else {
    compute_.linear(products);
  }

  const Rows conv_q = work_->conv_q.take(rows, width), conv_k = work_->conv_k.take(rows, width),
             conv_v = work_->conv_v.take(rows, width);
  const Rows kda_out = work_->kda_out.take(rows, width);
  const auto num_segments = static_cast<std::int64_t>(segments.size());
  const Rows history = work_->history.take(num_segments * kStreams * kHistory, width);
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const std::array inputs{q, k, v};
  const std::array outputs{conv_q, conv_k, conv_v};
  const std::array taps{&w.conv_q, &w.conv_k, &w.conv_v};

  std::optional<Timed> recurrence(Family::KdaRecurrence);
  // Channels of a head touch nothing of another head: one task a head and sequence.
  compute_.threads().for_each(num_segments * heads, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t task = first; task < last; ++task) {
      const Segment& segment = segments[static_cast<std::size_t>(task / heads)];
      const std::int64_t head = task % heads, begin = head * dim, end = begin + dim;
      const auto channels = static_cast<std::size_t>(dim);
      const HeadTails head_tails{kernels, segment.memory->layout().types.tails, width, begin, dim};
      std::byte* const tails = segment.memory->tails(kda_index);
      for (std::int64_t stream = 0; stream < kStreams; ++stream) {
        const auto s = static_cast<std::size_t>(stream);
        const Rows before = history.slice((task / heads * kStreams + stream) * kHistory, kHistory);
        const ConstRows x = inputs[s].slice(segment.first_row, segment.rows);
        const Rows head_before = before.columns(begin, dim);
        head_tails.load(tails, stream, head_before);
        kernels.short_conv(x, {taps[s]->data(), config_.conv_taps, width, width}, before,
                           outputs[s].slice(segment.first_row, segment.rows), begin, end);
        if (segment.tentative()) continue;
        const ConstRows head_x = x.columns(begin, dim);
        for (Boundary* boundary : segment.boundaries)
          head_tails.keep(head_before, head_x, boundary->position() - segment.first_position, boundary->tails(kda_index), stream);
        head_tails.keep(head_before, head_x, segment.rows, tails, stream);
      }
      for (std::int64_t r = segment.first_row; r < segment.end_row(); ++r) {
        const std::span q_head{conv_q.row(r) + begin, channels}, k_head{conv_k.row(r) + begin, channels};
        const std::span decay_head{decay.row(r) + begin, channels};
        kernels.l2_normalise(q_head, query_scale, q_head);
        kernels.l2_normalise(k_head, 1.0f, k_head);
        const std::span beta_head{beta.row(r) + head, 1};
        kernels.sigmoid(beta_head, beta_head);
        kernels.kda_decay(decay_head, std::span(w.dt_bias).subspan(static_cast<std::size_t>(begin), channels),
                          w.decay_rate[static_cast<std::size_t>(head)], config_.bounded_gate, config_.gate_lower_bound,
                          decay_head);
      }
      std::span<float> state = segment.memory->state(kda_index, head);
      if (segment.tentative()) {
        const KdaReplay replay = replay_rows(kda_index, segment);
        for (std::int64_t t = 0; t < segment.rows; ++t) {
          const std::int64_t r = segment.first_row + t;
          const auto copy = [&](ConstRows from, Rows to) { std::copy_n(from.row(r) + begin, dim, to.row(t) + begin); };
          for (std::size_t stream = 0; stream < inputs.size(); ++stream) copy(inputs[stream], replay.inputs[stream]);
          copy(conv_k, replay.k);
          copy(conv_v, replay.v);
          copy(decay, replay.decay);
          replay.beta.row(t)[head] = beta.row(r)[head];
        }
        const std::span trial{scratch(ScratchUse::Trial, std::ssize(state)), state.size()};
        std::ranges::copy(state, trial.begin());
        state = trial;
      }
      std::int64_t row = segment.first_row;
      const auto recur_to = [&](std::int64_t end_row) {
        const Rows o = kda_out.slice(row, end_row - row).columns(begin, dim);
        kernels.kda_recurrence(steps_of(conv_q, conv_k, conv_v, decay, beta, head, dim, row, end_row, o), state.data(), 0, dim);
        row = end_row;
      };
      for (Boundary* boundary : segment.boundaries) {
        recur_to(segment.row_of(boundary->position()));
        std::ranges::copy(state, boundary->state(kda_index, head).begin());
      }
      if (row < segment.end_row()) recur_to(segment.end_row());
      for (std::int64_t r = segment.first_row; r < segment.end_row(); ++r) {
        const std::span o{kda_out.row(r) + begin, channels};
        kernels.gated_rms_norm(o, w.out_norm, {gate.row(r) + begin, channels}, config_.norm_eps, o);
        compute_.round(o);
      }
    }
  });
  recurrence.reset();
  compute_.linear(w.out, kda_out, out);
}

void ForwardPass::low_rank(const WeightMatrix& in, const WeightMatrix& w, ConstRows x, Rows y) {
  const Rows between = work_->low_rank.take(x.rows, in.rows);
  compute_.linear(std::array{Product{&in, x, between, Outputs::Rounded}});
  compute_.linear(w, between, y);
}

/// Of the tokens of a tentative segment.
ForwardPass::KdaReplay ForwardPass::replay_rows(std::int64_t kda_index, const Segment& segment) const {
  const std::int64_t width = config_.kda_width();
  const Rows all = work_->replay[static_cast<std::size_t>(kda_index)]
                       .take(std::ssize(work_->replay_tokens), segment.memory->layout().replay_values)
                       .slice(segment.first_replay_row, segment.rows);
  const auto part = [&](std::int64_t i) { return all.columns(i * width, width); };
  return {{part(0), part(1), part(2)}, part(3), part(4), part(5), all.columns(6 * width, config_.heads)};
}

/// States and tails take the tokens that were right: one task a head, sequence and layer.
void ForwardPass::replay_kda(std::span<const Commit> commits) {
  const Timed timed(Family::KdaRecurrence);
  const Kernels& kernels = compute_.kernels();
  const std::int64_t heads = config_.heads, dim = config_.head_dim, width = config_.kda_width();
  const std::int64_t tasks_of_layer = std::ssize(commits) * heads;
  compute_.threads().for_each(config_.num_kda_layers() * tasks_of_layer, 1, [&](std::int64_t task, std::int64_t /*end*/) {
    const std::int64_t kda_index = task / tasks_of_layer, head = task % heads;
    const Commit& commit = commits[static_cast<std::size_t>(task % tasks_of_layer / heads)];
    if (commit.count == 0) return;
    const KdaReplay replay = replay_rows(kda_index, *tentative_segment(commit));
    // What the recurrence gives out was needed before: any query will do.
    float* const space = scratch(ScratchUse::Trial, (kHistory + commit.count) * dim);
    const Rows before{space, kHistory, dim, dim}, unused{space + kHistory * dim, commit.count, dim, dim};
    const HeadTails head_tails{kernels, commit.memory->layout().types.tails, width, head * dim, dim};
    std::byte* const tails = commit.memory->tails(kda_index);
    for (std::int64_t stream = 0; stream < kStreams; ++stream) {
      const ConstRows inputs = replay.inputs[static_cast<std::size_t>(stream)];
      head_tails.load(tails, stream, before);
      head_tails.keep(before, inputs.columns(head * dim, dim), commit.count, tails, stream);
    }
    kernels.kda_recurrence(steps_of(replay.k, replay.k, replay.v, replay.decay, replay.beta, head, dim, 0, commit.count, unused),
                           commit.memory->state(kda_index, head).data(), 0, dim);
  });
}

}  // namespace calandra
