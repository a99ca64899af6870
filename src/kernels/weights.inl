// Where the codes and scales of stored weights lie.

#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace calandra {
namespace {

/// Where the codes and the scales of one row start.
struct WeightRow {
  const std::byte* codes;
  const std::byte* scales;
};

/// Bytes of `count` columns; an odd last e2m1 code takes a whole byte.
template <WeightFormat format>
inline std::int64_t code_bytes(std::int64_t count) {
  switch (format) {
    case WeightFormat::F32: return count * 4;
    case WeightFormat::BF16:
    case WeightFormat::F16: return count * 2;
    case WeightFormat::Fp8:
    case WeightFormat::Fp8E8m0: return count;
    case WeightFormat::Mxfp4: return (count + 1) / 2;
  }
  return 0;
}

template <WeightFormat format>
inline WeightRow row_of(const WeightMatrix& w, std::int64_t row) {
  const std::int64_t stored_row = w.first_row + row;
  const std::byte* codes = w.data + stored_row * code_bytes<format>(w.stored_cols);
  switch (format) {
    case WeightFormat::F32:
    case WeightFormat::BF16:
    case WeightFormat::F16: return {codes, nullptr};
    case WeightFormat::Fp8:
    case WeightFormat::Fp8E8m0: {
      const std::int64_t blocks = (w.stored_cols + kScaleBlock - 1) / kScaleBlock;
      const std::int64_t scale_bytes = format == WeightFormat::Fp8 ? 4 : 1;
      return {codes, w.scales + stored_row / kScaleBlock * blocks * scale_bytes};
    }
    case WeightFormat::Mxfp4: return {codes, w.scales + stored_row * ((w.stored_cols + kMxGroup - 1) / kMxGroup)};
  }
  return {};
}

/// The F32 multiplier of the block of an FP8 row around column k.
inline float block_scale(WeightRow row, std::int64_t k) {
  float scale;
  std::memcpy(&scale, row.scales + k / kScaleBlock * 4, sizeof(scale));
  return scale;
}
/// The scale byte of the block around column k.
inline std::uint8_t block_exponent(WeightRow row, std::int64_t k) {
  return std::to_integer<std::uint8_t>(row.scales[k / kScaleBlock]);
}
/// The scale bytes of the groups of an MXFP4 row that columns [k, k + count) lie in; 0 for those behind them.
template <int groups>
inline void load_group_exponents(WeightRow row, std::int64_t k, std::int64_t count, std::uint8_t (&exponents)[groups]) {
  for (int i = 0; i < groups; ++i) {
    const bool there = groups == 1 || std::int64_t{kMxGroup} * i < count;
    exponents[i] = there ? std::to_integer<std::uint8_t>(row.scales[k / kMxGroup + i]) : std::uint8_t{0};
  }
}

/// The codes of `count` columns followed by zeros up to a run of `columns`, in `padded` unless they are whole.
template <WeightFormat format, std::size_t bytes>
inline const std::byte* whole_run(const std::byte* codes, std::int64_t count, std::int64_t columns, std::byte (&padded)[bytes]) {
  if (count == columns) return codes;
  std::memset(padded, 0, bytes);
  std::memcpy(padded, codes, static_cast<std::size_t>(code_bytes<format>(count)));
  return padded;
}

/// Calls body.template operator()<format>() for the format of a matrix.
template <class Body>
inline void with_format(WeightFormat format, Body body) {
  switch (format) {
    case WeightFormat::F32: return body.template operator()<WeightFormat::F32>();
    case WeightFormat::BF16: return body.template operator()<WeightFormat::BF16>();
    case WeightFormat::F16: return body.template operator()<WeightFormat::F16>();
    case WeightFormat::Fp8: return body.template operator()<WeightFormat::Fp8>();
    case WeightFormat::Fp8E8m0: return body.template operator()<WeightFormat::Fp8E8m0>();
    case WeightFormat::Mxfp4: return body.template operator()<WeightFormat::Mxfp4>();
  }
}

}  // namespace
}  // namespace calandra
