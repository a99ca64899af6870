// Kimi Delta Attention: the decay of a head and its gated delta rule, token after token.
//
// A pass over a block of 32 value channels reads each row of the state once: it applies the update of the token before
// (S += k u^T, u = beta e), decays the row and forms both products of its token with the decayed state, S^T k and S^T q. The
// output needs no second pass: o = S^T q + (q.k) u. The state of a block (16 KiB for K = 128) is held beside the caller's
// while tokens last, because rows of the caller's state lie whole cache sets apart. Per token and block: K rows of 32
// channels read and written, 4 operations an element. The last update is applied when the call ends, with the same
// operation, so where a run of tokens is cut changes nothing.

#include "kernels/kernels.h"
#include "kernels/scratch.h"

#include <cstdint>
#include <span>

namespace calandra {
namespace {

inline void kda_decay(std::span<const float> f, std::span<const float> dt_bias, float a, bool bounded, float lower_bound,
                      std::span<float> decay) {
  for_runs(static_cast<std::int64_t>(f.size()), [&](std::int64_t i, std::int64_t count) {
    const Lanes z = load_some(f.data() + i, count) + load_some(dt_bias.data() + i, count);
    const Lanes g = bounded ? broadcast(lower_bound) * sigmoid(broadcast(a) * z) : broadcast(-a) * softplus(z);
    store_some(decay.data() + i, exp(g), count);
  });
}

constexpr std::int64_t kChannelBlock = 32;

/// 32 value channels of one row.
struct Channels {
  Lanes first, second;
};

/// A block of the state in the caller's memory: `count` channels of every row, 32 if `whole`. And the held copy: always 32.
template <bool whole>
struct StateBlock {
  float* data;
  std::int64_t stride;
  std::int64_t count;
};
using HeldBlock = StateBlock<true>;

/// Channels of a row of a block, zeros beyond its count.
template <bool whole>
inline Channels load_channels(const float* address, std::int64_t count) {
  if constexpr (whole) return {load(address), load(address + 16)};
  if (count <= 16) return {load_some(address, count), zero_lanes()};
  return {load(address), load_some(address + 16, count - 16)};
}
template <bool whole>
inline void store_channels(float* address, const Channels& x, std::int64_t count) {
  if (whole || count > 16) {
    store(address, x.first);
    store_some(address + 16, x.second, whole ? 16 : count - 16);
  } else {
    store_some(address, x.first, count);
  }
}
inline Channels fma(Lanes a, const Channels& b, const Channels& c) {
  return {fma(a, b.first, c.first), fma(a, b.second, c.second)};
}

/// What a pass reads of its token, and of the update before it: k of that token, u = beta e.
struct PassInput {
  std::int64_t rows;
  const float* q;
  const float* k;
  const float* decay;
  const float* updated_k;
  Channels u;
};
/// Products of the decayed state with k and q.
struct PassOutput {
  Channels with_k, with_q;
};

template <bool has_update, bool whole>
inline PassOutput pass(const StateBlock<whole>& from, const HeldBlock& to, const PassInput& in) {
  const Channels zero = {zero_lanes(), zero_lanes()};
  PassOutput out = {zero, zero};
  for (std::int64_t d = 0; d < in.rows; ++d) {
    Channels row = load_channels<whole>(from.data + d * from.stride, from.count);
    if constexpr (has_update) row = fma(broadcast(in.updated_k[d]), in.u, row);
    const Lanes decay = broadcast(in.decay[d]);
    row = {row.first * decay, row.second * decay};
    store_channels<true>(to.data + d * to.stride, row, to.count);
    out.with_k = fma(broadcast(in.k[d]), row, out.with_k);
    out.with_q = fma(broadcast(in.q[d]), row, out.with_q);
  }
  return out;
}

inline float dot(const float* a, const float* b, std::int64_t n) {
  Lanes products = zero_lanes();
  for_runs(
      n, [&](std::int64_t i, std::int64_t count) { products = fma(load_some(a + i, count), load_some(b + i, count), products); });
  return sum(products);
}

/// All tokens of a call for the channels [begin, begin + state.count).
template <bool whole>
void kda_block(const KdaSteps& steps, const StateBlock<whole>& state, const HeldBlock& held, std::int64_t begin) {
  PassInput in = {steps.key_dim, nullptr, nullptr, nullptr, nullptr, {zero_lanes(), zero_lanes()}};
  for (std::int64_t t = 0; t < steps.tokens; ++t) {
    in.q = steps.q + t * steps.stride;
    in.k = steps.k + t * steps.stride;
    in.decay = steps.decay + t * steps.stride;
    const PassOutput out = t == 0 ? pass<false>(state, held, in) : pass<true>(held, held, in);
    const Channels v = load_channels<whole>(steps.v + t * steps.stride + begin, state.count);
    const Lanes beta = broadcast(steps.beta[t * steps.beta_stride]);
    in.u = {beta * (v.first - out.with_k.first), beta * (v.second - out.with_k.second)};
    in.updated_k = in.k;
    const Lanes qk = broadcast(dot(in.q, in.k, in.rows));
    store_channels<whole>(steps.o + t * steps.o_stride + begin, fma(qk, in.u, out.with_q), state.count);
  }
  for (std::int64_t d = 0; d < in.rows; ++d) {
    const Channels row = load_channels<true>(held.data + d * held.stride, held.count);
    store_channels<whole>(state.data + d * state.stride, fma(broadcast(in.k[d]), in.u, row), state.count);
  }
}

inline void kda_recurrence(const KdaSteps& steps, float* state, std::int64_t begin, std::int64_t end) {
  if (steps.tokens <= 0) return;
  const HeldBlock held = {scratch(ScratchUse::State, steps.key_dim * kChannelBlock), kChannelBlock, kChannelBlock};
  std::int64_t first = begin;
  for (; end - first >= kChannelBlock; first += kChannelBlock) {
    kda_block<true>(steps, {state + first, steps.value_dim, kChannelBlock}, held, first);
  }
  if (first < end) kda_block<false>(steps, {state + first, steps.value_dim, end - first}, held, first);
}

}  // namespace
}  // namespace calandra
