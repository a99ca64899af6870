// Stored weights as lanes: sixteen neighbours of one row, decoded exactly.

#include "kernels/kernels.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace calandra {
namespace {

/// e8m0 bytes as numbers: a table, because a call for every group of 32 weights would empty the vector registers.
struct E8m0Table {
  float values[256] = {};
  constexpr E8m0Table() {
    for (std::uint32_t byte = 0; byte < 255; ++byte) values[byte] = std::bit_cast<float>(byte << 23);
    values[0] = std::bit_cast<float>(0x00400000u);  // 2^-127, a subnormal
    values[255] = std::numeric_limits<float>::quiet_NaN();
  }
};
constexpr E8m0Table kE8m0;

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

/// The multiplier of column k: an F32 block scale or a power of two; none for plain formats.
template <WeightFormat format>
inline float scale_at(WeightRow row, std::int64_t k) {
  if constexpr (format == WeightFormat::Fp8) {
    float scale;
    std::memcpy(&scale, row.scales + k / kScaleBlock * 4, sizeof(scale));
    return scale;
  } else {
    const std::int64_t group = format == WeightFormat::Mxfp4 ? kMxGroup : kScaleBlock;
    return kE8m0.values[std::to_integer<unsigned>(row.scales[k / group])];
  }
}

template <WeightFormat format>
inline Lanes decode_codes(const void* codes) {
  switch (format) {
    case WeightFormat::F32: return load(codes);
    case WeightFormat::BF16: return load_bf16(codes);
    case WeightFormat::F16: return load_f16(codes);
    case WeightFormat::Fp8:
    case WeightFormat::Fp8E8m0: return load_e4m3(codes);
    case WeightFormat::Mxfp4: return load_e2m1(codes);
  }
  return zero_lanes();
}

/// Codes of columns [k, k + count) as numbers, zeros in the other lanes. Reads no byte of another column.
template <WeightFormat format>
inline Lanes load_codes(WeightRow row, std::int64_t k, std::int64_t count) {
  const std::byte* codes = row.codes + code_bytes<format>(k);
  if (count >= 16) return decode_codes<format>(codes);
  std::byte padded[64] = {};
  std::memcpy(padded, codes, static_cast<std::size_t>(code_bytes<format>(count)));
  const Lanes decoded = decode_codes<format>(padded);
  if (format != WeightFormat::Mxfp4) return decoded;
  float exact[16];  // a last byte may hold one column more
  store(exact, decoded);
  return load_some(exact, count);
}

/// Weights of columns [k, k + count): k a multiple of 16. One rounding with an F32 scale, otherwise exact.
template <WeightFormat format>
inline Lanes load_weights(WeightRow row, std::int64_t k, std::int64_t count) {
  const Lanes codes = load_codes<format>(row, k, count);
  if constexpr (format == WeightFormat::F32 || format == WeightFormat::BF16 || format == WeightFormat::F16) {
    return codes;
  } else {
    return codes * broadcast(scale_at<format>(row, k));
  }
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
