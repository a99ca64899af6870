// Dense and mixture-of-experts MLPs (docs/model.md, MoE).

#include "model/forward.h"
#include "model/workspace.h"

#include <algorithm>
#include <numeric>

namespace calandra {
void ForwardPass::activate(Rows gate, ConstRows up, float limit) const {
  compute_.threads().for_each(gate.rows, kElementwiseRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      compute_.kernels().swiglu(span_of(ConstRows(gate), r), span_of(up, r), limit, span_of(gate, r));
  });
  compute_.round(gate);
}

void ForwardPass::mlp(const MlpWeights& w, ConstRows normed, Rows out) {
  const Rows gate = work_->expert_gate.take(normed.rows, w.gate.rows);
  const Rows up = work_->expert_up.take(normed.rows, w.up.rows);
  compute_.linear(std::array{Product{&w.gate, normed, gate}, Product{&w.up, normed, up}});
  activate(gate, up, w.limit);
  compute_.linear(w.down, gate, out);
}

ForwardPass::Assignments ForwardPass::route(const MoeWeights& w, std::int64_t layer, ConstRows normed, Observer* observer) {
  const auto top_k = static_cast<std::size_t>(config_.top_k);
  const auto rows = static_cast<std::size_t>(normed.rows);
  const Rows logits = work_->router_logits.take(normed.rows, config_.experts);
  compute_.linear(w.router, normed, logits);
  const RouterParameters parameters{config_.num_groups, config_.kept_groups, config_.top_k, config_.routed_scaling};
  Assignments chosen;
  chosen.experts.resize(rows * top_k);
  chosen.weights.resize(rows * top_k);
  for (std::size_t r = 0; r < rows; ++r) {
    const auto ids = std::span(chosen.experts).subspan(r * top_k, top_k);
    const auto weights = std::span(chosen.weights).subspan(r * top_k, top_k);
    compute_.kernels().route(span_of(ConstRows(logits), static_cast<std::int64_t>(r)), w.bias, parameters, ids, weights);
    if (observer != nullptr) observer->routed(layer, static_cast<std::int64_t>(r), ids, weights);
  }
  // Slots in order of expert, then row: a stable counting sort.
  chosen.first_slot.resize(w.experts.size() + 1);
  for (const std::int32_t expert : chosen.experts) ++chosen.first_slot[static_cast<std::size_t>(expert) + 1];
  std::partial_sum(chosen.first_slot.begin(), chosen.first_slot.end(), chosen.first_slot.begin());
  std::vector<std::int64_t> next(chosen.first_slot.begin(), chosen.first_slot.end() - 1);
  chosen.slots.resize(rows * top_k);
  for (std::size_t a = 0; a < chosen.experts.size(); ++a) chosen.slots[a] = next[static_cast<std::size_t>(chosen.experts[a])]++;
  return chosen;
}

void ForwardPass::moe(const MoeWeights& w, std::int64_t layer, ConstRows normed, Rows out, Observer* observer) {
  const Assignments chosen = route(w, layer, normed, observer);
  const auto slots = static_cast<std::int64_t>(chosen.slots.size());
  const std::int64_t width = config_.expert_width, top_k = config_.top_k;
  const Rows gathered = work_->gathered.take(slots, config_.hidden);
  for (std::int64_t a = 0; a < slots; ++a) {
    std::copy_n(normed.row(a / top_k), config_.hidden, gathered.row(chosen.slots[static_cast<std::size_t>(a)]));
  }
  const Rows gate = work_->expert_gate.take(slots, width), up = work_->expert_up.take(slots, width);
  const Rows routed_out = work_->expert_out.take(slots, config_.hidden);
  const Rows shared_gate = work_->shared_gate.take(normed.rows, config_.shared_width);
  const Rows shared_up = work_->shared_up.take(normed.rows, config_.shared_width);
  const Rows shared_out = work_->shared_out.take(normed.rows, config_.hidden);

  std::vector<Product> in, back;
  for (std::size_t e = 0; e < w.experts.size(); ++e) {
    const std::int64_t first = chosen.first_slot[e], count = chosen.first_slot[e + 1] - first;
    if (count == 0) continue;
    in.push_back({&w.experts[e].gate, gathered.slice(first, count), gate.slice(first, count)});
    in.push_back({&w.experts[e].up, gathered.slice(first, count), up.slice(first, count)});
    back.push_back({&w.experts[e].down, gate.slice(first, count), routed_out.slice(first, count)});
  }
  if (w.shared) {
    in.push_back({&w.shared->gate, normed, shared_gate});
    in.push_back({&w.shared->up, normed, shared_up});
    back.push_back({&w.shared->down, shared_gate, shared_out});
  }
  compute_.linear(in);
  activate(gate, up, w.experts.front().limit);
  if (w.shared) activate(shared_gate, shared_up, w.shared->limit);
  compute_.linear(back);
  combine(chosen, routed_out, w.shared ? std::optional<ConstRows>(shared_out) : std::nullopt, out);
}

void ForwardPass::combine(const Assignments& chosen, ConstRows routed, std::optional<ConstRows> shared, Rows out) const {
  const auto top_k = static_cast<std::size_t>(config_.top_k);
  const Kernels& kernels = compute_.kernels();
  compute_.threads().for_each(out.rows, kElementwiseRows, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::size_t> order(top_k);
    for (std::int64_t r = begin; r < end; ++r) {
      // Ascending expert id, the shared expert last: a fixed order whatever the batch.
      const std::size_t first = static_cast<std::size_t>(r) * top_k;
      std::iota(order.begin(), order.end(), first);
      std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return chosen.experts[a] < chosen.experts[b]; });
      const std::span<float> sum = span_of(out, r);
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (const std::size_t a : order) kernels.add_scaled(span_of(routed, chosen.slots[a]), chosen.weights[a], sum);
      if (shared) kernels.add_scaled(span_of(*shared, r), 1.0f, sum);
    }
  });
}

}  // namespace calandra
