#pragma once
// Encoders of the quantised formats, exact to the bit with the published rules (docs/model.md).

#include "kernels/matrix.h"

#include <cstdint>
#include <span>
#include <vector>

namespace calandra {

/// w [rows, cols] -> e4m3 codes [rows, cols] and one scale per 128 x 128 block. F32 scale: amax / 448, 1 for an all-zero block.
struct Fp8Blocks {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;       // values, also for e8m0
  std::vector<std::uint8_t> e8m0;  // bytes: 2^ceil(log2(amax / 448)); empty for F32 scales
};
Fp8Blocks quantize_fp8(ConstRows w, bool power_of_two_scales);

/// w [rows, cols], cols a multiple of 32 -> packed codes [rows, cols / 2], e8m0 bytes [rows, cols / 32]. Shared exponent
/// floor(log2 amax) - 2 clamped to +-127; an all-zero group has byte 127 and codes 0.
struct MxBlocks {
  std::vector<std::uint8_t> packed;
  std::vector<std::uint8_t> e8m0;
};
MxBlocks quantize_mxfp4(ConstRows w);

/// Dynamic e4m3 activations: replaces x [n] by what its codes mean. Groups of 128: s = max(amax, 1e-10) / 448, or
/// 2^ceil(log2(s)) with `power_of_two_scales`. `codes` [n] and `scales` [ceil(n / 128)] may be empty.
void quantize_activations_fp8(std::span<float> x, bool power_of_two_scales, std::span<std::uint8_t> codes = {},
                              std::span<float> scales = {});

}  // namespace calandra
