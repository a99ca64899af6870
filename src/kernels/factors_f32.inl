// What products multiply, in float32: weights as lanes, decoded exactly, and rows of x, which are packed only for MXFP4, whose codes come
// out in an order of their own. The same names in bf16: factors_bf16.inl.

#include "kernels/kernels.h"
#include "kernels/scale_tables.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace calandra {
namespace {

/// One number of a panel or of packed rows, and the columns of a register of them.
using Element = float;
constexpr Element kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kFactorColumns = 16;

/// What tiles multiply at a time: a register, kParts of them for all lanes.
using Factor = Part;
inline Factor load_factor(const Element* address) { return load_part(address); }
inline Part tile_fma(Factor a, Factor b, Part sum) { return fma_part(a, b, sum); }

/// What streams multiply at a time: columns that are decoded together. Neighbours, in order; for MXFP4 four steps through 64 columns
/// (load_mxfp4).
template <WeightFormat format>
constexpr int kRunLanes = format == WeightFormat::Mxfp4 ? 4 : 2;
template <WeightFormat format>
constexpr std::int64_t kRunColumns = kFactorColumns* kRunLanes<format>;
static_assert(kRunColumns<WeightFormat::Mxfp4> == 2 * kMxGroup);

template <WeightFormat format>
struct Run {
  Lanes lanes[kRunLanes<format>];
};
inline Lanes stream_fma(Lanes a, Lanes b, Lanes sum) { return fma(a, b, sum); }

/// Whether rows of x are packed: to the order of runs, with zeros up to a whole one.
template <WeightFormat format>
constexpr bool kPacked = format == WeightFormat::Mxfp4;

/// FP8 codes with an F32 scale per block leave it out: they have to be multiplied by this.
inline float multiplier_of(WeightRow row, std::int64_t k) { return block_scale(row, k) * kE4m3Unit; }

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

/// A run of columns [k, k + count), count at most kRunColumns, without an F32 scale; zeros stand beyond the count. Reads no byte of
/// another column, but for the other half of a last e2m1 byte.
template <WeightFormat format>
inline Run<format> load_weights(WeightRow row, std::int64_t k, std::int64_t count, CodesSeen& seen) {
  std::byte padded[4 * kRunColumns<format>];
  const std::byte* codes = whole_run<format>(row.codes + code_bytes<format>(k), count, kRunColumns<format>, padded);
  if constexpr (format == WeightFormat::Mxfp4) {
    std::uint8_t exponents[2];
    load_group_exponents(row, k, count, exponents);
    Run<format> run;
    load_mxfp4(codes, exponents[0], exponents[1], run.lanes);
    return run;
  } else {
    Run<format> run = decode_run<format>(codes, seen);
    if constexpr (format == WeightFormat::Fp8E8m0) {
      const Lanes scale = broadcast(kE8m0[block_exponent(row, k)] * kE4m3Unit);
      for (Lanes& lanes : run.lanes) lanes = lanes * scale;
    }
    return run;
  }
}

/// A run of x: `count` columns of a row as it is, or as they are packed.
template <WeightFormat format>
inline Run<format> load_inputs(const Element* address, std::int64_t count) {
  Run<format> run;
  for (int i = 0; i < kRunLanes<format>; ++i) {
    const std::int64_t rest = count - kFactorColumns * i;
    run.lanes[i] = kPacked<format> || rest >= 16 ? load(address + kFactorColumns * i)
                   : rest > 0                    ? load_some(address + kFactorColumns * i, rest)
                                                 : zero_lanes();
  }
  return run;
}

/// A run in a panel.
template <WeightFormat format>
inline void store_run(Element* address, const Run<format>& run) {
  for (int i = 0; i < kRunLanes<format>; ++i) store(address + kFactorColumns * i, run.lanes[i]);
}

/// Where column c of a run stands in it.
template <WeightFormat format>
constexpr std::int64_t place_in_run(std::int64_t c) {
  if (format != WeightFormat::Mxfp4) return c;
  const std::int64_t p = c / 4;
  return 16 * (c % 4) + (p / 4 == 1 || p / 4 == 2 ? p ^ 12 : p);
}

/// Columns [begin, begin + count) of a row as numbers, `begin` a multiple of 128.
template <WeightFormat format>
void decode_columns(WeightRow row, std::int64_t begin, std::int64_t count, float* out) {
  CodesSeen seen = no_codes_seen();
  for (std::int64_t done = 0; done < count; done += kRunColumns<format>) {
    const std::int64_t some = count - done < kRunColumns<format> ? count - done : kRunColumns<format>;
    Run<format> run = load_weights<format>(row, begin + done, some, seen);
    if constexpr (format == WeightFormat::Fp8) {
      const Lanes multiplier = broadcast(multiplier_of(row, begin + done));
      for (Lanes& lanes : run.lanes) lanes = lanes * multiplier;
    }
    float numbers[kRunColumns<format>];
    const bool in_place = some == kRunColumns<format> && !kPacked<format>;
    store_run<format>(in_place ? out + done : numbers, run);
    if (in_place) continue;
    for (std::int64_t c = 0; c < some; ++c) out[done + c] = numbers[place_in_run<format>(c)];
  }
  if (!any_nan(seen)) return;
  for (std::int64_t i = 0; i < count; ++i) {  // only e4m3 has such codes
    if ((std::to_integer<unsigned>(row.codes[begin + i]) & 0x7F) == 0x7F) out[i] = std::numeric_limits<float>::quiet_NaN();
  }
}

/// Four floats: code of the compilers for any processor.
using Quad = float __attribute__((vector_size(16)));

/// The columns `from` of a row in the order of a run. MXFP4: quads of neighbours, four at a time, with rows and columns exchanged.
template <WeightFormat format>
inline void pack_run(const float* from, Element* run) {
  static_assert(format == WeightFormat::Mxfp4);
  for (std::int64_t quad = 0; quad < 4; ++quad) {
    Quad rows[4];
    std::memcpy(rows, from + 16 * quad, sizeof(rows));
    const Quad low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
    const Quad low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
    const Quad high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
    const Quad high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
    const Quad columns[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5), __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                             __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                             __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
    for (std::int64_t step = 0; step < 4; ++step)
      std::memcpy(run + place_in_run<format>(16 * quad + step), &columns[step], sizeof(Quad));
  }
}

/// Calls body.template operator()<format>() for a format that these factors serve.
template <class Body>
inline void with_product_format(WeightFormat format, Body body) {
  with_format(format, body);
}

}  // namespace
}  // namespace calandra
