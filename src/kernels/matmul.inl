// y = x W^T. Order of operations (docs/numerics.md): blocks of 128 columns, in each 8 steps of 16; lane i
// of step j takes column 128 b + 16 j + i of both operands, unless codes come out in another order; missing lanes of a ragged end
// are zeros on both sides. Power-of-two scales belong to the decoded weight; with F32 scales a block has lanes of its own, which one
// fused multiply-add with the scale adds to the running lanes. One tree adds the lanes. Virtual shards are added in order.
// What is multiplied, and how rows of x are packed for it: factors_f32.inl, factors_bf16.inl.
//
// There are two ways, with the same order for every output, so that neither its neighbours nor the cut matter:
// - streams, for a few rows of x: weights are decoded in registers and used for up to 4 rows. Bytes: a weight is read from
//   memory once; what comes next is prefetched, because rows are shorter than a hardware prefetcher needs to notice them.
// - tiles, for more: a strip of weight rows is decoded once, a panel that stays in L2, and tiles of 4 rows of x by
//   kTileOutputs panel rows pass over it. Operations: 2 a weight and row of x.

#include "kernels/kernels.h"
#include "kernels/scratch.h"

#include <cstdint>
#include <cstring>
#include <limits>

namespace calandra {
namespace {

constexpr std::int64_t kMostStreamed = 8;  // rows of x
constexpr std::int64_t kStreamStrip = 32;  // weight rows that stay in L2 while 4 rows of x after the other pass
constexpr std::int64_t kPanelElements = (std::int64_t{256} << 10) / static_cast<std::int64_t>(sizeof(Element));

/// Rows of x as they are multiplied.
using Factors = RowsOf<const Element>;

/// Whether a block of columns has lanes of its own, which its F32 scale adds to the running ones.
template <WeightFormat format>
constexpr bool kHasBlockLanes = format == WeightFormat::Fp8;

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

/// sums[m][n] += lanes of x[m] * w[n] over columns [k, k + count), without F32 scales.
template <WeightFormat format, int M, int N>
inline void add_columns(Factors x, const Streams<N>& w, std::int64_t k, std::int64_t count, CodesSeen (&seen)[N],
                        Lanes (&sums)[M][N]) {
  const auto add_run = [&](std::int64_t c, std::int64_t columns) __attribute__((always_inline)) {
    for (int n = 0; n < N; ++n) {
      prefetch_run<format>(w.rows[n].codes + code_bytes<format>(c) + w.next_bytes);
      const Run<format> weights = load_weights<format>(w.rows[n], c, columns, seen[n]);
      for (int m = 0; m < M; ++m) {
        const Run<format> inputs = load_inputs<format>(x.row(m) + c, columns);
        for (int i = 0; i < kRunLanes<format>; ++i) sums[m][n] = stream_fma(inputs.lanes[i], weights.lanes[i], sums[m][n]);
      }
    }
  };
  std::int64_t c = k;
  for (; k + count - c >= kRunColumns<format>; c += kRunColumns<format>) add_run(c, kRunColumns<format>);
  if (c < k + count) add_run(c, k + count - c);
}

/// Dot products of M rows of x and N weight rows over the columns [begin, end) of one shard.
template <WeightFormat format, int M, int N>
inline void stream_dots(Factors x, const Streams<N>& w, std::int64_t begin, std::int64_t end, float (&dots)[M][N]) {
  Lanes sums[M][N];
  set_zero(sums);
  CodesSeen seen[N];
  for (CodesSeen& codes : seen) codes = no_codes_seen();
  if constexpr (kHasBlockLanes<format>) {
    for (std::int64_t k = begin; k < end; k += kScaleBlock) {
      Lanes block[M][N];
      set_zero(block);
      add_columns<format, M, N>(x, w, k, end - k < kScaleBlock ? end - k : kScaleBlock, seen, block);
      for (int n = 0; n < N; ++n) {
        const Lanes scale = broadcast(multiplier_of(w.rows[n], k));
        for (int m = 0; m < M; ++m) sums[m][n] = fma(block[m][n], scale, sums[m][n]);
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
void stream_outputs(const WeightMatrix& w, Factors x, Rows y, std::int64_t r, std::int64_t n) {
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
void stream_rows(const WeightMatrix& w, Factors x, Rows y, std::int64_t r, std::int64_t begin, std::int64_t end) {
  constexpr int kStreams = kStreamsOf[M];
  std::int64_t n = begin;
  for (; end - n >= kStreams; n += kStreams) stream_outputs<format, M, kStreams>(w, x, y, r, n);
  for (; n < end; ++n) stream_outputs<format, M, 1>(w, x, y, r, n);
}

template <WeightFormat format>
void multiply_streams(const WeightMatrix& w, Factors x, Rows y, std::int64_t begin, std::int64_t end) {
  for (std::int64_t first = begin; first < end; first += kStreamStrip) {
    const std::int64_t last = end - first < kStreamStrip ? end : first + kStreamStrip;
    for_row_tiles(x.rows, [&]<int M>(std::int64_t r) { stream_rows<format, M>(w, x, y, r, first, last); });
  }
}

// --------------------------------------------------------------------------------------------------------- tiles

/// Weight rows from `first_row` on as factors, whole runs in a row, zeros behind the columns, without F32 scales.
struct Panel {
  const Element* data;
  std::int64_t first_row;
  std::int64_t stride;
  const Element* row(std::int64_t n) const { return data + (n - first_row) * stride; }
};

/// `cols`, filled up to whole runs.
template <WeightFormat format>
constexpr std::int64_t whole_runs(std::int64_t cols) {
  return (cols + kRunColumns<format> - 1) / kRunColumns<format> * kRunColumns<format>;
}

template <WeightFormat format>
void decode_panel_row(WeightRow row, std::int64_t cols, Element* out) {
  CodesSeen seen = no_codes_seen();
  for (std::int64_t k = 0; k < cols; k += kRunColumns<format>) {
    const std::int64_t count = cols - k < kRunColumns<format> ? cols - k : kRunColumns<format>;
    store_run<format>(out + k, load_weights<format>(row, k, count, seen));
  }
  if (!any_nan(seen)) return;
  for (std::int64_t k = 0; k < whole_runs<format>(cols); ++k) out[k] = kNan;
}

/// Dot products of M rows of x and panel rows [n, n + N) over the columns [begin, end) of one shard. The registers of a lane
/// set pass one after the other over a span of columns that, with both operands, stays in L1.
template <WeightFormat format, int M, int N>
inline void tile_dots(const WeightMatrix& w, const Panel& panel, Factors x, std::int64_t n, std::int64_t begin, std::int64_t end,
                      float (&dots)[M][N]) {
  constexpr std::int64_t kSpan = kHasBlockLanes<format> ? kScaleBlock : 512;
  Part sums[M][N][kParts];
  for (auto& row : sums) {
    for (auto& parts : row) {
      for (Part& part : parts) part = zero_part();
    }
  }
  for (std::int64_t k = begin; k < end; k += kSpan) {
    const std::int64_t rest = end - k < kSpan ? end - k : kSpan;
    const std::int64_t count = kPacked<format> ? whole_runs<format>(rest) : rest;
    const std::int64_t whole = count / kFactorColumns * kFactorColumns;
    Element padded[M][kFactorColumns];
    if (whole < count) {
      std::memset(padded, 0, sizeof(padded));
      for (int m = 0; m < M; ++m)
        std::memcpy(padded[m], x.row(m) + k + whole, static_cast<std::size_t>(count - whole) * sizeof(Element));
    }
    for (int p = 0; p < kParts; ++p) {
      Part block[M][N];
      for (int m = 0; m < M; ++m) {
        for (int i = 0; i < N; ++i) block[m][i] = kHasBlockLanes<format> ? zero_part() : sums[m][i][p];
      }
      const auto add_part = [&](const Element* inputs, std::int64_t stride, const Element* weights)
          __attribute__((always_inline)) {
        Factor columns[N];
        for (int i = 0; i < N; ++i) columns[i] = load_factor(weights + i * panel.stride);
        for (int m = 0; m < M; ++m) {
          const Factor input = load_factor(inputs + m * stride);
          for (int i = 0; i < N; ++i) block[m][i] = tile_fma(input, columns[i], block[m][i]);
        }
      };
      const Element* inputs = x.data + k + p * kPartLanes;
      const Element* weights = panel.row(n) + k + p * kPartLanes;
      for (std::int64_t c = 0; c < whole; c += kFactorColumns) add_part(inputs + c, x.stride, weights + c);
      if (whole < count) add_part(padded[0] + p * kPartLanes, kFactorColumns, weights + whole);
      for (int i = 0; i < N; ++i) {
        if constexpr (kHasBlockLanes<format>) {
          const Part scale = broadcast_part(multiplier_of(row_of<format>(w, n + i), k));
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
void tile_outputs(const WeightMatrix& w, const Panel& panel, Factors x, Rows y, std::int64_t r, std::int64_t n) {
  float dots[M][N];
  for (int shard = 0; shard < w.shards; ++shard) {
    tile_dots<format, M, N>(w, panel, x.slice(r, M), n, w.cols * shard / w.shards, w.cols * (shard + 1) / w.shards, dots);
    put_dots(dots, shard, y, r, n);
  }
}

/// Outputs of M rows of x for the weight rows of a panel, up to `end`.
template <WeightFormat format, int M>
void tile_rows(const WeightMatrix& w, const Panel& panel, Factors x, Rows y, std::int64_t r, std::int64_t end) {
  std::int64_t n = panel.first_row;
  for (; end - n >= kTileOutputs; n += kTileOutputs) tile_outputs<format, M, kTileOutputs>(w, panel, x, y, r, n);
  for (; n < end; ++n) tile_outputs<format, M, 1>(w, panel, x, y, r, n);
}

inline Element* scratch_elements(ScratchUse use, std::int64_t count) {
  constexpr std::int64_t kElement = sizeof(Element), kFloat = sizeof(float);
  return reinterpret_cast<Element*>(scratch(use, (count * kElement + kFloat - 1) / kFloat));
}

template <WeightFormat format>
void multiply_tiles(const WeightMatrix& w, Factors x, Rows y, std::int64_t begin, std::int64_t end) {
  const std::int64_t stride = whole_runs<format>(w.cols);
  const std::int64_t tiles = kPanelElements / stride / kTileOutputs;
  const std::int64_t fitting = kTileOutputs * (tiles > 0 ? tiles : 1);
  const std::int64_t strip = end - begin < fitting ? end - begin : fitting;
  Element* const elements = scratch_elements(ScratchUse::Panel, strip * stride);
  for (std::int64_t first = begin; first < end; first += strip) {
    const std::int64_t last = end - first < strip ? end : first + strip;
    for (std::int64_t n = first; n < last; ++n)
      decode_panel_row<format>(row_of<format>(w, n), w.cols, elements + (n - first) * stride);
    const Panel panel = {elements, first, stride};
    for_row_tiles(x.rows, [&]<int M>(std::int64_t r) { tile_rows<format, M>(w, panel, x, y, r, last); });
  }
}

// --------------------------------------------------------------------------------------------------- entry points

template <WeightFormat format>
void pack_rows(ConstRows x, Element* out) {
  constexpr std::int64_t kColumns = kRunColumns<format>;
  const std::int64_t whole = x.cols / kColumns * kColumns;
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const float* from = x.row(r);
    for (std::int64_t k = 0; k < whole; k += kColumns, out += kColumns) pack_run<format>(from + k, out);
    if (whole == x.cols) continue;
    float padded[kColumns] = {};
    std::memcpy(padded, from + whole, static_cast<std::size_t>(x.cols - whole) * sizeof(float));
    pack_run<format>(padded, out);
    out += kColumns;
  }
}

inline std::int64_t packed_row_bytes(WeightFormat format, std::int64_t cols) {
  std::int64_t bytes = 0;
  with_product_format(format, [&]<WeightFormat known>() {
    if constexpr (kPacked<known>) bytes = whole_runs<known>(cols) * std::int64_t{sizeof(Element)};
  });
  return bytes;
}

inline void pack(WeightFormat format, ConstRows x, std::byte* out) {
  with_product_format(format, [&]<WeightFormat known>() {
    if constexpr (kPacked<known>) pack_rows<known>(x, reinterpret_cast<Element*>(out));
  });
}

/// The rows as they are multiplied.
template <WeightFormat format>
inline Factors factors_of(const Inputs& x) {
  if constexpr (kPacked<format>) {
    if (!x.packed) {
      const std::int64_t stride = whole_runs<format>(x.cols);
      Element* const packed = scratch_elements(ScratchUse::Packed, x.rows * stride);
      pack_rows<format>(x.as_they_are(), packed);
      return {packed, x.rows, x.cols, stride};
    }
  }
  return {reinterpret_cast<const Element*>(x.data), x.rows, x.cols, x.row_bytes / std::int64_t{sizeof(Element)}};
}

template <WeightFormat format>
inline void multiply(const WeightMatrix& w, const Inputs& inputs, Rows y, std::int64_t begin, std::int64_t end) {
  if (begin >= end || inputs.rows == 0) return;
  const Factors x = factors_of<format>(inputs);
  x.rows <= kMostStreamed ? multiply_streams<format>(w, x, y, begin, end) : multiply_tiles<format>(w, x, y, begin, end);
}

inline void matmul(const WeightMatrix& w, const Inputs& x, Rows y, std::int64_t begin, std::int64_t end) {
  with_product_format(w.format, [&]<WeightFormat format>() { multiply<format>(w, x, y, begin, end); });
}

}  // namespace
}  // namespace calandra
