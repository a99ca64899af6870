// Products with stored weights: values, the documented order, and independence from neighbours, ranges and instruction sets.

#include "cases.h"
#include "implementations.h"
#include "kernels/quantize.h"
#include "support/golden.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace calandra {
namespace {

std::vector<float> multiply(const Kernels& kernels, const WeightMatrix& w, const Guarded<float>& x, std::int64_t rows) {
  Guarded<float> y(static_cast<std::size_t>(rows * w.rows));
  kernels.matmul(w, rows_of(x, rows), {y.data(), rows, w.rows, w.rows}, 0, w.rows);
  return y.copy();
}

/// |y - x W^T| against a bound from the number of roundings and the size of the terms.
void expect_product(std::span<const float> y, const StoredWeight& w, const Guarded<float>& x, std::int64_t rows) {
  const std::int64_t cols = w.view.cols;
  const double roundings = static_cast<double>(cols) / 16 + static_cast<double>(cols) / 128 + 16;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t n = 0; n < w.view.rows; ++n) {
      double sum = 0;
      double size = 0;
      for (std::int64_t k = 0; k < cols; ++k) {
        const double term = w.at(n, k) * static_cast<double>(x[static_cast<std::size_t>(r * cols + k)]);
        sum += term;
        size += std::fabs(term);
      }
      const float actual = y[static_cast<std::size_t>(r * w.view.rows + n)];
      ASSERT_LE(std::fabs(static_cast<double>(actual) - sum), roundings * 0x1p-24 * size)
          << "row " << r << " output " << n << " of " << sum;
    }
  }
}

std::vector<MatmulCase> ragged_cases() {
  std::vector<MatmulCase> cases;
  for (const WeightFormat format : kAllFormats) {
    if (format == WeightFormat::Mxfp4) {
      for (const std::int64_t cols : {32, 96, 160, 288}) cases.push_back({format, 3, 11, cols, 5, 1});
      cases.push_back({format, 2, 6, 2048, 3, 4});
    } else {
      for (const std::int64_t cols : {1, 15, 16, 17, 127, 128, 129, 192, 264, 391})
        cases.push_back({format, 3, 11, cols, 125, 1});
      cases.push_back({format, 2, 6, 2048, 120, 4});
    }
    for (std::int64_t rows = 0; rows <= 9; ++rows) cases.push_back({format, rows, 7, 160, 122, 1});
  }
  return cases;
}

TEST(Matmul, EveryFormatAndRaggedShapeMatchesFloat64) {
  Random random(1);
  for (const MatmulCase& c : ragged_cases()) {
    const StoredWeight w = make_weight(random, c);
    const Guarded<float> x(bf16_values(random, c.rows * c.cols));
    for (const Implementation& implementation : implementations()) {
      SCOPED_TRACE(implementation.name + ": " + c.name());
      expect_product(multiply(*implementation.kernels, w.view, x, c.rows), w, x, c.rows);
    }
  }
}

/// Column of a block of 128 that a lane takes in its `step`-th multiply-add.
std::int64_t column_of(WeightFormat format, std::int64_t step, std::int64_t lane) {
  if (format != WeightFormat::Mxfp4) return 16 * step + lane;
  constexpr std::int64_t kPlaces[16] = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15};
  return step / 4 * 64 + 4 * kPlaces[lane] + step % 4;
}

/// The same of products of bf16 pairs: a lane holds two neighbours of a register of 32 numbers, and takes the upper one first.
std::int64_t paired_column_of(WeightFormat format, std::int64_t step, std::int64_t lane) {
  const std::int64_t number = 2 * lane + 1 - step % 2, quarter = number / 8, at = number % 8, reg = step / 2;
  switch (format) {
    case WeightFormat::Fp8:
    case WeightFormat::Fp8E8m0: return 64 * (reg / 2) + 16 * quarter + 8 * (reg % 2) + at;
    case WeightFormat::Mxfp4: return 32 * quarter + 16 * (reg % 2) + 2 * at + reg / 2;
    default: return 32 * reg + number;
  }
}

bool multiplies_pairs(const Kernels& kernels, WeightFormat format) {
  return kernels.isa == Isa::Avx512Bf16 && format != WeightFormat::F32 && format != WeightFormat::F16;
}

/// One output in the order of docs/numerics.md, one lane after the other. Codes and scales are taken from the tensor room.
float documented_order(const StoredWeight& w, std::span<const float> x, std::int64_t n, bool pairs) {
  float total = 0;
  for (int shard = 0; shard < w.view.shards; ++shard) {
    const std::int64_t begin = w.view.cols / w.view.shards * shard;
    const std::int64_t end = begin + w.view.cols / w.view.shards;
    float running[16] = {};
    for (std::int64_t block = begin; block < end; block += 128) {
      float own[16] = {};
      float* lanes = w.view.format == WeightFormat::Fp8 ? own : running;
      float scale = 1;
      if (w.view.format == WeightFormat::Fp8) {
        const std::int64_t index = (w.view.first_row + n) / 128 * ceil_div(w.view.cols, 128) + block / 128;
        scale = load_unaligned<float>(w.view.scales + 4 * index);
      }
      for (std::int64_t step = 0; step < 8; ++step) {
        for (std::int64_t lane = 0; lane < 16; ++lane) {
          const std::int64_t k = block + (pairs ? paired_column_of : column_of)(w.view.format, step, lane);
          const bool there = k < end;
          const float weight = there ? static_cast<float>(w.at(n, k) / static_cast<double>(scale)) : 0.0f;
          lanes[lane] = std::fma(there ? x[static_cast<std::size_t>(k)] : 0.0f, weight, lanes[lane]);
        }
      }
      if (lanes == own) {
        for (int lane = 0; lane < 16; ++lane) running[lane] = std::fma(own[lane], scale, running[lane]);
      }
    }
    for (int half = 8; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) running[lane] += running[lane + half];
    }
    total = shard == 0 ? running[0] : total + running[0];
  }
  return total;
}

/// Every output of a case in that order.
std::vector<float> in_documented_order(const MatmulCase& c, const StoredWeight& w, const Guarded<float>& x, bool pairs) {
  std::vector<float> y;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    const auto row = x.span().subspan(static_cast<std::size_t>(r * c.cols), static_cast<std::size_t>(c.cols));
    for (std::int64_t n = 0; n < c.outputs; ++n) y.push_back(documented_order(w, row, n, pairs));
  }
  return y;
}

TEST(Matmul, FollowsTheDocumentedOrderBitForBit) {
  Random random(2);
  for (const MatmulCase& c : ragged_cases()) {
    const StoredWeight w = make_weight(random, c);
    const Guarded<float> x(bf16_values(random, c.rows * c.cols));
    const std::vector<float> expected[2] = {in_documented_order(c, w, x, false), in_documented_order(c, w, x, true)};
    for (const Implementation& implementation : implementations()) {
      expect_same_bits(multiply(*implementation.kernels, w.view, x, c.rows),
                       expected[multiplies_pairs(*implementation.kernels, c.format) ? 1 : 0],
                       implementation.name + ": " + c.name());
    }
  }
}

TEST(Matmul, InstructionSetsAgreeBitForBitOnRandomShapes) {
  Random random(3);
  for (int round = 0; round < 60; ++round) {
    MatmulCase c;
    c.format = kAllFormats[static_cast<std::size_t>(round) % kAllFormats.size()];
    c.rows = uniform_int(random, 1, 40);
    c.outputs = uniform_int(random, 1, 40);
    c.cols = c.format == WeightFormat::Mxfp4 ? 32 * uniform_int(random, 1, 12) : uniform_int(random, 1, 400);
    c.first_row = uniform_int(random, 0, 130);
    const StoredWeight w = make_weight(random, c);
    const Guarded<float> x(bf16_values(random, c.rows * c.cols));
    std::vector<float> expected[2];  // of the first that multiplies one by one, or in pairs
    for (const Implementation& implementation : implementations()) {
      const std::vector<float> y = multiply(*implementation.kernels, w.view, x, c.rows);
      std::vector<float>& first = expected[multiplies_pairs(*implementation.kernels, c.format) ? 1 : 0];
      if (first.empty()) first = y;
      expect_same_bits(y, first, implementation.name + ": " + c.name());
    }
  }
}

TEST(Matmul, RowsPackedBeforeGiveTheSameBits) {
  Random random(12);
  for (const WeightFormat format : kAllFormats) {
    for (const std::int64_t rows : {1, 7, 19}) {
      const MatmulCase c = {format, rows, 21, 288, 0, 1};
      const StoredWeight w = make_weight(random, c);
      const Guarded<float> x(bf16_values(random, c.rows * c.cols));
      for (const Implementation& implementation : implementations()) {
        const std::int64_t row_bytes = implementation->packed_row_bytes(format, c.cols);
        if (row_bytes == 0) continue;
        Guarded<std::byte> packed(static_cast<std::size_t>(rows * row_bytes));
        implementation->pack(format, rows_of(x, rows), packed.data());
        Guarded<float> y(static_cast<std::size_t>(rows * c.outputs));
        implementation->matmul(w.view, Inputs(packed.data(), rows, c.cols, row_bytes), rows_of(y, rows), 0, c.outputs);
        expect_same_bits(y.span(), multiply(*implementation.kernels, w.view, x, rows), implementation.name + ": " + c.name());
      }
    }
  }
}

TEST(Matmul, ARowDependsNeitherOnItsNeighboursNorOnTheRangeOfOutputs) {
  Random random(4);
  for (const WeightFormat format : kAllFormats) {
    const MatmulCase c = {format, 11, 45, 288, 100, 1};
    const StoredWeight w = make_weight(random, c);
    const Guarded<float> x(bf16_values(random, c.rows * c.cols));
    for (const Implementation& implementation : implementations()) {
      const std::vector<float> all = multiply(*implementation.kernels, w.view, x, c.rows);
      Guarded<float> y(all.size());
      for (std::int64_t r = 0; r < c.rows;) {  // random slices of rows, random cuts of outputs
        const std::int64_t rows = uniform_int(random, 1, c.rows - r);
        for (std::int64_t begin = 0; begin < c.outputs;) {
          const std::int64_t end = uniform_int(random, begin + 1, c.outputs);
          implementation->matmul(w.view, rows_of(x, c.rows).slice(r, rows), rows_of(y, c.rows).slice(r, rows), begin, end);
          begin = end;
        }
        r += rows;
      }
      expect_same_bits(y.span(), all, implementation.name + ": " + c.name());
      for (std::int64_t n = 0; n < c.outputs; n += 7) {  // views of single weight rows
        Guarded<float> one(static_cast<std::size_t>(c.rows));
        implementation->matmul(w.view.slice(n, 1), rows_of(x, c.rows), rows_of(one, c.rows), 0, 1);
        for (std::int64_t r = 0; r < c.rows; ++r)
          ASSERT_EQ(one[static_cast<std::size_t>(r)], all[static_cast<std::size_t>(r * c.outputs + n)]);
      }
    }
  }
}

TEST(Matmul, OperandsMayLieAtAnyAddress) {
  Random random(5);
  for (const WeightFormat format : kAllFormats) {
    const MatmulCase c = {format, 2, 5, 96, 0, 1};
    const StoredWeight w = make_weight(random, c);
    const Guarded<float> x(bf16_values(random, c.rows * c.cols));
    std::vector<std::byte> data(w.data.size() + 1);
    std::vector<std::byte> scales(w.scales.size() + 1);
    std::ranges::copy(w.data.span(), data.begin() + 1);
    std::ranges::copy(w.scales.span(), scales.begin() + 1);
    WeightMatrix moved = w.view;
    moved.data = data.data() + 1;
    if (moved.scales != nullptr) moved.scales = scales.data() + 1;
    for (const Implementation& implementation : implementations()) {
      expect_same_bits(multiply(*implementation.kernels, moved, x, c.rows), multiply(*implementation.kernels, w.view, x, c.rows),
                       c.name());
    }
  }
}

TEST(Matmul, ShardsAreProductsOfTheirOwnAddedInOrder) {
  Random random(6);
  const MatmulCase c = {WeightFormat::BF16, 3, 9, 2048, 0, 4};
  const StoredWeight w = make_weight(random, c);
  const Guarded<float> x(bf16_values(random, c.rows * c.cols));
  for (const Implementation& implementation : implementations()) {
    std::vector<float> expected;
    for (std::int64_t shard = 0; shard < c.shards; ++shard) {
      WeightMatrix part = w.view;
      part.shards = 1;
      part.cols = c.cols / c.shards;
      part.data += 2 * part.cols * shard;
      Guarded<float> y(static_cast<std::size_t>(c.rows * c.outputs));
      implementation->matmul(part, rows_of(x, c.rows).columns(shard * part.cols, part.cols), rows_of(y, c.rows), 0, c.outputs);
      if (shard == 0) expected.assign(y.size(), 0.0f);
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = shard == 0 ? y[i] : expected[i] + y[i];
    }
    expect_same_bits(multiply(*implementation.kernels, w.view, x, c.rows), expected, implementation.name);
  }
}

TEST(Matmul, VirtualShardsKeepWholeUnitsAndAtLeast512Columns) {
  EXPECT_EQ(virtual_shards(8192, 64), 8);  // 3.1-flash o_proj
  EXPECT_EQ(virtual_shards(4096, 32), 8);  // 3.0-flash
  EXPECT_EQ(virtual_shards(2048, 16), 4);  // 3.0-tiny
  EXPECT_EQ(virtual_shards(1536, 12), 2);  // 12 heads in 4 would leave 384 columns
  EXPECT_EQ(virtual_shards(9216, 72), 8);
  EXPECT_EQ(virtual_shards(5120, 5), 1);  // an odd number of heads
  EXPECT_EQ(virtual_shards(1088, 2), 1);  // halves that are no whole blocks
  EXPECT_EQ(virtual_shards(512, 4), 1);
}

TEST(Matmul, TransposedMatchesFloat64InEveryFormatAndShape) {
  Random random(7);
  for (const WeightFormat format : kAllFormats) {
    for (const std::int64_t cols : {32, 128, 288, 301}) {
      if (format == WeightFormat::Mxfp4 && cols % 32 != 0) continue;
      for (std::int64_t rows = 0; rows <= 6; ++rows) {
        const MatmulCase c = {format, rows, 37, cols, 110, 1};
        const StoredWeight w = make_weight(random, c);
        const Guarded<float> x(normal_values(random, rows * c.outputs));
        std::vector<float> scalar;
        for (const Implementation& implementation : implementations()) {
          Guarded<float> y(static_cast<std::size_t>(rows * cols));
          implementation->matmul_transposed(w.view, rows_of(x, rows), {y.data(), rows, cols, cols}, 0,
                                            std::min<std::int64_t>(cols, 128));
          implementation->matmul_transposed(w.view, rows_of(x, rows), {y.data(), rows, cols, cols},
                                            std::min<std::int64_t>(cols, 128), cols);
          if (scalar.empty()) scalar = y.copy();
          expect_same_bits(y.span(), scalar, implementation.name + ": " + c.name());
          for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t k = 0; k < cols; ++k) {
              double sum = 0;
              double size = 0;
              for (std::int64_t n = 0; n < c.outputs; ++n) {
                const double term = w.at(n, k) * static_cast<double>(x[static_cast<std::size_t>(r * c.outputs + n)]);
                sum += term;
                size += std::fabs(term);
              }
              ASSERT_LE(std::fabs(static_cast<double>(y[static_cast<std::size_t>(r * cols + k)]) - sum), 39 * 0x1p-24 * size)
                  << c.name();
            }
          }
        }
      }
    }
  }
}

TEST(Matmul, DecodedRowsAreCodesTimesScalesRoundedOnce) {
  Random random(8);
  for (const WeightFormat format : kAllFormats) {
    const MatmulCase c = {format, 1, 9, format == WeightFormat::Mxfp4 ? 160 : 141, 123, 1};
    const StoredWeight w = make_weight(random, c);
    for (const Implementation& implementation : implementations()) {
      for (std::int64_t row = 0; row < c.outputs; ++row) {
        Guarded<float> out(static_cast<std::size_t>(c.cols));
        implementation->decode_row(w.view, row, out.span());
        for (std::int64_t k = 0; k < c.cols; ++k)
          ASSERT_EQ(out[static_cast<std::size_t>(k)], static_cast<float>(w.at(row, k))) << c.name();
      }
    }
  }
}

/// decode_row of one row of `codes` whose every scale is `scale` (1 for plain formats).
std::vector<float> decode(const Kernels& kernels, WeightFormat format, std::span<const std::byte> codes, std::int64_t cols,
                          std::span<const std::byte> scales) {
  Guarded<float> out(static_cast<std::size_t>(cols));
  kernels.decode_row({format, 1, cols, codes.data(), scales.empty() ? nullptr : scales.data(), cols, 0, 1}, 0, out.span());
  return out.copy();
}

template <class Code>
std::vector<std::byte> all_codes(std::size_t count) {
  std::vector<std::byte> bytes(count * sizeof(Code));
  for (std::size_t i = 0; i < count; ++i) {
    const auto code = static_cast<Code>(i);
    std::memcpy(bytes.data() + i * sizeof(Code), &code, sizeof(Code));
  }
  return bytes;
}

void expect_same_numbers(std::span<const float> actual, std::span<const float> expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(actual[i])) << what << " code " << i;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i]), std::bit_cast<std::uint32_t>(expected[i])) << what << " code " << i;
    }
  }
}

TEST(Matmul, EveryCodeOfEveryFormatDecodesToItsNumber) {
  const GoldenTensors golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  std::vector<float> bf16;
  std::vector<float> f16;
  for (unsigned code = 0; code < 65536; ++code) {
    bf16.push_back(bf16_decode(static_cast<std::uint16_t>(code)));
    f16.push_back(f16_decode(static_cast<std::uint16_t>(code)));
  }
  const std::vector<float> ones = {1.0f, 1.0f};
  const auto unit_scales = std::as_bytes(std::span(ones));
  const std::vector<std::byte> unit_exponents(2, std::byte{127});
  std::vector<std::byte> pairs;  // all sixteen e2m1 codes, even column first
  for (unsigned i = 0; i < 16; ++i) pairs.push_back(static_cast<std::byte>((2 * i % 16) | (2 * i + 1) % 16 << 4));
  std::vector<float> e2m1 = golden.floats("e2m1_decode/values");
  const std::vector<float> once = e2m1;
  e2m1.insert(e2m1.end(), once.begin(), once.end());
  for (const Implementation& implementation : implementations()) {
    const Kernels& kernels = *implementation.kernels;
    expect_same_numbers(decode(kernels, WeightFormat::BF16, all_codes<std::uint16_t>(65536), 65536, {}), bf16,
                        implementation.name + " bf16");
    expect_same_numbers(decode(kernels, WeightFormat::F16, all_codes<std::uint16_t>(65536), 65536, {}), f16,
                        implementation.name + " f16");
    const std::vector<float> e4m3 = golden.floats("e4m3_decode/values");
    expect_same_numbers(decode(kernels, WeightFormat::Fp8, all_codes<std::uint8_t>(256), 256, unit_scales), e4m3,
                        implementation.name + " e4m3");
    expect_same_numbers(decode(kernels, WeightFormat::Fp8E8m0, all_codes<std::uint8_t>(256), 256, unit_exponents), e4m3,
                        implementation.name + " e4m3");
    expect_same_numbers(decode(kernels, WeightFormat::Mxfp4, pairs, 32, unit_exponents), e2m1, implementation.name + " e2m1");
    // Scale byte after scale byte, on codes that all mean 1.
    std::vector<float> e8m0;
    for (const float scale : golden.floats("e8m0_decode/values")) e8m0.insert(e8m0.end(), 32, scale);
    const std::vector<std::byte> one_codes(256 * 16, std::byte{0x22});
    expect_same_numbers(decode(kernels, WeightFormat::Mxfp4, one_codes, 256 * 32, all_codes<std::uint8_t>(256)), e8m0,
                        implementation.name + " e8m0");
  }
}

TEST(Matmul, ANotANumberCodeOrScaleReachesEveryOutputOfItsRow) {
  for (const Implementation& implementation : implementations()) {
    std::vector<std::byte> codes(2 * 130, std::byte{0x38});  // ones
    std::vector<std::byte> scales(2, std::byte{127});
    const Guarded<float> x(std::vector<float>(130, 1.0f));
    WeightMatrix w = {WeightFormat::Fp8E8m0, 2, 130, codes.data(), scales.data(), 130, 0, 1};
    codes[3] = std::byte{0x7F};
    EXPECT_TRUE(std::isnan(multiply(*implementation.kernels, w, x, 1)[0])) << implementation.name;
    EXPECT_EQ(multiply(*implementation.kernels, w, x, 1)[1], 130.0f) << implementation.name;
    codes[3] = std::byte{0x38};
    scales[1] = std::byte{255};
    EXPECT_TRUE(std::isnan(multiply(*implementation.kernels, w, x, 1)[1])) << implementation.name;
  }
}

// ---------------------------------------------------------------------------------------------- golden cases

/// A two-dimensional golden tensor and its scales as a weight.
WeightMatrix golden_weight(const GoldenTensors& golden, WeightFormat format, std::string_view codes, std::string_view scales) {
  const Shape& shape = golden.shape(codes);
  const std::int64_t cols = format == WeightFormat::Mxfp4 ? 2 * shape[1] : shape[1];
  return {format, shape[0], cols, golden.bytes(codes).data(), golden.bytes(scales).data(), cols, 0, 1};
}

TEST(MatmulGolden, Fp8Linear) {
  const GoldenTensors golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  const WeightMatrix w = golden_weight(golden, WeightFormat::Fp8, "fp8_linear/codes", "fp8_linear/scales");
  const Guarded<float> x(golden.floats("fp8_linear/x"));
  for (const Implementation& implementation : fp32_implementations()) {
    SCOPED_TRACE(implementation.name);
    expect_close_to_largest(multiply(*implementation.kernels, w, x, 3), golden.floats("fp8_linear/y"), 1e-5, "y");
    for (const std::int64_t row : {0, 135}) {
      std::vector<float> out(static_cast<std::size_t>(w.cols));
      implementation->decode_row(w, row, out);
      expect_close_to_largest(out, golden.floats("fp8_linear/w_row_" + std::to_string(row)), 1e-7, "decoded row");
    }
  }
}

TEST(MatmulGolden, Fp8LinearWithFp8Activations) {
  const GoldenTensors golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  const WeightMatrix w = golden_weight(golden, WeightFormat::Fp8, "fp8_linear/codes", "fp8_linear/scales");
  for (const bool power_of_two : {false, true}) {
    const std::string suffix = power_of_two ? "_ue8m0" : "";
    Guarded<float> x(golden.floats("fp8_linear/x"));
    std::vector<std::int64_t> codes;
    std::vector<float> scales;
    for (std::int64_t r = 0; r < 3; ++r) {
      std::vector<std::uint8_t> row_codes(264);
      std::vector<float> row_scales(3);
      quantize_activations_fp8(x.span().subspan(static_cast<std::size_t>(r) * 264, 264), power_of_two, row_codes, row_scales);
      codes.insert(codes.end(), row_codes.begin(), row_codes.end());
      scales.insert(scales.end(), row_scales.begin(), row_scales.end());
    }
    EXPECT_EQ(codes, golden.ints("fp8_linear/x_codes" + suffix));
    EXPECT_EQ(scales, golden.floats("fp8_linear/x_scales" + suffix));
    for (const Implementation& implementation : fp32_implementations()) {
      expect_close_to_largest(multiply(*implementation.kernels, w, x, 3), golden.floats("fp8_linear/y_fp8" + suffix), 1e-5,
                              implementation.name + suffix);
    }
  }
}

TEST(MatmulGolden, Fp8LinearWithE8m0Scales) {
  const GoldenTensors golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  const WeightMatrix w = golden_weight(golden, WeightFormat::Fp8E8m0, "fp8_linear/codes", "fp8_linear_e8m0/scales");
  const Guarded<float> x(golden.floats("fp8_linear_e8m0/x"));
  for (const Implementation& implementation : fp32_implementations()) {
    expect_close_to_largest(multiply(*implementation.kernels, w, x, 3), golden.floats("fp8_linear_e8m0/y"), 1e-5,
                            implementation.name);
  }
}

TEST(MatmulGolden, Mxfp4Linear) {
  const GoldenTensors golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  const WeightMatrix w = golden_weight(golden, WeightFormat::Mxfp4, "mxfp4_linear/packed", "mxfp4_linear/scales");
  const Guarded<float> x(golden.floats("mxfp4_linear/x"));
  const std::vector<float> values = golden.floats("mxfp4_linear/w");
  for (const Implementation& implementation : fp32_implementations()) {
    SCOPED_TRACE(implementation.name);
    expect_close_to_largest(multiply(*implementation.kernels, w.slice(1, w.rows - 1), x, 3), golden.floats("mxfp4_linear/y"),
                            1e-5, "y");
    std::vector<float> decoded(values.size());
    for (std::int64_t row = 0; row < w.rows; ++row) {
      implementation->decode_row(
          w, row, std::span(decoded).subspan(static_cast<std::size_t>(row * w.cols), static_cast<std::size_t>(w.cols)));
    }
    expect_same_bits(decoded, values, "decoded rows");
  }
}

// ------------------------------------------------------------------------- faults that users of other engines met

TEST(Matmul, ScalesOfBlocksAreNotTransposed) {
  Random random(131);
  for (const WeightFormat format : {WeightFormat::Fp8, WeightFormat::Fp8E8m0}) {
    const MatmulCase c = {format, 2, 130, 391, 0, 1};  // a 2 x 4 grid of very different scales
    const StoredWeight w = make_weight(random, c);
    const Guarded<float> x(bf16_values(random, c.rows * c.cols));
    for (const Implementation& implementation : implementations()) {
      SCOPED_TRACE(implementation.name + ": " + c.name());
      expect_product(multiply(*implementation.kernels, w.view, x, c.rows), w, x, c.rows);
    }
  }
}

TEST(Matmul, ActivationScalesBelongToTheirRowForAnyNumberOfRows) {
  Random random(133);
  const MatmulCase c = {WeightFormat::Fp8, 17, 20, 264, 0, 1};
  const StoredWeight w = make_weight(random, c);
  std::vector<float> values = bf16_values(random, c.rows * c.cols);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= std::ldexp(1.0f, static_cast<int>(i / 100 % 23) - 11);
  for (std::int64_t r = 0; r < c.rows; ++r) {
    quantize_activations_fp8(std::span(values).subspan(static_cast<std::size_t>(r * c.cols), static_cast<std::size_t>(c.cols)),
                             false);
  }
  for (const std::int64_t rows : {1, 2, 17}) {
    const Guarded<float> x(std::vector<float>(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rows * c.cols)));
    for (const Implementation& implementation : fp32_implementations()) {
      SCOPED_TRACE(implementation.name + " rows " + std::to_string(rows));
      expect_product(multiply(*implementation.kernels, w.view, x, rows), w, x, rows);
    }
  }
}

TEST(Matmul, LastBlocksMayBePartialInBothDirections) {
  Random random(134);
  for (const MatmulCase& c :
       {MatmulCase{WeightFormat::Fp8, 2, 64, 192, 512, 1}, MatmulCase{WeightFormat::Fp8E8m0, 2, 64, 192, 512, 1},
        MatmulCase{WeightFormat::Fp8, 1, 1, 1, 0, 1}}) {  // the tail of [576, 192], and a scale [1, 1]
    const StoredWeight w = make_weight(random, c);
    const Guarded<float> x(bf16_values(random, c.rows * c.cols));
    for (const Implementation& implementation : implementations()) {
      SCOPED_TRACE(implementation.name + ": " + c.name());
      expect_product(multiply(*implementation.kernels, w.view, x, c.rows), w, x, c.rows);
    }
  }
}

TEST(Matmul, TheEvenColumnOfAnMxfp4PairIsInTheLowBits) {
  std::vector<std::byte> pairs(16, std::byte{0});
  pairs[0] = std::byte{0x72};   // columns 0 and 1: 1 and 6
  pairs[15] = std::byte{0x9F};  // columns 30 and 31: -6 and -0.5
  const std::vector<std::byte> scale = {std::byte{128}};
  std::vector<float> expected(32, 0.0f);
  expected[0] = 2;
  expected[1] = 12;
  expected[30] = -12;
  expected[31] = -1;
  for (const Implementation& implementation : implementations()) {
    EXPECT_EQ(decode(*implementation.kernels, WeightFormat::Mxfp4, pairs, 32, scale), expected) << implementation.name;
  }
}

TEST(Matmul, EveryScaleIsReadFromItsOwnPlace) {
  Random random(138);
  for (const MatmulCase& c :
       {MatmulCase{WeightFormat::Mxfp4, 1, 24, 416, 3, 1}, MatmulCase{WeightFormat::Fp8E8m0, 1, 160, 416, 100, 1}}) {
    const StoredWeight w = make_weight(random, c);  // neighbouring scales always differ, by up to 2^12
    for (const Implementation& implementation : fp32_implementations()) {
      for (std::int64_t row = 0; row < c.outputs; ++row) {
        std::vector<float> out(static_cast<std::size_t>(c.cols));
        implementation->decode_row(w.view, row, out);
        for (std::int64_t k = 0; k < c.cols; ++k)
          ASSERT_EQ(out[static_cast<std::size_t>(k)], static_cast<float>(w.at(row, k))) << c.name();
      }
    }
  }
}

TEST(Matmul, ProductsOfAReleasedModelMatchFloat64) {
  Random random(139);
  for (MatmulCase c : released_matmuls()) {
    for (const std::int64_t rows : {1, 3}) {
      c.rows = rows;
      c.outputs = 40;  // a sample, across the border of two blocks of scales
      c.first_row = 100;
      const StoredWeight w = make_weight(random, c);
      const Guarded<float> x(bf16_values(random, c.rows * c.cols));
      for (const Implementation& implementation : fp32_implementations()) {
        SCOPED_TRACE(implementation.name + ": " + c.name());
        expect_product(multiply(*implementation.kernels, w.view, x, c.rows), w, x, c.rows);
      }
    }
  }
}

TEST(Matmul, DeclaredBytesAreThoseOfTheOperands) {
  Random random(140);
  for (MatmulCase c : ragged_cases()) {
    c.first_row = 0;
    const StoredWeight w = make_weight(random, c);
    EXPECT_EQ(c.weight_bytes(), std::ssize(w.data.span()) + std::ssize(w.scales.span())) << c.name();
  }
}

}  // namespace
}  // namespace calandra
