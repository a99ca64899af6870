// Stored weights as lanes: neighbours of one row, decoded exactly.

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

/// Decoders give the number that a code means divided by this power of two, whatever is cheapest to make.
template <WeightFormat format>
constexpr float kUnit = format == WeightFormat::Fp8 || format == WeightFormat::Fp8E8m0 ? kE4m3Unit : 1.0f;

template <WeightFormat format>
constexpr bool kIsScaled = format == WeightFormat::Fp8 || format == WeightFormat::Fp8E8m0 || format == WeightFormat::Mxfp4;

/// What turns the codes around column k into numbers. Exact up to kMostFp8Scale.
template <WeightFormat format>
inline float multiplier_of(WeightRow row, std::int64_t k) {
  return scale_at<format>(row, k) * kUnit<format>;
}
template <WeightFormat format>
inline Lanes multiplier_at(WeightRow row, std::int64_t k) {
  return broadcast(multiplier_of<format>(row, k));
}

/// Two runs of sixteen neighbours.
struct Pair {
  Lanes first, second;
};
constexpr std::int64_t kPairColumns = 32;
static_assert(kPairColumns == kMxGroup);

inline Pair operator*(const Pair& x, Lanes factor) { return {x.first * factor, x.second * factor}; }

template <WeightFormat format>
inline Pair decode_pair(const std::byte* codes, CodesSeen& seen) {
  switch (format) {
    case WeightFormat::F32: return {load(codes), load(codes + 64)};
    case WeightFormat::BF16: return {load_bf16(codes), load_bf16(codes + 32)};
    case WeightFormat::F16: return {load_f16(codes), load_f16(codes + 32)};
    case WeightFormat::Fp8:
    case WeightFormat::Fp8E8m0: return {load_e4m3(codes, seen), load_e4m3(codes + 16, seen)};
    case WeightFormat::Mxfp4: {
      Pair pair;
      load_e2m1(codes, pair.first, pair.second);
      return pair;
    }
  }
  return {zero_lanes(), zero_lanes()};
}

/// Codes of columns [k, k + count), count at most 32, in units; other lanes hold some finite number. Reads no byte of
/// another column, but for the other half of a last e2m1 byte.
template <WeightFormat format>
inline Pair load_codes(WeightRow row, std::int64_t k, std::int64_t count, CodesSeen& seen) {
  const std::byte* codes = row.codes + code_bytes<format>(k);
  if (count == kPairColumns) return decode_pair<format>(codes, seen);
  std::byte padded[4 * kPairColumns] = {};
  std::memcpy(padded, codes, static_cast<std::size_t>(code_bytes<format>(count)));
  return decode_pair<format>(padded, seen);
}

inline Pair load_pair(const float* address, std::int64_t count) {
  if (count == kPairColumns) return {load(address), load(address + 16)};
  if (count <= 16) return {load_some(address, count), zero_lanes()};
  return {load(address), load_some(address + 16, count - 16)};
}
inline void store_pair(float* address, const Pair& x, std::int64_t count) {
  store_some(address, x.first, count < 16 ? count : 16);
  if (count > 16) store_some(address + 16, x.second, count - 16);
}

/// Columns [0, count) from column `begin` on, a multiple of 128, as floats: numbers, or codes in units if not `scaled`.
template <WeightFormat format, bool scaled>
void decode_columns(WeightRow row, std::int64_t begin, std::int64_t count, float* out) {
  CodesSeen seen = no_codes_seen();
  for (std::int64_t done = 0; done < count; done += kPairColumns) {
    const std::int64_t some = count - done < kPairColumns ? count - done : kPairColumns;
    const Pair codes = load_codes<format>(row, begin + done, some, seen);
    if constexpr (scaled && kIsScaled<format>) {
      store_pair(out + done, codes * multiplier_at<format>(row, begin + done), some);
    } else {
      store_pair(out + done, codes, some);
    }
  }
  if (!any_nan(seen)) return;
  for (std::int64_t i = 0; i < count; ++i) {  // only e4m3 has such codes
    if ((std::to_integer<unsigned>(row.codes[begin + i]) & 0x7F) == 0x7F) out[i] = std::numeric_limits<float>::quiet_NaN();
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
