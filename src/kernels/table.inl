// The table of functions of one instruction set, and the kernel families it is made of. Included once, after a backend's
// lanes, by each isa_*.cpp.

#include "kernels/lanes.inl"

#include "kernels/weights.inl"

#include "kernels/factors_f32.inl"

#include "kernels/matmul.inl"

#include "kernels/transposed.inl"

#include "kernels/elementwise.inl"

#include "kernels/kda.inl"

#include "kernels/mla.inl"

#include "kernels/router.h"

namespace calandra {
namespace {

inline void route(std::span<const float> logits, std::span<const float> bias, const RouterParameters& parameters,
                  std::span<std::int32_t> ids, std::span<float> weights) {
  route_with(sigmoid_each, logits, bias, parameters, ids, weights);
}

constexpr Kernels make_table(Isa isa) {
  return {
      .isa = isa,
      .packed_row_bytes = packed_row_bytes,
      .pack = pack,
      .matmul = matmul,
      .matmul_transposed = matmul_transposed,
      .decode_row = decode_row,
      .rms_norm = rms_norm,
      .gated_rms_norm = gated_rms_norm,
      .l2_normalise = l2_normalise,
      .swiglu = swiglu,
      .sigmoid = sigmoid_each,
      .add_scaled = add_scaled,
      .round_bf16 = round_bf16,
      .short_conv = short_conv,
      .kda_decay = kda_decay,
      .kda_recurrence = kda_recurrence,
      .rope = rope,
      .mla_attend = mla_attend,
      .store_cache = store_cache,
      .load_cache = load_cache,
      .route = route,
  };
}

}  // namespace
}  // namespace calandra
