#include "plan/cost.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

namespace calandra {
namespace {

// Of one entry of a KDA state and token: decay 1, S^T k 2, the rank-one update 2, S^T q 2.
constexpr std::int64_t kRecurrenceOperations = 7;

std::size_t index_of(Component component) { return static_cast<std::size_t>(component); }

template <std::size_t N>
std::int64_t sum_of(const std::array<std::int64_t, N>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
}

/// Positions that the queries of a slice see, added up: the first sees itself and all before it.
std::int64_t visible_positions(const StepSlice& slice) {
  return slice.tokens * slice.position + slice.tokens * (slice.tokens + 1) / 2;
}

}  // namespace

std::int64_t StepCost::bytes() const { return sum_of(weight_bytes) + state_bytes + latent_bytes; }

std::int64_t StepCost::operations() const { return sum_of(weight_operations) + recurrence_operations + attention_operations; }

StepCost& StepCost::operator+=(const StepCost& other) {
  for (std::size_t i = 0; i < kNumComponents; ++i) {
    weight_bytes[i] += other.weight_bytes[i];
    weight_operations[i] += other.weight_operations[i];
  }
  state_bytes += other.state_bytes;
  latent_bytes += other.latent_bytes;
  recurrence_operations += other.recurrence_operations;
  attention_operations += other.attention_operations;
  return *this;
}

CostModel::CostModel(const Config& config, const ModelSummary& summary, const MemoryLayout& layout)
    : layout_(layout), experts_(config.experts), top_k_(config.top_k) {
  for (std::int64_t layer = 0; layer < config.layers; ++layer) moe_layers_ += config.is_moe(layer) ? 1 : 0;
  for (const ComponentSummary& component : summary.components)
    stored_[index_of(component.component)] = {component.parameters, component.bytes};
  Stored& embedding = stored_[index_of(Component::Embedding)];
  if (config.tied_head) stored_[index_of(Component::Head)] = embedding;
  embedding = {};  // a row a token: less than a ten-thousandth of what the token reads
  const Stored& routed = stored_[index_of(Component::RoutedExpert)];
  const std::int64_t experts = std::max<std::int64_t>(1, num_experts());
  expert_ = {routed.parameters / experts, routed.bytes / experts};
  Stored& mtp = stored_[index_of(Component::Mtp)];
  has_mtp_ = mtp.parameters > 0 && layout.mtp_layers > 0;
  mtp_ = {std::max<std::int64_t>(0, mtp.parameters - experts_ * expert_.parameters),
          std::max<std::int64_t>(0, mtp.bytes - experts_ * expert_.bytes)};
  mtp = {};
}

std::int64_t CostModel::attention_operations(std::int64_t positions, std::int64_t layers) const {
  return positions * 2 * layers * layout_.heads * (layout_.latent_row_values + layout_.latent_dim);
}

double CostModel::expected_share(double rows) const {
  if (experts_ == 0) return 0;
  return 1 - std::pow(1 - static_cast<double>(top_k_) / static_cast<double>(experts_), rows);
}

std::int64_t CostModel::expected_experts(double rows) const {
  return std::llround(static_cast<double>(num_experts()) * expected_share(rows));
}

StepCost CostModel::cost_of(const Step& step) const {
  StepCost cost;
  std::int64_t rows = 0;
  for (const StepSlice& slice : step.slices) {
    rows += slice.tokens;
    cost.state_bytes += 2 * (layout_.state_bytes() + layout_.tails_bytes());
    cost.latent_bytes += (slice.position + slice.tokens) * layout_.cache_bytes_per_token();
    cost.attention_operations += attention_operations(visible_positions(slice), layout_.mla_layers);
  }
  cost.recurrence_operations = rows * kRecurrenceOperations * layout_.kda_layers * layout_.state_floats;

  for (std::size_t i = 0; i < kNumComponents; ++i) {
    cost.weight_bytes[i] = stored_[i].bytes;
    cost.weight_operations[i] = 2 * rows * stored_[i].parameters;
  }
  const std::size_t head = index_of(Component::Head), routed = index_of(Component::RoutedExpert);
  if (step.logit_rows == 0) cost.weight_bytes[head] = 0;
  cost.weight_operations[head] = 2 * step.logit_rows * stored_[head].parameters;
  cost.weight_bytes[routed] = expert_.bytes * step.experts_read;
  cost.weight_operations[routed] = 2 * rows * (expert_.parameters * experts_of_a_row());
  return cost;
}

StepCost CostModel::cost_of_mtp(std::span<const StepSlice> slices) const {
  StepCost cost;
  if (!has_mtp_ || slices.empty()) return cost;
  std::int64_t rows = 0;
  for (const StepSlice& slice : slices) {
    rows += slice.tokens;
    cost.latent_bytes += (slice.position + slice.tokens) * layout_.mtp_cache_bytes_per_token();
    cost.attention_operations += attention_operations(visible_positions(slice), layout_.mtp_layers);
  }
  const std::size_t mtp = index_of(Component::Mtp);
  const double experts_bytes = static_cast<double>(experts_ * expert_.bytes);  // all of the layer's
  cost.weight_bytes[mtp] = mtp_.bytes + std::llround(experts_bytes * expected_share(static_cast<double>(rows)));
  cost.weight_operations[mtp] = 2 * rows * (mtp_.parameters + top_k_ * expert_.parameters);
  return cost;
}

StepCost CostModel::cost_of_draft(std::span<const StepSlice> slices) const {
  StepCost cost = cost_of_mtp(slices);
  if (!has_mtp_ || slices.empty()) return cost;
  std::int64_t rows = 0;
  for (const StepSlice& slice : slices) rows += slice.tokens;
  const std::size_t head = index_of(Component::Head);
  cost.weight_bytes[head] = stored_[head].bytes;
  cost.weight_operations[head] = 2 * rows * stored_[head].parameters;
  return cost;
}

}  // namespace calandra
