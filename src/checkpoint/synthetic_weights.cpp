#include "checkpoint/synthetic_weights.h"

#include "base/error.h"
#include "base/integer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

namespace calandra {
namespace {

// Spread of the logarithms of gains, and how many rows or columns share one.
constexpr double kRowSpread = 0.2;
constexpr double kRowBlockSpread = 0.35;
constexpr double kColumnGroupSpread = 0.45;

// A_log, and the range of the decay gate's argument that dt_bias spreads the channels over.
constexpr double kLowLogRate = -0.4, kHighLogRate = 0.7;
constexpr double kLowBounded = -8.5, kHighBounded = 2.8;
constexpr double kLowUnbounded = -7.0, kHighUnbounded = 3.5;

/// exp(spread * normal), one for `group` consecutive entries.
std::vector<double> log_normal(RandomStream& random, std::int64_t count, std::int64_t group, double spread) {
  std::vector<double> values(static_cast<std::size_t>(count));
  double value = 1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % static_cast<std::size_t>(group) == 0) value = std::exp(spread * random.normal());
    values[i] = value;
  }
  return values;
}

/// Scaled so that the mean square is `rms`^2.
std::vector<float> scaled_to(const std::vector<double>& values, double rms) {
  double squares = 0;
  for (const double v : values) squares += v * v;
  const double scale = rms / std::sqrt(squares / static_cast<double>(values.size()));
  std::vector<float> out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = static_cast<float>(values[i] * scale);
  return out;
}

/// A matrix all rows and columns of which are alike: few outputs whose spread matters one by one, or plain noise.
bool is_even(const TensorSpec& spec, const Config& config) {
  switch (spec.role) {
    case Role::Embedding:
    case Role::Head:
    case Role::Router:
    case Role::Beta: return true;
    case Role::AttentionGate: return config.attention_gate == AttentionGate::HeadWise;
    default: return false;
  }
}

std::vector<double> draw_conv(RandomStream& random, const Shape& shape) {
  std::vector<double> taps(static_cast<std::size_t>(num_elements(shape)));
  const std::size_t num_taps = static_cast<std::size_t>(shape.back());
  for (std::size_t i = 0; i < taps.size(); ++i) {
    const bool current = i % num_taps == num_taps - 1;
    taps[i] = current ? random.uniform(0.5, 1.1) : 0.45 * random.normal();
    if (current && random.uniform(0, 1) < 0.25) taps[i] = -taps[i];
  }
  return taps;
}

/// A_log of a layer: dt_bias needs the same numbers.
std::vector<double> draw_log_rates(std::uint64_t seed, std::int64_t layer, const Config& config) {
  RandomStream random(seed, fmt::format("log rates of layer {}", layer));
  std::vector<double> values(static_cast<std::size_t>(config.heads));
  for (double& v : values) v = random.uniform(kLowLogRate, kHighLogRate);
  return values;
}

/// Per head an even spread of the decay gate's argument, in random order.
std::vector<double> draw_decay_bias(RandomStream& random, const std::vector<double>& log_rates, const Config& config) {
  const double low = config.bounded_gate ? kLowBounded : kLowUnbounded;
  const double high = config.bounded_gate ? kHighBounded : kHighUnbounded;
  std::vector<double> values;
  for (const double log_rate : log_rates) {
    const double rate = config.bounded_gate ? std::exp(log_rate) : 1.0;
    for (const double target : random.shuffled_range(config.head_dim, low, high)) values.push_back(target / rate);
  }
  return values;
}

std::vector<double> draw_vector(RandomStream& random, const TensorSpec& spec, std::uint64_t seed, const Config& config) {
  const std::int64_t count = num_elements(spec.shape);
  switch (spec.role) {
    case Role::Conv: return draw_conv(random, spec.shape);
    case Role::DecayRate: return draw_log_rates(seed, spec.layer, config);
    case Role::DecayBias: return draw_decay_bias(random, draw_log_rates(seed, spec.layer, config), config);
    case Role::RouterBias: return random.shuffled_range(count, -0.3, 0.22);
    case Role::Norm: {
      std::vector<double> values(static_cast<std::size_t>(count));
      for (double& v : values) v = random.uniform(0.6, 1.4);
      return values;
    }
    default: fail("{}: a matrix expected, its shape is {}", spec.name, to_string(spec.shape));
  }
}

}  // namespace

SyntheticTensor::SyntheticTensor(const TensorSpec& spec, StoredAs stored, std::uint64_t seed, const Config& config)
    : stored_(stored), noise_(seed, spec.name) {
  RandomStream random = noise_;
  if (spec.shape.size() != 2) {
    cols_ = num_elements(spec.shape);
    const std::vector<double> values = draw_vector(random, spec, seed, config);
    values_.assign(values.begin(), values.end());
    return;
  }
  rows_ = spec.shape[0];
  cols_ = spec.shape[1];
  rows_per_piece_ = rows_per_piece(rows_, cols_);
  if (spec.role == Role::Embedding) return;
  gain_ = spec.gain / std::sqrt(static_cast<double>(cols_));
  if (is_even(spec, config)) return;
  std::vector<double> rows = log_normal(random, rows_, 1, kRowSpread);
  const std::vector<double> blocks = log_normal(random, rows_, kScaleBlock, kRowBlockSpread);
  std::transform(rows.begin(), rows.end(), blocks.begin(), rows.begin(), std::multiplies<>());
  row_gains_ = scaled_to(rows, gain_);
  col_gains_ = scaled_to(log_normal(random, cols_, kMxGroup, kColumnGroupSpread), 1);
}

std::int64_t SyntheticTensor::num_pieces() const { return ceil_div(rows_, rows_per_piece_); }

std::vector<float> SyntheticTensor::draw_rows(std::int64_t begin, std::int64_t count) const {
  if (!values_.empty()) return values_;
  const std::size_t cols = static_cast<std::size_t>(cols_);
  std::vector<float> values(static_cast<std::size_t>(count) * cols);
  for (std::int64_t r = 0; r < count; ++r) {
    const std::span<float> row = std::span(values).subspan(static_cast<std::size_t>(r) * cols, cols);
    noise_.normal_row(begin + r, row);
    const float gain = row_gains_.empty() ? static_cast<float>(gain_) : row_gains_[static_cast<std::size_t>(begin + r)];
    for (float& v : row) v *= gain;
    for (std::size_t c = 0; c < col_gains_.size(); ++c) row[c] *= col_gains_[c];
  }
  return values;
}

EncodedPiece SyntheticTensor::encode(std::int64_t piece) const {
  const std::int64_t begin = piece * rows_per_piece_;
  const std::int64_t count = std::min(rows_per_piece_, rows_ - begin);
  const std::vector<float> values = draw_rows(begin, count);
  return encode_rows({values.data(), count, cols_, cols_}, stored_);
}

}  // namespace calandra
