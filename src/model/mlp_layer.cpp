// Dense and mixture-of-experts MLPs (docs/model.md, MoE).

#include "model/forward.h"
#include "model/profile.h"
#include "model/workspace.h"

#include <algorithm>
#include <numeric>

namespace calandra {

/// What gated() needs for the rows x; results in `gate`.
GatedProduct ForwardPass::gated_input(const MlpWeights& w, ConstRows x, Rows gate, Rows up) {
  return {&w.gate, &w.up, w.limit, x, gate, up};
}

void ForwardPass::mlp(const MlpWeights& w, ConstRows normed, Rows out) {
  const Timed timed(Family::DenseMlp);
  const Rows gate = work_->expert_gate.take(normed.rows, w.gate.rows);
  const Rows up = work_->expert_up.take(normed.rows, w.up.rows);
  compute_.gated(std::array{gated_input(w, normed, gate, up)});
  compute_.linear(w.down, gate, out);
}

void ForwardPass::route(const MoeWeights& w, std::int64_t layer, ConstRows normed, Observer* observer) {
  const Timed timed(Family::Router);
  const auto top_k = static_cast<std::size_t>(config_.top_k);
  const auto rows = static_cast<std::size_t>(normed.rows);
  const Rows logits = work_->router_logits.take(normed.rows, config_.experts);
  compute_.linear(w.router, normed, logits);
  const RouterParameters parameters{config_.num_groups, config_.kept_groups, config_.top_k, config_.routed_scaling};
  Assignments& chosen = work_->assignments;
  chosen.experts.resize(rows * top_k);
  chosen.weights.resize(rows * top_k);
  chosen.by_expert.resize(rows * top_k);
  compute_.for_rows(normed.rows, [&](std::int64_t row) {
    const std::size_t first = static_cast<std::size_t>(row) * top_k;
    const auto ids = std::span(chosen.experts).subspan(first, top_k);
    compute_.kernels().route(span_of(ConstRows(logits), row), w.bias, parameters, ids,
                             std::span(chosen.weights).subspan(first, top_k));
    const auto order = std::span(chosen.by_expert).subspan(first, top_k);
    std::iota(order.begin(), order.end(), first);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return chosen.experts[a] < chosen.experts[b]; });
  });
  for (std::size_t first = 0; observer != nullptr && first < rows * top_k; first += top_k) {
    observer->routed(layer, static_cast<std::int64_t>(first / top_k), std::span(chosen.experts).subspan(first, top_k),
                     std::span(chosen.weights).subspan(first, top_k));
  }
  // Slots in order of expert, then row: a stable counting sort.
  chosen.first_slot.assign(w.experts.size() + 1, 0);
  for (const std::int32_t expert : chosen.experts) ++chosen.first_slot[static_cast<std::size_t>(expert) + 1];
  std::partial_sum(chosen.first_slot.begin(), chosen.first_slot.end(), chosen.first_slot.begin());
  chosen.next_slot.assign(chosen.first_slot.begin(), chosen.first_slot.end() - 1);
  chosen.slots.resize(rows * top_k);
  for (std::size_t a = 0; a < chosen.experts.size(); ++a) {
    chosen.slots[a] = chosen.next_slot[static_cast<std::size_t>(chosen.experts[a])]++;
  }
}

void ForwardPass::moe(const MoeWeights& w, std::int64_t layer, ConstRows normed, Rows out, Observer* observer) {
  const Timed timed(Family::Experts);
  route(w, layer, normed, observer);
  const Assignments& chosen = work_->assignments;
  const auto slots = static_cast<std::int64_t>(chosen.slots.size());
  const std::int64_t width = config_.expert_width, top_k = config_.top_k;
  const Rows gathered = work_->gathered.take(slots, config_.hidden);
  compute_.for_rows(normed.rows, [&](std::int64_t row) {
    for (std::int64_t a = row * top_k; a < (row + 1) * top_k; ++a)
      std::copy_n(normed.row(row), config_.hidden, gathered.row(chosen.slots[static_cast<std::size_t>(a)]));
  });
  const Rows gate = work_->expert_gate.take(slots, width), up = work_->expert_up.take(slots, width);
  const Rows routed_out = work_->expert_out.take(slots, config_.hidden);
  const Rows shared_out = work_->shared_out.take(normed.rows, config_.hidden);

  std::vector<GatedProduct>& in = work_->expert_inputs;
  std::vector<Product>& back = work_->expert_outputs;
  in.clear();
  back.clear();
  const auto add = [&](const MlpWeights& expert, ConstRows x, Rows expert_gate, Rows expert_up, Rows y) {
    in.push_back(gated_input(expert, x, expert_gate, expert_up));
    back.push_back({&expert.down, expert_gate, y});
  };
  for (std::size_t e = 0; e < w.experts.size(); ++e) {
    const std::int64_t first = chosen.first_slot[e], count = chosen.first_slot[e + 1] - first;
    if (count == 0) continue;
    add(w.experts[e], gathered.slice(first, count), gate.slice(first, count), up.slice(first, count),
        routed_out.slice(first, count));
  }
  if (w.shared) {
    const Rows shared_gate = work_->shared_gate.take(normed.rows, config_.shared_width);
    add(*w.shared, normed, shared_gate, work_->shared_up.take(normed.rows, config_.shared_width), shared_out);
  }
  compute_.gated(in);
  compute_.linear(back);
  combine(routed_out, w.shared ? std::optional<ConstRows>(shared_out) : std::nullopt, out);
}

void ForwardPass::combine(ConstRows routed, std::optional<ConstRows> shared, Rows out) {
  const Assignments& chosen = work_->assignments;
  const auto top_k = static_cast<std::size_t>(config_.top_k);
  const Kernels& kernels = compute_.kernels();
  compute_.for_rows(out.rows, [&](std::int64_t row) {
    // Ascending expert id, the shared expert last: a fixed order whatever the batch.
    const std::span<float> sum = span_of(out, row);
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (const std::size_t a : std::span(chosen.by_expert).subspan(static_cast<std::size_t>(row) * top_k, top_k))
      kernels.add_scaled(span_of(routed, chosen.slots[a]), chosen.weights[a], sum);
    if (shared) kernels.add_scaled(span_of(*shared, row), 1.0f, sum);
  });
}

}  // namespace calandra
