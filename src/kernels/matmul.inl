// y = x W^T and single rows of W. Order of operations (docs/numerics.md): blocks of 128 columns, in each 8 steps of 16; lane i
// of step j takes column 128 b + 16 j + i of both operands, with MXFP4 weights those of load_mxfp4; missing lanes of a ragged end are
// zeros on both sides.
// Power-of-two scales belong to the decoded weight; with F32 scales a block has lanes of its own, which one fused
// multiply-add with the scale adds to the running lanes. One tree adds the lanes. Virtual shards are added in order.
//
// Rows of x that meet MXFP4 weights are packed in the order in which their columns are decoded (load_mxfp4).
//
// There are two ways, with the same order for every output, so that neither its neighbours nor the cut matter:
// - streams, for a few rows of x: weights are decoded in registers and used for up to 4 rows. Bytes: a weight is read from
//   memory once; what comes next is prefetched, because rows are shorter than a hardware prefetcher needs to notice them.
// - tiles, for more: a strip of weight rows is decoded to float once, a panel that stays in L2, and tiles of 4 rows of x by
//   kTileOutputs panel rows pass over it. Operations: 2 a weight and row of x.

#include "kernels/kernels.h"
#include "kernels/scratch.h"

#include <cstdint>
#include <cstring>
#include <limits>

namespace calandra {
namespace {

constexpr std::int64_t kMostStreamed = 8;     // rows of x
constexpr std::int64_t kStreamStrip = 32;     // weight rows that stay in L2 while 4 rows of x after the other pass
constexpr std::int64_t kPanelFloats = 65536;  // 256 KiB

/// Outputs of one shard: the first sets them, later ones are added.
template <int M, int N>
inline void put_dots(const float (&dots)[M][N], int shard, Rows y, std::int64_t r, std::int64_t n) {
  for (int m = 0; m < M; ++m) {
    float* out = y.row(r + m) + n;
    for (int i = 0; i < N; ++i) out[i] = shard == 0 ? dots[m][i] : out[i] + dots[m][i];
  }
}

/// Calls body.template operator()<M>(r) for rows [r, r + M) of `rows`: four at a time, then the rest.
template <class Body>
inline void for_row_tiles(std::int64_t rows, Body body) {
  std::int64_t r = 0;
  for (; rows - r >= 4; r += 4) body.template operator()<4>(r);
  switch (rows - r) {
    case 3: return body.template operator()<3>(r);
    case 2: return body.template operator()<2>(r);
    case 1: return body.template operator()<1>(r);
    default: return;
  }
}

// ------------------------------------------------------------------------------------------------------- streams

/// N stored weight rows, and how far behind each of them its successor in the same stream lies.
template <int N>
struct Streams {
  WeightRow rows[N];
  std::int64_t next_bytes;
};

template <WeightFormat format>
inline void prefetch_run(const std::byte* codes) {
  constexpr std::int64_t kLine = 64;
  for (std::int64_t byte = 0; byte < code_bytes<format>(kRunColumns<format>); byte += kLine) __builtin_prefetch(codes + byte);
}

template <int M, int N>
inline void set_zero(Lanes (&lanes)[M][N]) {
  for (auto& row : lanes) {
    for (Lanes& x : row) x = zero_lanes();
  }
}

/// sums[m][n] += lanes of x[m] * w[n] over columns [k, k + count), with FP8 weights all in one scale block. F32 scales are left
/// out, and with them the unit.
template <WeightFormat format, int M, int N>
inline void add_columns(ConstRows x, const Streams<N>& w, std::int64_t k, std::int64_t count, CodesSeen (&seen)[N],
                        Lanes (&sums)[M][N]) {
  Lanes multiplier[N];
  if constexpr (format == WeightFormat::Fp8E8m0) {
    for (int n = 0; n < N; ++n) multiplier[n] = broadcast(multiplier_of<format>(w.rows[n], k));
  }
  const auto add_run = [&](std::int64_t c, std::int64_t columns) __attribute__((always_inline)) {
    for (int n = 0; n < N; ++n) {
      prefetch_run<format>(w.rows[n].codes + code_bytes<format>(c) + w.next_bytes);
      Run<format> weights = load_weights<format>(w.rows[n], c, columns, seen[n]);
      if constexpr (format == WeightFormat::Fp8E8m0) {
        for (Lanes& lanes : weights.lanes) lanes = lanes * multiplier[n];
      }
      for (int m = 0; m < M; ++m) {
        const Run<format> inputs = load_inputs<format>(x.row(m) + c, columns);
        for (int i = 0; i < kRunLanes<format>; ++i) sums[m][n] = fma(inputs.lanes[i], weights.lanes[i], sums[m][n]);
      }
    }
  };
  std::int64_t c = k;
  for (; k + count - c >= kRunColumns<format>; c += kRunColumns<format>) add_run(c, kRunColumns<format>);
  if (c < k + count) add_run(c, k + count - c);
}

/// Dot products of M rows of x and N weight rows over the columns [begin, end) of one shard.
template <WeightFormat format, int M, int N>
inline void stream_dots(ConstRows x, const Streams<N>& w, std::int64_t begin, std::int64_t end, float (&dots)[M][N]) {
  Lanes sums[M][N];
  set_zero(sums);
  CodesSeen seen[N];
  for (CodesSeen& codes : seen) codes = no_codes_seen();
  if constexpr (kIsFp8<format>) {
    for (std::int64_t k = begin; k < end; k += kScaleBlock) {
      const std::int64_t count = end - k < kScaleBlock ? end - k : kScaleBlock;
      if constexpr (format == WeightFormat::Fp8E8m0) {
        add_columns<format, M, N>(x, w, k, count, seen, sums);
      } else {
        Lanes block[M][N];
        set_zero(block);
        add_columns<format, M, N>(x, w, k, count, seen, block);
        for (int n = 0; n < N; ++n) {
          const Lanes scale = broadcast(multiplier_of<format>(w.rows[n], k));
          for (int m = 0; m < M; ++m) sums[m][n] = fma(block[m][n], scale, sums[m][n]);
        }
      }
    }
  } else {
    add_columns<format, M, N>(x, w, begin, end - begin, seen, sums);
  }
  for (int n = 0; n < N; ++n) {
    for (int m = 0; m < M; ++m) dots[m][n] = any_nan(seen[n]) ? std::numeric_limits<float>::quiet_NaN() : sum(sums[m][n]);
  }
}

template <WeightFormat format, int M, int N>
void stream_outputs(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t r, std::int64_t n) {
  Streams<N> streams;
  for (int i = 0; i < N; ++i) streams.rows[i] = row_of<format>(w, n + i);
  streams.next_bytes = N * code_bytes<format>(w.stored_cols);
  float dots[M][N];
  for (int shard = 0; shard < w.shards; ++shard) {
    stream_dots<format, M, N>(x.slice(r, M), streams, w.cols * shard / w.shards, w.cols * (shard + 1) / w.shards, dots);
    put_dots(dots, shard, y, r, n);
  }
}

/// Outputs of M rows of x for weight rows [begin, end).
template <WeightFormat format, int M>
void stream_rows(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t r, std::int64_t begin, std::int64_t end) {
  constexpr int kStreams = kStreamsOf[M];
  std::int64_t n = begin;
  for (; end - n >= kStreams; n += kStreams) stream_outputs<format, M, kStreams>(w, x, y, r, n);
  for (; n < end; ++n) stream_outputs<format, M, 1>(w, x, y, r, n);
}

template <WeightFormat format>
void multiply_streams(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t begin, std::int64_t end) {
  for (std::int64_t first = begin; first < end; first += kStreamStrip) {
    const std::int64_t last = end - first < kStreamStrip ? end : first + kStreamStrip;
    for_row_tiles(x.rows, [&]<int M>(std::int64_t r) { stream_rows<format, M>(w, x, y, r, first, last); });
  }
}

// --------------------------------------------------------------------------------------------------------- tiles

/// Weight rows from `first_row` on as floats, whole runs in a row, zeros behind the columns. F32 scales are left out,
/// and with them the unit.
struct Panel {
  const float* data;
  std::int64_t first_row;
  std::int64_t stride;
  const float* row(std::int64_t n) const { return data + (n - first_row) * stride; }
};

/// `cols`, filled up to whole runs.
template <WeightFormat format>
constexpr std::int64_t whole_runs(std::int64_t cols) {
  return (cols + kRunColumns<format> - 1) / kRunColumns<format> * kRunColumns<format>;
}

/// Dot products of M rows of x and panel rows [n, n + N) over the columns [begin, end) of one shard. The registers of a lane
/// set pass one after the other over a span of columns that, with both operands, stays in L1.
template <WeightFormat format, int M, int N>
inline void tile_dots(const WeightMatrix& w, const Panel& panel, ConstRows x, std::int64_t n, std::int64_t begin,
                      std::int64_t end, float (&dots)[M][N]) {
  constexpr bool own_lanes = format == WeightFormat::Fp8;
  constexpr std::int64_t kSpan = own_lanes ? kScaleBlock : 512;
  Part sums[M][N][kParts];
  for (auto& row : sums) {
    for (auto& parts : row) {
      for (Part& part : parts) part = zero_part();
    }
  }
  for (std::int64_t k = begin; k < end; k += kSpan) {
    const std::int64_t rest = end - k < kSpan ? end - k : kSpan;
    const std::int64_t count = kReordered<format> ? whole_runs<format>(rest) : rest;
    const std::int64_t whole = count / 16 * 16;
    float padded[M][16];
    if (whole < count) {
      for (int m = 0; m < M; ++m) store(padded[m], load_some(x.row(m) + k + whole, count - whole));
    }
    for (int p = 0; p < kParts; ++p) {
      Part block[M][N];
      for (int m = 0; m < M; ++m) {
        for (int i = 0; i < N; ++i) block[m][i] = own_lanes ? zero_part() : sums[m][i][p];
      }
      const auto add_part = [&](const float* inputs, std::int64_t stride, const float* weights) __attribute__((always_inline)) {
        Part columns[N];
        for (int i = 0; i < N; ++i) columns[i] = load_part(weights + i * panel.stride);
        for (int m = 0; m < M; ++m) {
          const Part input = load_part(inputs + m * stride);
          for (int i = 0; i < N; ++i) block[m][i] = fma_part(input, columns[i], block[m][i]);
        }
      };
      const float* inputs = x.data + k + p * kPartLanes;
      const float* weights = panel.row(n) + k + p * kPartLanes;
      for (std::int64_t c = 0; c < whole; c += 16) add_part(inputs + c, x.stride, weights + c);
      if (whole < count) add_part(padded[0] + p * kPartLanes, 16, weights + whole);
      for (int i = 0; i < N; ++i) {
        if constexpr (own_lanes) {
          const Part scale = broadcast_part(multiplier_of<format>(row_of<format>(w, n + i), k));
          for (int m = 0; m < M; ++m) sums[m][i][p] = fma_part(block[m][i], scale, sums[m][i][p]);
        } else {
          for (int m = 0; m < M; ++m) sums[m][i][p] = block[m][i];
        }
      }
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int i = 0; i < N; ++i) dots[m][i] = sum(lanes_of(sums[m][i]));
  }
}

template <WeightFormat format, int M, int N>
void tile_outputs(const WeightMatrix& w, const Panel& panel, ConstRows x, Rows y, std::int64_t r, std::int64_t n) {
  float dots[M][N];
  for (int shard = 0; shard < w.shards; ++shard) {
    tile_dots<format, M, N>(w, panel, x.slice(r, M), n, w.cols * shard / w.shards, w.cols * (shard + 1) / w.shards, dots);
    put_dots(dots, shard, y, r, n);
  }
}

/// Outputs of M rows of x for the weight rows of a panel, up to `end`.
template <WeightFormat format, int M>
void tile_rows(const WeightMatrix& w, const Panel& panel, ConstRows x, Rows y, std::int64_t r, std::int64_t end) {
  std::int64_t n = panel.first_row;
  for (; end - n >= kTileOutputs; n += kTileOutputs) tile_outputs<format, M, kTileOutputs>(w, panel, x, y, r, n);
  for (; n < end; ++n) tile_outputs<format, M, 1>(w, panel, x, y, r, n);
}

template <WeightFormat format>
void multiply_tiles(const WeightMatrix& w, ConstRows x, Rows y, std::int64_t begin, std::int64_t end) {
  const std::int64_t stride = whole_runs<format>(w.cols);
  const std::int64_t tiles = kPanelFloats / stride / kTileOutputs;
  const std::int64_t fitting = kTileOutputs * (tiles > 0 ? tiles : 1);
  const std::int64_t strip = end - begin < fitting ? end - begin : fitting;
  float* floats = scratch(ScratchUse::Panel, strip * stride);
  for (std::int64_t first = begin; first < end; first += strip) {
    const std::int64_t last = end - first < strip ? end : first + strip;
    for (std::int64_t n = first; n < last; ++n) {
      decode_columns<format, format != WeightFormat::Fp8, true>(row_of<format>(w, n), 0, w.cols, floats + (n - first) * stride);
    }
    const Panel panel = {floats, first, stride};
    for_row_tiles(x.rows, [&]<int M>(std::int64_t r) { tile_rows<format, M>(w, panel, x, y, r, last); });
  }
}

// --------------------------------------------------------------------------------------------------- entry points

inline std::int64_t packed_row_bytes(WeightFormat format, std::int64_t cols) {
  if (format != WeightFormat::Mxfp4) return 0;
  return whole_runs<WeightFormat::Mxfp4>(cols) * static_cast<std::int64_t>(sizeof(float));
}

/// Four floats: code of the compilers for any processor.
using Quad = float __attribute__((vector_size(16)));

/// 64 columns in the order of a run: quads of neighbours, four at a time, with rows and columns exchanged.
inline void pack_run(const float* from, float* run) {
  for (std::int64_t quad = 0; quad < 4; ++quad) {
    Quad rows[4];
    std::memcpy(rows, from + 16 * quad, sizeof(rows));
    const Quad low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5),
               low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
    const Quad high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7),
               high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
    const Quad columns[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5), __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                             __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                             __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
    for (std::int64_t step = 0; step < 4; ++step) std::memcpy(run + place_in_run(16 * quad + step), &columns[step], sizeof(Quad));
  }
}

inline void pack(WeightFormat format, ConstRows x, std::byte* out) {
  constexpr std::int64_t kColumns = kRunColumns<WeightFormat::Mxfp4>;
  const std::int64_t row_bytes = packed_row_bytes(format, x.cols);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const float* from = x.row(r);
    auto* to = reinterpret_cast<float*>(out + r * row_bytes);
    const std::int64_t whole = x.cols / kColumns * kColumns;
    for (std::int64_t k = 0; k < whole; k += kColumns) pack_run(from + k, to + k);
    if (whole == x.cols) continue;
    float padded[kColumns] = {};
    std::memcpy(padded, from + whole, static_cast<std::size_t>(x.cols - whole) * sizeof(float));
    pack_run(padded, to + whole);
  }
}

template <WeightFormat format>
inline void multiply(const WeightMatrix& w, const Inputs& inputs, Rows y, std::int64_t begin, std::int64_t end) {
  if (begin >= end || inputs.rows == 0) return;
  ConstRows x = {reinterpret_cast<const float*>(inputs.data), inputs.rows, inputs.cols,
                 inputs.row_bytes / static_cast<std::int64_t>(sizeof(float))};
  if constexpr (kReordered<format>) {
    if (!inputs.packed) {
      x.stride = whole_runs<format>(x.cols);
      float* const packed = scratch(ScratchUse::Packed, x.rows * x.stride);
      pack(format, ConstRows{x.data, x.rows, x.cols, inputs.row_bytes / static_cast<std::int64_t>(sizeof(float))},
           reinterpret_cast<std::byte*>(packed));
      x.data = packed;
    }
  }
  x.rows <= kMostStreamed ? multiply_streams<format>(w, x, y, begin, end) : multiply_tiles<format>(w, x, y, begin, end);
}

inline void matmul(const WeightMatrix& w, const Inputs& x, Rows y, std::int64_t begin, std::int64_t end) {
  with_format(w.format, [&]<WeightFormat format>() { multiply<format>(w, x, y, begin, end); });
}

inline void decode_row(const WeightMatrix& w, std::int64_t row, std::span<float> out) {
  with_format(w.format,
              [&]<WeightFormat format>() { decode_columns<format, true, false>(row_of<format>(w, row), 0, w.cols, out.data()); });
}

}  // namespace
}  // namespace calandra
