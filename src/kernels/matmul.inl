// y = x W^T, y = x W and single rows of W. Order of operations (docs/numerics.md): blocks of 128 columns, in each 8 steps of
// 16; lane i of step j takes column 128 b + 16 j + i of both operands; missing lanes of a ragged end are zeros on both
// sides. Power-of-two scales belong to the decoded weight; with F32 scales a block has lanes of its own, which one fused
// multiply-add with the scale adds to the running lanes. One tree adds the lanes. Virtual shards are added in order.
//
// Bytes and work: each tile of up to 4 rows decodes a weight once; a strip of kStripRows weight rows stays in L2 while all
// rows of x pass. The order for one output is the same in every tile, so neither its neighbours nor the cut matter.

#include "kernels/kernels.h"

#include <cstdint>

namespace calandra {
namespace {

constexpr std::int64_t kStripRows = 32;

/// sums[m][n] += lanes of x[m] * w[n] over columns [begin, end), scales of power of two folded in, F32 scales left out.
template <WeightFormat format, int M, int N>
inline void add_products(const float* x, std::int64_t x_stride, const WeightRow* w, std::int64_t begin, std::int64_t end,
                         Lanes (&sums)[M][N]) {
  for_runs(end - begin, [&](std::int64_t first, std::int64_t count) {
    const std::int64_t k = begin + first;
    Lanes weights[N];
    for (int n = 0; n < N; ++n) {
      weights[n] = format == WeightFormat::Fp8 ? load_codes<format>(w[n], k, count) : load_weights<format>(w[n], k, count);
    }
    for (int m = 0; m < M; ++m) {
      const Lanes inputs = load_some(x + m * x_stride + k, count);
      for (int n = 0; n < N; ++n) sums[m][n] = fma(inputs, weights[n], sums[m][n]);
    }
  });
}

/// Dot products of M rows of x and N weight rows over the columns [begin, end) of one shard.
template <WeightFormat format, int M, int N>
inline void dot_tile(const float* x, std::int64_t x_stride, const WeightRow* w, std::int64_t begin, std::int64_t end,
                     float (&dots)[M][N]) {
  Lanes sums[M][N];
  for (auto& row : sums) {
    for (Lanes& lanes : row) lanes = zero_lanes();
  }
  if constexpr (format == WeightFormat::Fp8) {
    for (std::int64_t k = begin; k < end; k += kScaleBlock) {
      Lanes block[M][N];
      for (auto& row : block) {
        for (Lanes& lanes : row) lanes = zero_lanes();
      }
      add_products<format, M, N>(x, x_stride, w, k, end - k < kScaleBlock ? end : k + kScaleBlock, block);
      for (int n = 0; n < N; ++n) {
        const Lanes scale = broadcast(scale_at<format>(w[n], k));
        for (int m = 0; m < M; ++m) sums[m][n] = fma(block[m][n], scale, sums[m][n]);
      }
    }
  } else {
    add_products<format, M, N>(x, x_stride, w, begin, end, sums);
  }
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) dots[m][n] = sum(sums[m][n]);
  }
}

/// M x N outputs from row `r` of x and weight row `n`.
template <WeightFormat format, int M, int N>
void output_tile(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t r, std::int64_t n) {
  WeightRow rows[N];
  for (int i = 0; i < N; ++i) rows[i] = row_of<format>(w, n + i);
  float dots[M][N];
  for (int shard = 0; shard < w.shards; ++shard) {
    dot_tile<format, M, N>(x.row(r), x.stride, rows, w.cols * shard / w.shards, w.cols * (shard + 1) / w.shards, dots);
    for (int m = 0; m < M; ++m) {
      float* out = y.row(r + m) + n;
      for (int i = 0; i < N; ++i) out[i] = shard == 0 ? dots[m][i] : out[i] + dots[m][i];
    }
  }
}

/// Outputs of M rows of x for weight rows [begin, end).
template <WeightFormat format, int M>
void output_rows(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t r, std::int64_t begin, std::int64_t end) {
  constexpr int kColumns = kColumnsOf[M];
  std::int64_t n = begin;
  for (; end - n >= kColumns; n += kColumns) output_tile<format, M, kColumns>(w, x, y, r, n);
  for (; n < end; ++n) output_tile<format, M, 1>(w, x, y, r, n);
}

template <WeightFormat format>
void matmul_as(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t begin, std::int64_t end) {
  for (std::int64_t strip = begin; strip < end; strip += kStripRows) {
    const std::int64_t strip_end = end - strip < kStripRows ? end : strip + kStripRows;
    std::int64_t r = 0;
    for (; x.rows - r >= 4; r += 4) output_rows<format, 4>(w, x, y, r, strip, strip_end);
    switch (x.rows - r) {
      case 3: output_rows<format, 3>(w, x, y, r, strip, strip_end); break;
      case 2: output_rows<format, 2>(w, x, y, r, strip, strip_end); break;
      case 1: output_rows<format, 1>(w, x, y, r, strip, strip_end); break;
      default: break;
    }
  }
}

inline void matmul(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t begin, std::int64_t end) {
  with_format(w.format, [&]<WeightFormat format>() { matmul_as<format>(w, x, y, begin, end); });
}

/// y[r + m][16 columns from k] += sum over the rows of w, ascending, of x[r + m][row] * w[row], for C runs of 16 columns of
/// which the last has `count`.
template <WeightFormat format, int M, int C>
void add_transposed_tile(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t r, std::int64_t k, std::int64_t count) {
  Lanes sums[M][C];
  const auto first = [k](int c) { return k + std::int64_t{16} * c; };
  const auto columns = [count](int c) { return c + 1 < C ? std::int64_t{16} : count; };
  for (int m = 0; m < M; ++m) {
    for (int c = 0; c < C; ++c) sums[m][c] = load_some(y.row(r + m) + first(c), columns(c));
  }
  for (std::int64_t n = 0; n < w.rows; ++n) {
    const WeightRow row = row_of<format>(w, n);
    Lanes weights[C];
    for (int c = 0; c < C; ++c) weights[c] = load_weights<format>(row, first(c), columns(c));
    for (int m = 0; m < M; ++m) {
      const Lanes input = broadcast(x.row(r + m)[n]);
      for (int c = 0; c < C; ++c) sums[m][c] = fma(input, weights[c], sums[m][c]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int c = 0; c < C; ++c) store_some(y.row(r + m) + first(c), sums[m][c], columns(c));
  }
}

template <WeightFormat format, int M>
void add_transposed_rows(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t r, std::int64_t begin, std::int64_t end) {
  constexpr int kRuns = kColumnsOf[M];
  constexpr std::int64_t kTileColumns = std::int64_t{16} * kRuns;
  std::int64_t k = begin;
  for (; end - k >= kTileColumns; k += kTileColumns) add_transposed_tile<format, M, kRuns>(w, x, y, r, k, 16);
  for_runs(end - k,
           [&](std::int64_t first, std::int64_t count) { add_transposed_tile<format, M, 1>(w, x, y, r, k + first, count); });
}

/// y[:, begin..end) += x W.
template <WeightFormat format>
void add_transposed(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t begin, std::int64_t end) {
  std::int64_t r = 0;
  for (; x.rows - r >= 4; r += 4) add_transposed_rows<format, 4>(w, x, y, r, begin, end);
  switch (x.rows - r) {
    case 3: return add_transposed_rows<format, 3>(w, x, y, r, begin, end);
    case 2: return add_transposed_rows<format, 2>(w, x, y, r, begin, end);
    case 1: return add_transposed_rows<format, 1>(w, x, y, r, begin, end);
    default: return;
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
  with_format(w.format, [&]<WeightFormat format>() {
    const WeightRow stored = row_of<format>(w, row);
    for_runs(w.cols, [&](std::int64_t k, std::int64_t count) {
      store_some(out.data() + k, load_weights<format>(stored, k, count), count);
    });
  });
}

}  // namespace
}  // namespace calandra
