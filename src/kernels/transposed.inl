// Single rows of W, and y = x W, the absorbed product: a row of W is one output's input. Rows are added in ascending order, from zero, each by one
// fused multiply-add; columns are independent. W is decoded to float in panels of 32 rows by 128 columns, which stay in L1
// while tiles of 4 rows of x pass over them. Operations: 2 a weight and row of x.

#include "kernels/kernels.h"
#include "kernels/scratch.h"

#include <cstdint>
#include <cstring>

namespace calandra {
namespace {

constexpr std::int64_t kTransposedRows = 32;

/// Weight rows [first_row, first_row + rows), decoded from some column on, in rows of kScaleBlock.
struct TransposedPanel {
  const float* data;
  std::int64_t first_row, rows;
};

/// y[m] += sum over the panel's rows n of x[m][n] * panel[n], for C registers of columns from `column` of the panel on.
template <int M, int C>
inline void add_transposed_tile(const TransposedPanel& panel, std::int64_t column, ConstRows x, float* y, std::int64_t y_stride) {
  Part sums[M][C];
  for (int m = 0; m < M; ++m) {
    for (int c = 0; c < C; ++c) sums[m][c] = load_part(y + m * y_stride + c * kPartLanes);
  }
  for (std::int64_t n = 0; n < panel.rows; ++n) {
    Part weights[C];
    for (int c = 0; c < C; ++c) weights[c] = load_part(panel.data + n * kScaleBlock + column + c * kPartLanes);
    for (int m = 0; m < M; ++m) {
      const Part input = broadcast_part(x.row(m)[panel.first_row + n]);
      for (int c = 0; c < C; ++c) sums[m][c] = fma_part(input, weights[c], sums[m][c]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int c = 0; c < C; ++c) store_part(y + m * y_stride + c * kPartLanes, sums[m][c]);
  }
}

/// The same for M rows of x and y, and `count` columns of y, which are the panel's first.
template <int M>
inline void add_transposed_rows(const TransposedPanel& panel, ConstRows x, Rows y, std::int64_t count) {
  constexpr std::int64_t kTile = std::int64_t{kTileOutputs} * kPartLanes;
  std::int64_t c = 0;
  for (; count - c >= kTile; c += kTile) add_transposed_tile<M, kTileOutputs>(panel, c, x, y.data + c, y.stride);
  for (; count - c >= kPartLanes; c += kPartLanes) add_transposed_tile<M, 1>(panel, c, x, y.data + c, y.stride);
  if (c == count) return;
  float padded[M][kPartLanes] = {};
  const auto bytes = static_cast<std::size_t>(count - c) * sizeof(float);
  for (int m = 0; m < M; ++m) std::memcpy(padded[m], y.row(m) + c, bytes);
  add_transposed_tile<M, 1>(panel, c, x, padded[0], kPartLanes);
  for (int m = 0; m < M; ++m) std::memcpy(y.row(m) + c, padded[m], bytes);
}

/// y[:, begin..end) += x W; `begin` is a multiple of 128.
template <WeightFormat format>
void add_transposed(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t begin, std::int64_t end) {
  float* floats = scratch(ScratchUse::Panel, kTransposedRows * kScaleBlock);
  for (std::int64_t k = begin; k < end; k += kScaleBlock) {
    const std::int64_t count = end - k < kScaleBlock ? end - k : kScaleBlock;
    const Rows out = y.columns(k, count);
    for (std::int64_t first = 0; first < w.rows; first += kTransposedRows) {
      const std::int64_t rows = w.rows - first < kTransposedRows ? w.rows - first : kTransposedRows;
      for (std::int64_t n = 0; n < rows; ++n) {
        float* row = floats + n * kScaleBlock;
        decode_columns<format>(row_of<format>(w, first + n), k, count, row);
        for (std::int64_t c = count; c % kPartLanes != 0; ++c) row[c] = 0.0f;
      }
      const TransposedPanel panel = {floats, first, rows};
      for_row_tiles(x.rows, [&]<int M>(std::int64_t r) { add_transposed_rows<M>(panel, x.slice(r, M), out.slice(r, M), count); });
    }
  }
}

inline void fill_zero(Rows y, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = 0; r < y.rows; ++r) {
    for (std::int64_t c = begin; c < end; ++c) y.row(r)[c] = 0.0f;
  }
}

inline void matmul_transposed(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t begin, std::int64_t end) {
  fill_zero(y, begin, end);
  with_format(w.format, [&]<WeightFormat format>() { add_transposed<format>(w, x, y, begin, end); });
}

inline void decode_row(const WeightMatrix& w, std::int64_t row, std::span<float> out) {
  with_format(w.format, [&]<WeightFormat format>() { decode_columns<format>(row_of<format>(w, row), 0, w.cols, out.data()); });
}

}  // namespace
}  // namespace calandra
