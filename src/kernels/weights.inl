// Stored weights as lanes: neighbours of one row, decoded exactly.

#include "kernels/kernels.h"
#include "kernels/scale_tables.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

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

template <WeightFormat format>
constexpr bool kIsFp8 = format == WeightFormat::Fp8 || format == WeightFormat::Fp8E8m0;

/// What turns the FP8 codes around column k into numbers: the scale of their block, and the unit of the decoder. Exact up to kMostFp8Scale.
template <WeightFormat format>
inline float multiplier_of(WeightRow row, std::int64_t k) {
  static_assert(kIsFp8<format>);
  const std::int64_t block = k / kScaleBlock;
  if constexpr (format == WeightFormat::Fp8E8m0) return kE8m0[std::to_integer<std::size_t>(row.scales[block])] * kE4m3Unit;
  float scale;
  std::memcpy(&scale, row.scales + block * 4, sizeof(scale));
  return scale * kE4m3Unit;
}

/// Lanes that are decoded together: neighbouring columns, in order; for MXFP4 four steps through 64 columns (load_mxfp4).
template <WeightFormat format>
constexpr int kRunLanes = format == WeightFormat::Mxfp4 ? 4 : 2;
template <WeightFormat format>
constexpr std::int64_t kRunColumns = std::int64_t{16} * kRunLanes<format>;
static_assert(kRunColumns<WeightFormat::Mxfp4> == 2 * kMxGroup);

template <WeightFormat format>
struct Run {
  Lanes lanes[kRunLanes<format>];
};

/// Whether a run holds its columns in another order than the rows of x: those are packed.
template <WeightFormat format>
constexpr bool kReordered = format == WeightFormat::Mxfp4;

template <WeightFormat format>
inline Run<format> decode_run(const std::byte* codes, CodesSeen& seen) {
  switch (format) {
    case WeightFormat::F32: return {load(codes), load(codes + 64)};
    case WeightFormat::BF16: return {load_bf16(codes), load_bf16(codes + 32)};
    case WeightFormat::F16: return {load_f16(codes), load_f16(codes + 32)};
    case WeightFormat::Fp8:
    case WeightFormat::Fp8E8m0: return {load_e4m3(codes, seen), load_e4m3(codes + 16, seen)};
    case WeightFormat::Mxfp4: break;
  }
  return {};
}

/// A run of columns [k, k + count), count at most kRunColumns. FP8 codes are in units, without their scales; zeros stand beyond the
/// count. Reads no byte of another column, but for the other half of a last e2m1 byte.
template <WeightFormat format>
inline Run<format> load_weights(WeightRow row, std::int64_t k, std::int64_t count, CodesSeen& seen) {
  const std::byte* codes = row.codes + code_bytes<format>(k);
  std::byte padded[4 * kRunColumns<format>];
  if (count < kRunColumns<format>) {
    std::memset(padded, 0, sizeof(padded));
    std::memcpy(padded, codes, static_cast<std::size_t>(code_bytes<format>(count)));
    codes = padded;
  }
  if constexpr (format == WeightFormat::Mxfp4) {
    const auto scale = [&](std::int64_t group) { return std::to_integer<std::uint8_t>(row.scales[k / kMxGroup + group]); };
    Run<format> run;
    load_mxfp4(codes, scale(0), count > kMxGroup ? scale(1) : std::uint8_t{0}, run.lanes);
    return run;
  } else {
    return decode_run<format>(codes, seen);
  }
}

/// A run of x: `count` columns of a row as it is, or as they are packed.
template <WeightFormat format>
inline Run<format> load_inputs(const float* address, std::int64_t count) {
  Run<format> run;
  for (int i = 0; i < kRunLanes<format>; ++i) {
    const std::int64_t rest = count - std::int64_t{16} * i;
    run.lanes[i] = kReordered<format> || rest >= 16 ? load(address + std::int64_t{16} * i)
                   : rest > 0                       ? load_some(address + std::int64_t{16} * i, rest)
                                                    : zero_lanes();
  }
  return run;
}

/// Where column c of a run of MXFP4 stands in it (load_mxfp4).
constexpr std::int64_t place_in_run(std::int64_t c) {
  const std::int64_t j = c / 4;
  return 16 * (c % 4) + (j / 4 == 1 || j / 4 == 2 ? j ^ 12 : j);
}

/// Columns [begin, begin + count), `begin` a multiple of 128, as floats. Not `scaled`: FP8 codes in units. `in_runs`: in the order of runs, the
/// last one filled up with zeros.
template <WeightFormat format, bool scaled, bool in_runs>
void decode_columns(WeightRow row, std::int64_t begin, std::int64_t count, float* out) {
  CodesSeen seen = no_codes_seen();
  for (std::int64_t done = 0; done < count; done += kRunColumns<format>) {
    const std::int64_t some = count - done < kRunColumns<format> ? count - done : kRunColumns<format>;
    Run<format> run = load_weights<format>(row, begin + done, some, seen);
    if constexpr (scaled && kIsFp8<format>) {
      const Lanes multiplier = broadcast(multiplier_of<format>(row, begin + done));
      for (Lanes& lanes : run.lanes) lanes = lanes * multiplier;
    }
    float numbers[kRunColumns<format>];
    float* const at = in_runs || (some == kRunColumns<format> && !kReordered<format>) ? out + done : numbers;
    for (int i = 0; i < kRunLanes<format>; ++i) store(at + std::int64_t{16} * i, run.lanes[i]);
    if (at != numbers) continue;
    for (std::int64_t c = 0; c < some; ++c) out[done + c] = numbers[kReordered<format> ? place_in_run(c) : c];
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
