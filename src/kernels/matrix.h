#pragma once
// Views of the operands of a matrix product. None of them owns memory.

#include <cstddef>
#include <cstdint>

namespace calandra {

/// Rows of float32 activations: row r starts at data + r * stride.
template <class T>
struct RowsOf {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  T* row(std::int64_t r) const { return data + r * stride; }
  /// Rows [begin, begin + count).
  RowsOf slice(std::int64_t begin, std::int64_t count) const { return {row(begin), count, cols, stride}; }
  /// Columns [begin, begin + count) of every row.
  RowsOf columns(std::int64_t begin, std::int64_t count) const { return {data + begin, rows, count, stride}; }
  operator RowsOf<const T>() const { return {data, rows, cols, stride}; }
};
using Rows = RowsOf<float>;
using ConstRows = RowsOf<const float>;

/// Rows of activations that enter a product: as they are, or packed for the format of the weight by Kernels::pack.
struct Inputs {
  const std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_bytes = 0;  // row r starts at data + r * row_bytes
  bool packed = false;

  Inputs(ConstRows x)
      : data(reinterpret_cast<const std::byte*>(x.data)),
        rows(x.rows),
        cols(x.cols),
        row_bytes(x.stride * static_cast<std::int64_t>(sizeof(float))) {}
  Inputs(Rows x) : Inputs(ConstRows(x)) {}
  Inputs(const std::byte* first, std::int64_t num_rows, std::int64_t num_cols, std::int64_t bytes_of_row)
      : data(first), rows(num_rows), cols(num_cols), row_bytes(bytes_of_row), packed(true) {}

  /// The floats of rows that are not packed.
  ConstRows as_they_are() const {
    return {reinterpret_cast<const float*>(data), rows, cols, row_bytes / static_cast<std::int64_t>(sizeof(float))};
  }
  /// Rows [begin, begin + count).
  Inputs slice(std::int64_t begin, std::int64_t count) const {
    Inputs part = *this;
    part.data += begin * row_bytes;
    part.rows = count;
    return part;
  }
};

/// How the elements of a stored weight [rows = outputs, cols = inputs] become numbers.
enum class WeightFormat : std::uint8_t {
  F32,
  BF16,
  F16,
  Fp8,      // e4m3 codes; one F32 multiplier per 128 x 128 block
  Fp8E8m0,  // e4m3 codes; one e8m0 multiplier per 128 x 128 block
  Mxfp4,    // e2m1 codes, two a byte, even column in the low bits; one e8m0 multiplier per 32 columns of a row
};

inline constexpr std::int64_t kScaleBlock = 128;  // edge of an FP8 scale block
inline constexpr float kMostFp8Scale = 0x1p119f;  // with more, the largest code (448) would overflow
inline constexpr std::int64_t kMxGroup = 32;      // columns that share an MXFP4 scale

/// A weight as stored, row-major. y = x W^T: it maps `cols` inputs to `rows` outputs. Memory need not be aligned.
struct WeightMatrix {
  WeightFormat format = WeightFormat::F32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const std::byte* data = nullptr;    // element (0, 0) of the stored tensor
  const std::byte* scales = nullptr;  // scale (0, 0); null for plain formats
  std::int64_t stored_cols = 0;       // columns of the stored tensor: gives the strides of data and scales
  std::int64_t first_row = 0;         // this view is rows [first_row, first_row + rows) of the stored tensor
  int shards = 1;                     // virtual shards along `cols` (docs/numerics.md)

  /// View of rows [begin, begin + count) of this one.
  WeightMatrix slice(std::int64_t begin, std::int64_t count) const {
    WeightMatrix part = *this;
    part.first_row += begin;
    part.rows = count;
    return part;
  }
  explicit operator bool() const { return data != nullptr; }
};

/// Equal parts into which a product along `cols` is cut, each summed on its own and then added in order, so that ranks
/// that hold one part each get the same bits: the largest of 8, 4, 2, 1 that divides `units` (heads, or 128-blocks of
/// an MLP's width) and leaves whole scale blocks of at least 512 columns.
int virtual_shards(std::int64_t cols, std::int64_t units);

}  // namespace calandra
