// Norms, gates, activations, the short convolution, RoPE and the cache's number formats. Sums of squares run in 16 lanes
// from the start (zeros at a ragged end), then the tree.

#include "kernels/kernels.h"
#include "tensor/element.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace calandra {
namespace {

inline std::int64_t length(std::span<const float> x) { return static_cast<std::int64_t>(x.size()); }

inline float sum_of_squares(std::span<const float> x) {
  Lanes squares = zero_lanes();
  for_runs(length(x), [&](std::int64_t i, std::int64_t count) {
    const Lanes values = load_some(x.data() + i, count);
    squares = fma(values, values, squares);
  });
  return sum(squares);
}

/// 1 / sqrt(mean(x^2) + eps)
inline float rms_scale(std::span<const float> x, float eps) {
  return 1.0f / __builtin_sqrtf(sum_of_squares(x) / static_cast<float>(x.size()) + eps);
}

inline void rms_norm(std::span<const float> x, std::span<const float> w, float eps, std::span<float> y) {
  const Lanes scale = broadcast(rms_scale(x, eps));
  for_runs(length(x), [&](std::int64_t i, std::int64_t count) {
    store_some(y.data() + i, load_some(x.data() + i, count) * scale * load_some(w.data() + i, count), count);
  });
}

inline void gated_rms_norm(std::span<const float> x, std::span<const float> w, std::span<const float> gate, float eps,
                           std::span<float> y) {
  const Lanes scale = broadcast(rms_scale(x, eps));
  for_runs(length(x), [&](std::int64_t i, std::int64_t count) {
    const Lanes normed = load_some(x.data() + i, count) * scale * load_some(w.data() + i, count);
    store_some(y.data() + i, normed * sigmoid(load_some(gate.data() + i, count)), count);
  });
}

inline void l2_normalise(std::span<const float> x, float scale, std::span<float> y) {
  const Lanes factor = broadcast(scale / __builtin_sqrtf(sum_of_squares(x) + 1e-6f));
  for_runs(length(x),
           [&](std::int64_t i, std::int64_t count) { store_some(y.data() + i, load_some(x.data() + i, count) * factor, count); });
}

inline void swiglu(std::span<const float> g, std::span<const float> u, float limit, std::span<float> y) {
  for_runs(length(g), [&](std::int64_t i, std::int64_t count) {
    Lanes gate = silu(load_some(g.data() + i, count));
    Lanes up = load_some(u.data() + i, count);
    if (limit > 0.0f) {
      gate = min(broadcast(limit), gate);
      up = max(broadcast(-limit), min(broadcast(limit), up));
    }
    store_some(y.data() + i, gate * up, count);
  });
}

inline void sigmoid_each(std::span<const float> x, std::span<float> y) {
  for_runs(length(x),
           [&](std::int64_t i, std::int64_t count) { store_some(y.data() + i, sigmoid(load_some(x.data() + i, count)), count); });
}

inline void add_scaled(std::span<const float> x, float scale, std::span<float> y) {
  for_runs(length(x), [&](std::int64_t i, std::int64_t count) {
    float* out = y.data() + i;
    store_some(out, fma(load_some(x.data() + i, count), broadcast(scale), load_some(out, count)), count);
  });
}

inline void round_bf16(std::span<float> x) {
  for_runs(length(x), [&](std::int64_t i, std::int64_t count) {
    float* value = x.data() + i;
    store_some(value, lanes_of(bf16_bits(load_some(value, count))), count);
  });
}

inline void short_conv(ConstRows x, ConstRows w, ConstRows history, Rows y, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kTaps = 4;
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for_runs(end - begin, [&](std::int64_t first, std::int64_t count) {
      const std::int64_t c = begin + first;
      Lanes sum = zero_lanes();
      for (std::int64_t tap = 0; tap < kTaps; ++tap) {  // oldest first
        const std::int64_t source = t + tap - (kTaps - 1);
        const float* input = source < 0 ? history.row(source + kTaps - 1) : x.row(source);
        sum = fma(load_some(w.row(tap) + c, count), load_some(input + c, count), sum);
      }
      store_some(y.row(t) + c, silu(sum), count);
    });
  }
}

/// Pairs are few: plain code, each product and sum rounded as written.
inline void rope(std::span<float> x, std::span<const float> cos, std::span<const float> sin) {
  float* values = x.data();
  for (std::size_t j = 0; j < cos.size(); ++j) {
    const float even = values[2 * j];
    const float odd = values[2 * j + 1];
    values[2 * j] = even * cos.data()[j] - odd * sin.data()[j];
    values[2 * j + 1] = odd * cos.data()[j] + even * sin.data()[j];
  }
}

/// A row is written once and read at every later token: the tensor room's encoder is fast enough.
inline void store_fp8_row(std::span<const float> in, std::byte* out) {
  Lanes magnitudes = zero_lanes();
  for_runs(length(in),
           [&](std::int64_t i, std::int64_t count) { magnitudes = max(magnitudes, absolute(load_some(in.data() + i, count))); });
  const float scale = e4m3_scale(largest(magnitudes));
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = static_cast<std::byte>(e4m3_encode(in.data()[i] / scale));
  std::memcpy(out + in.size(), &scale, sizeof(scale));
}

inline void store_cache(std::span<const float> in, CacheType type, std::byte* out) {
  if (type == CacheType::F32) {
    std::memcpy(out, in.data(), in.size() * sizeof(float));
    return;
  }
  if (type == CacheType::Fp8) return store_fp8_row(in, out);
  for_runs(length(in), [&](std::int64_t i, std::int64_t count) {
    std::byte halves[32];
    store_halves(halves, shift_right<16>(bf16_bits(load_some(in.data() + i, count))));
    std::memcpy(out + 2 * i, halves, static_cast<std::size_t>(2 * count));
  });
}

inline void load_cache(const std::byte* in, CacheType type, std::span<float> out) {
  if (type == CacheType::F32) {
    std::memcpy(out.data(), in, out.size() * sizeof(float));
    return;
  }
  if (type == CacheType::Fp8) {
    float scale;
    std::memcpy(&scale, in + out.size(), sizeof(scale));
    for (std::size_t i = 0; i < out.size(); ++i) out.data()[i] = e4m3_decode(std::to_integer<std::uint8_t>(in[i])) * scale;
    return;
  }
  for_runs(length(out), [&](std::int64_t i, std::int64_t count) {
    std::byte halves[32] = {};
    std::memcpy(halves, in + 2 * i, static_cast<std::size_t>(2 * count));
    store_some(out.data() + i, load_bf16(halves), count);
  });
}

}  // namespace
}  // namespace calandra
