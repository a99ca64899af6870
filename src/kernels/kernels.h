#pragma once
// The network's arithmetic as pure functions on spans, one table a instruction set. Every table realises the same
// formulas in the same order of operations (docs/numerics.md), so that scalar, AVX2 and AVX-512 agree bit for bit as long as
// they share the rounding of a fused multiply-add; products of bf16 pairs (Avx512Bf16) have an order of their own. No function looks at more than one sequence, and none depends on how
// many rows it is given. Formulas: docs/model.md.

#include "kernels/matrix.h"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace calandra {

enum class Isa : std::uint8_t {
  Scalar,
  Avx2,
  Avx512,
  Avx512Bf16,  // its products multiply in bf16, with bits of their own: for activations that have been rounded
};

/// The one that computes the same in float32 throughout: for activations that are not rounded.
constexpr Isa in_float32(Isa isa) { return isa == Isa::Avx512Bf16 ? Isa::Avx512 : isa; }

std::string_view name_of(Isa isa);

/// Instruction sets of this build that this processor can run, Scalar first, fastest last.
std::vector<Isa> available_isas();

/// The fastest one, or what the environment variable CALANDRA_ISA (scalar, avx2, avx512, avx512bf16) asks for. Throws Error for an
/// unknown name or one this processor lacks.
Isa choose_isa();

/// What one token of one KDA head needs. Vectors of K key channels: q (normalised and scaled), k (normalised), decay
/// (exp of the log decay); v has V value channels.
struct KdaSteps {
  std::int64_t tokens = 0;
  std::int64_t key_dim = 0;    // K
  std::int64_t value_dim = 0;  // V
  const float* q = nullptr;    // token t at q + t * stride; the same for k, decay (K each) and v (V)
  const float* k = nullptr;
  const float* decay = nullptr;
  const float* v = nullptr;
  std::int64_t stride = 0;
  const float* beta = nullptr;  // token t at beta + t * beta_stride
  std::int64_t beta_stride = 0;
  float* o = nullptr;  // [tokens, V], token t at o + t * o_stride
  std::int64_t o_stride = 0;
};

/// How a row of numbers is cached.
enum class CacheType : std::uint8_t {
  F32,
  BF16,
  Fp8,  // e4m3 codes, behind them the F32 number that they are multiples of: the row's largest magnitude / 448
};

constexpr std::int64_t cache_row_bytes(CacheType type, std::int64_t values) {
  switch (type) {
    case CacheType::F32: return 4 * values;
    case CacheType::BF16: return 2 * values;
    case CacheType::Fp8: return values + 4;
  }
  return 0;
}

/// Cached rows of one MLA layer: [latent C | rotated key R] per position, pages of `page_tokens` rows without gaps.
struct LatentRows {
  CacheType type = CacheType::F32;
  std::int64_t latent_dim = 0;              // C
  std::int64_t rope_dim = 0;                // R
  std::int64_t page_tokens = 0;             // a power of two, at most 512
  std::span<const std::byte* const> pages;  // page p holds positions [p * page_tokens, (p + 1) * page_tokens)
};

/// The absorbed queries of consecutive tokens, H heads each: [C + R] a head (latent part, then rotated part), without gaps
/// between the heads of a token; and their results [C].
struct MlaQueries {
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  const float* q = nullptr;
  std::int64_t q_stride = 0;  // from token to token
  float* out = nullptr;
  std::int64_t out_stride = 0;
};

/// Positions that are attended as one unit: each gives (maximum, sum, weighted latents), merged in order.
inline constexpr std::int64_t kAttentionBlock = 512;

struct RouterParameters {
  int num_groups = 1;
  int kept_groups = 1;
  int top_k = 1;
  float scaling = 1.0f;
};

struct Kernels {
  Isa isa;

  /// Bytes of a row of `cols` activations in the order and precision in which products with such weights take them; 0 if they take
  /// rows as they are.
  std::int64_t (*packed_row_bytes)(WeightFormat format, std::int64_t cols);

  /// The rows of x packed for such weights, without gaps. With Avx512Bf16, x has been rounded to bf16.
  void (*pack)(WeightFormat format, ConstRows x, std::byte* out);

  /// y[:, begin..end) = x W^T for rows [begin, end) of `w`. x [m, w.cols], y [m, w.rows]. Rows that many ranges share are better
  /// packed before: otherwise each call does it.
  void (*matmul)(const WeightMatrix& w, const Inputs& x, Rows y, std::int64_t begin, std::int64_t end);

  /// y[:, begin..end) = x W for columns [begin, end) of `w`: the absorbed product. x [m, w.rows], y [m, w.cols].
  /// `begin` is a multiple of 128. Rows are added in ascending order.
  void (*matmul_transposed)(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t begin, std::int64_t end);

  /// Row `row` of `w` as numbers, out [w.cols].
  void (*decode_row)(const WeightMatrix& w, std::int64_t row, std::span<float> out);

  /// y = x / sqrt(mean(x^2) + eps) * w. All [n]; y may be x.
  void (*rms_norm)(std::span<const float> x, std::span<const float> w, float eps, std::span<float> y);

  /// y = rms_norm(x; w) * sigmoid(gate): norm first, gate after. All [n]; y may be x.
  void (*gated_rms_norm)(std::span<const float> x, std::span<const float> w, std::span<const float> gate, float eps,
                         std::span<float> y);

  /// y = x / sqrt(sum(x^2) + 1e-6) * scale. y may be x.
  void (*l2_normalise)(std::span<const float> x, float scale, std::span<float> y);

  /// y = silu(g) * u, or min(silu(g), limit) * clamp(u, -limit, limit) if limit > 0. y may be g.
  void (*swiglu)(std::span<const float> g, std::span<const float> u, float limit, std::span<float> y);

  /// y = sigmoid(x). y may be x.
  void (*sigmoid)(std::span<const float> x, std::span<float> y);

  /// y += scale * x.
  void (*add_scaled)(std::span<const float> x, float scale, std::span<float> y);

  /// Every value to the nearest bf16, in place.
  void (*round_bf16)(std::span<float> x);

  /// Depthwise causal convolution of 4 taps and SiLU, for channels [begin, end). x [T, P] inputs, w [4, P] taps with the
  /// current token's last, history [3, P] the three inputs before x, oldest first. y [T, P], not x.
  void (*short_conv)(ConstRows x, ConstRows w, ConstRows history, Rows y, std::int64_t begin, std::int64_t end);

  /// Decay of one head, exp(g): g = lower_bound * sigmoid(a * (f + dt_bias)) if `bounded`, else -a * softplus(f + dt_bias).
  /// a = exp(A_log). f, dt_bias, decay [K]; decay may be f.
  void (*kda_decay)(std::span<const float> f, std::span<const float> dt_bias, float a, bool bounded, float lower_bound,
                    std::span<float> decay);

  /// The gated delta rule over value channels [begin, end) of one head, token after token:
  ///   S <- diag(decay) S;  e = v - S^T k;  S <- S + k (beta e)^T;  o = S^T q.
  /// state [K, V] row-major, rows are key channels. `begin` is a multiple of 32.
  void (*kda_recurrence)(const KdaSteps& steps, float* state, std::int64_t begin, std::int64_t end);

  /// Rotates adjacent pairs in place: x [dim], cos / sin [dim / 2].
  void (*rope)(std::span<float> x, std::span<const float> cos, std::span<const float> sin);

  /// Attention over cached rows: out = sum of softmax(scale q.row) * latent. The first token sees the first `count` rows,
  /// every next token one more. A token's result does not depend on those beside it.
  void (*mla_attend)(const MlaQueries& queries, const LatentRows& cache, std::int64_t count, float scale);

  /// One row [n] as the cache's type, cache_row_bytes(type, n) of it, and back.
  void (*store_cache)(std::span<const float> in, CacheType type, std::byte* out);
  void (*load_cache)(const std::byte* in, CacheType type, std::span<float> out);

  /// Grouped sigmoid router for one token. logits, bias [E]; ids, weights [top_k], falling selection score, the lower
  /// index first on ties, weights from the sigmoid alone.
  void (*route)(std::span<const float> logits, std::span<const float> bias, const RouterParameters& parameters,
                std::span<std::int32_t> ids, std::span<float> weights);
};

/// Throws Error if this build or processor lacks it.
const Kernels& kernels_for(Isa isa);

}  // namespace calandra
