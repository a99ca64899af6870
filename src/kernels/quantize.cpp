#include "kernels/quantize.h"

#include "tensor/element.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace calandra {
namespace {

/// ceil(log2(x)) and floor(log2(x)), exact for positive finite x.
int floor_log2(double x) {
  int exponent = 0;
  std::frexp(x, &exponent);  // x = mantissa * 2^exponent, mantissa in [0.5, 1)
  return exponent - 1;
}
int ceil_log2(double x) {
  const int floor = floor_log2(x);
  return std::ldexp(1.0, floor) == x ? floor : floor + 1;
}

/// 2^ceil(log2(amax / 448)) as an exponent. The quotient is formed in double: in float it could round up to a power of two.
int e4m3_exponent(float amax) { return ceil_log2(static_cast<double>(amax) / static_cast<double>(kE4m3Largest)); }

std::uint8_t e8m0_byte(int exponent) { return static_cast<std::uint8_t>(std::clamp(exponent + 127, 0, 254)); }

/// Largest magnitude of rows [row, row + rows) x columns [col, col + cols).
float largest_magnitude(ConstRows w, std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols) {
  float largest = 0.0f;
  for (std::int64_t r = row; r < row + rows; ++r) {
    for (std::int64_t c = col; c < col + cols; ++c) largest = std::max(largest, std::fabs(w.row(r)[c]));
  }
  return largest;
}

}  // namespace

Fp8Blocks quantize_fp8(ConstRows w, bool power_of_two_scales) {
  Fp8Blocks out;
  out.codes.resize(static_cast<std::size_t>(w.rows * w.cols));
  for (std::int64_t row = 0; row < w.rows; row += kScaleBlock) {
    const std::int64_t rows = std::min(kScaleBlock, w.rows - row);
    for (std::int64_t col = 0; col < w.cols; col += kScaleBlock) {
      const std::int64_t cols = std::min(kScaleBlock, w.cols - col);
      const float amax = largest_magnitude(w, row, rows, col, cols);
      float scale = e4m3_scale(amax);
      if (power_of_two_scales) {
        const std::uint8_t byte = e8m0_byte(amax > 0.0f ? e4m3_exponent(amax) : 0);
        out.e8m0.push_back(byte);
        scale = e8m0_decode(byte);
      }
      out.scales.push_back(scale);
      for (std::int64_t r = row; r < row + rows; ++r) {
        for (std::int64_t c = col; c < col + cols; ++c)
          out.codes[static_cast<std::size_t>(r * w.cols + c)] = e4m3_encode(w.row(r)[c] / scale);
      }
    }
  }
  return out;
}

MxBlocks quantize_mxfp4(ConstRows w) {
  MxBlocks out;
  out.packed.resize(static_cast<std::size_t>(w.rows * w.cols / 2));
  for (std::int64_t r = 0; r < w.rows; ++r) {
    for (std::int64_t col = 0; col < w.cols; col += kMxGroup) {
      const float amax = largest_magnitude(w, r, 1, col, kMxGroup);
      const int exponent = amax > 0.0f ? std::clamp(floor_log2(amax) - 2, -127, 127) : 0;
      out.e8m0.push_back(static_cast<std::uint8_t>(exponent + 127));
      const float inverse = std::ldexp(1.0f, -exponent);
      for (std::int64_t c = col; c < col + kMxGroup; ++c) {
        const unsigned code = e2m1_encode(w.row(r)[c] * inverse);
        auto& pair = out.packed[static_cast<std::size_t>((r * w.cols + c) / 2)];
        pair = static_cast<std::uint8_t>(pair | code << (c % 2 * 4));
      }
    }
  }
  return out;
}

void quantize_activations_fp8(std::span<float> x, bool power_of_two_scales, std::span<std::uint8_t> codes,
                              std::span<float> scales) {
  constexpr std::size_t kGroup = kScaleBlock;
  for (std::size_t begin = 0; begin < x.size(); begin += kGroup) {
    const std::span<float> group = x.subspan(begin, std::min(kGroup, x.size() - begin));
    float amax = 1e-10f;
    for (const float value : group) amax = std::max(amax, std::fabs(value));
    const float scale = power_of_two_scales ? std::ldexp(1.0f, e4m3_exponent(amax)) : amax / kE4m3Largest;
    if (!scales.empty()) scales[begin / kGroup] = scale;
    for (std::size_t i = 0; i < group.size(); ++i) {
      const std::uint8_t code = e4m3_encode(group[i] / scale);
      if (!codes.empty()) codes[begin + i] = code;
      group[i] = e4m3_decode(code) * scale;
    }
  }
}

}  // namespace calandra
