#pragma once
// Kernel cases: small structs that say what a kernel is given, what that moves and what it does. The same declarations make the random
// operands, in guarded memory, of the tests beside this file and of the benchmarks in bench/.

#include "base/integer.h"
#include "guarded.h"
#include "kernels/kernels.h"
#include "tensor/element.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

using Random = std::mt19937_64;

inline float uniform(Random& random, float low, float high) { return std::uniform_real_distribution<float>(low, high)(random); }
inline std::int64_t uniform_int(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

inline std::vector<float> normal_values(Random& random, std::int64_t count, float deviation = 1.0f) {
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}
/// As activations are when they enter a product.
inline std::vector<float> bf16_values(Random& random, std::int64_t count) {
  std::vector<float> values = normal_values(random, count);
  for (float& value : values) value = bf16_decode(bf16_encode(value));
  return values;
}
inline std::vector<float> uniform_values(Random& random, std::int64_t count, float low, float high) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = uniform(random, low, high);
  return values;
}

/// Rows of a guarded buffer without gaps.
inline ConstRows rows_of(const Guarded<float>& buffer, std::int64_t rows) {
  const std::int64_t cols = rows == 0 ? 0 : static_cast<std::int64_t>(buffer.size()) / rows;
  return {buffer.data(), rows, cols, cols};
}
inline Rows rows_of(Guarded<float>& buffer, std::int64_t rows) {
  const std::int64_t cols = rows == 0 ? 0 : static_cast<std::int64_t>(buffer.size()) / rows;
  return {buffer.data(), rows, cols, cols};
}

inline constexpr std::array kAllFormats = {WeightFormat::F32, WeightFormat::BF16,    WeightFormat::F16,
                                           WeightFormat::Fp8, WeightFormat::Fp8E8m0, WeightFormat::Mxfp4};

inline std::string_view name_of(WeightFormat format) {
  constexpr std::string_view kNames[] = {"F32", "BF16", "F16", "Fp8", "Fp8E8m0", "Mxfp4"};
  return kNames[static_cast<std::size_t>(format)];
}

/// Bytes of a stored weight with its scales.
inline std::int64_t stored_bytes(WeightFormat format, std::int64_t rows, std::int64_t cols) {
  const std::int64_t elements = rows * cols, blocks = ceil_div(rows, kScaleBlock) * ceil_div(cols, kScaleBlock);
  switch (format) {
    case WeightFormat::F32: return 4 * elements;
    case WeightFormat::BF16:
    case WeightFormat::F16: return 2 * elements;
    case WeightFormat::Fp8: return elements + 4 * blocks;
    case WeightFormat::Fp8E8m0: return elements + blocks;
    case WeightFormat::Mxfp4: return elements / 2 + rows * ceil_div(cols, kMxGroup);
  }
  return 0;
}

/// A matrix product: x [rows, cols] times a weight [outputs, cols] that is cut from row `first_row` of a stored tensor.
struct MatmulCase {
  WeightFormat format = WeightFormat::F32;
  std::int64_t rows = 1;
  std::int64_t outputs = 1;
  std::int64_t cols = 1;
  std::int64_t first_row = 0;
  int shards = 1;

  std::string name() const {
    return std::string(name_of(format)) + " rows " + std::to_string(rows) + " outputs " + std::to_string(outputs) + " cols " +
           std::to_string(cols) + " first " + std::to_string(first_row) + " shards " + std::to_string(shards);
  }
  /// Of the weight, scales included: what a product from memory waits for.
  std::int64_t weight_bytes() const { return stored_bytes(format, outputs, cols); }
  std::int64_t operations() const { return 2 * rows * outputs * cols; }
};

/// The products of Ling-3.0-tiny in every format that its releases store them in, for one row. Benchmarks time them with other row
/// counts too; tests check them with fewer outputs, which are independent.
inline std::vector<MatmulCase> released_matmuls() {
  std::vector<MatmulCase> cases;
  for (const WeightFormat format : {WeightFormat::BF16, WeightFormat::Fp8, WeightFormat::Fp8E8m0}) {
    cases.push_back({format, 1, 2048, 1536, 0, 1});  // KDA q, k, v, decay, gate
    cases.push_back({format, 1, 1536, 2048, 0, 4});  // its output, in virtual shards
    cases.push_back({format, 1, 576, 1536, 0, 1});   // MLA latent and rotated key
    cases.push_back({format, 1, 3072, 256, 0, 1});   // its query
  }
  for (const WeightFormat format : {WeightFormat::BF16, WeightFormat::Fp8, WeightFormat::Fp8E8m0, WeightFormat::Mxfp4}) {
    cases.push_back({format, 1, 512, 1536, 0, 1});  // expert gate and up
    cases.push_back({format, 1, 1536, 512, 0, 1});  // expert down
  }
  return cases;
}

/// Bytes of a stored weight, and what they mean.
struct StoredWeight {
  Guarded<std::byte> data;
  Guarded<std::byte> scales;
  WeightMatrix view;
  std::vector<double> values;  // [view.rows, view.cols], exact: code times scale

  double at(std::int64_t row, std::int64_t col) const { return values[static_cast<std::size_t>(row * view.cols + col)]; }
};

/// Random codes without NaN; every scale differs from its neighbours by a factor of at least 2 in either direction.
inline StoredWeight make_weight(Random& random, const MatmulCase& c) {
  const std::int64_t stored_rows = c.first_row + c.outputs;
  const std::int64_t elements = stored_rows * c.cols;
  const auto exponent_of = [](std::int64_t row, std::int64_t col) { return static_cast<int>((row * 7 + col * 5) % 13) - 9; };
  std::vector<double> codes(static_cast<std::size_t>(elements));
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  const auto append = [](std::vector<std::byte>& to, const auto& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    to.insert(to.end(), bytes, bytes + sizeof(value));
  };
  if (c.format == WeightFormat::Mxfp4) data.resize(static_cast<std::size_t>(elements / 2));
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < elements; ++i) {
    double& code = codes[static_cast<std::size_t>(i)];
    switch (c.format) {
      case WeightFormat::F32: {
        const float value = normal(random);
        append(data, value);
        code = static_cast<double>(value);
        break;
      }
      case WeightFormat::BF16: {
        const std::uint16_t bits = bf16_encode(normal(random));
        append(data, bits);
        code = static_cast<double>(bf16_decode(bits));
        break;
      }
      case WeightFormat::F16: {
        const auto bits = static_cast<std::uint16_t>(uniform_int(random, 0, 0x3FFF) | uniform_int(random, 0, 1) << 15);
        append(data, bits);
        code = static_cast<double>(f16_decode(bits));
        break;
      }
      case WeightFormat::Fp8:
      case WeightFormat::Fp8E8m0: {
        const auto byte = static_cast<std::uint8_t>(uniform_int(random, 0, 0x7E) | uniform_int(random, 0, 1) << 7);
        append(data, byte);
        code = static_cast<double>(e4m3_decode(byte));
        break;
      }
      case WeightFormat::Mxfp4: {
        const auto nibble = static_cast<std::uint8_t>(uniform_int(random, 0, 15));
        data[static_cast<std::size_t>(i / 2)] |= static_cast<std::byte>(nibble << (i % 2 * 4));
        code = static_cast<double>(e2m1_decode(nibble));
        break;
      }
    }
  }

  const bool mx = c.format == WeightFormat::Mxfp4;
  const bool fp8 = c.format == WeightFormat::Fp8 || c.format == WeightFormat::Fp8E8m0;
  const std::int64_t block_rows = mx ? 1 : kScaleBlock;
  const std::int64_t block_cols = mx ? kMxGroup : kScaleBlock;
  std::vector<double> factors;
  if (mx || fp8) {
    for (std::int64_t row = 0; row < ceil_div(stored_rows, block_rows); ++row) {
      for (std::int64_t col = 0; col < ceil_div(c.cols, block_cols); ++col) {
        const int exponent = exponent_of(row, col);
        if (c.format == WeightFormat::Fp8) {
          const float scale = std::ldexp(uniform(random, 1.0f, 1.4f), exponent);
          append(scales, scale);
          factors.push_back(static_cast<double>(scale));
        } else {
          append(scales, static_cast<std::uint8_t>(exponent + 127));
          factors.push_back(std::ldexp(1.0, exponent));
        }
      }
    }
  }

  StoredWeight weight{Guarded<std::byte>(data), Guarded<std::byte>(scales), {}, {}};
  weight.view = {c.format, c.outputs,   c.cols,  weight.data.data(), scales.empty() ? nullptr : weight.scales.data(),
                 c.cols,   c.first_row, c.shards};
  for (std::int64_t row = c.first_row; row < stored_rows; ++row) {
    for (std::int64_t col = 0; col < c.cols; ++col) {
      const double factor =
          factors.empty() ? 1.0
                          : factors[static_cast<std::size_t>(row / block_rows * ceil_div(c.cols, block_cols) + col / block_cols)];
      weight.values.push_back(codes[static_cast<std::size_t>(row * c.cols + col)] * factor);
    }
  }
  return weight;
}

/// One head of KDA: q, k, decay, v beside each other in a row of [2K + K + V] floats a token, and its state [K, V].
struct KdaCase {
  std::int64_t tokens = 1;
  std::int64_t key_dim = 32;
  std::int64_t value_dim = 32;

  std::string name() const {
    return "tokens " + std::to_string(tokens) + " keys " + std::to_string(key_dim) + " values " + std::to_string(value_dim);
  }
  /// The state, read and written.
  std::int64_t state_bytes() const { return 2 * 4 * key_dim * value_dim; }
  std::int64_t operations() const { return 7 * tokens * key_dim * value_dim; }
};

/// A head of the released models: a decoded token, a short slice, a longer one.
inline constexpr std::array kReleasedKda = {KdaCase{1, 128, 128}, KdaCase{16, 128, 128}, KdaCase{128, 128, 128}};

struct KdaData {
  KdaCase shape;
  Guarded<float> rows;   // [tokens, 3K + V]: q | k | decay | v
  Guarded<float> beta;   // [tokens]
  Guarded<float> state;  // [K, V]
  Guarded<float> o;      // [tokens, V]

  std::int64_t stride() const { return 3 * shape.key_dim + shape.value_dim; }
  float* q(std::int64_t t) { return rows.data() + t * stride(); }
  float* k(std::int64_t t) { return q(t) + shape.key_dim; }
  float* decay(std::int64_t t) { return q(t) + 2 * shape.key_dim; }
  float* v(std::int64_t t) { return q(t) + 3 * shape.key_dim; }

  /// Tokens [begin, begin + count).
  KdaSteps steps(std::int64_t begin, std::int64_t count) {
    return {count,
            shape.key_dim,
            shape.value_dim,
            q(begin),
            k(begin),
            decay(begin),
            v(begin),
            stride(),
            beta.data() + begin,
            1,
            o.data() + begin * shape.value_dim,
            shape.value_dim};
  }
  KdaSteps steps() { return steps(0, shape.tokens); }

  KdaData clone() const {
    return {shape, Guarded<float>(rows.span()), Guarded<float>(beta.span()), Guarded<float>(state.span()),
            Guarded<float>(o.span())};
  }
};

/// Unit q (scaled by K^-1/2) and k, decays exp(-5 sigmoid(.)), beta in (0, 1), a state of deviation 0.5.
inline KdaData make_kda(Random& random, const KdaCase& c) {
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  KdaData data{c, Guarded<float>(size(c.tokens * (3 * c.key_dim + c.value_dim))),
               Guarded<float>(uniform_values(random, c.tokens, 0.05f, 0.95f)),
               Guarded<float>(normal_values(random, c.key_dim * c.value_dim, 0.5f)),
               Guarded<float>(size(c.tokens * c.value_dim))};
  const auto unit = [&](float* to, double length) {
    const std::vector<float> values = normal_values(random, c.key_dim);
    double squares = 1e-6;
    for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
    for (std::size_t i = 0; i < values.size(); ++i)
      to[i] = static_cast<float>(static_cast<double>(values[i]) * length / std::sqrt(squares));
  };
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    unit(data.q(t), 1.0 / std::sqrt(static_cast<double>(c.key_dim)));
    unit(data.k(t), 1.0);
    for (std::int64_t d = 0; d < c.key_dim; ++d)
      data.decay(t)[d] = std::exp(-5.0f / (1.0f + std::exp(uniform(random, -3.0f, 8.0f))));
    const std::vector<float> v = normal_values(random, c.value_dim);
    std::memcpy(data.v(t), v.data(), v.size() * sizeof(float));
  }
  return data;
}

/// A latent cache with rows of random values in guarded pages; pages hold no more rows than the cache has.
struct CacheCase {
  CacheType type = CacheType::F32;
  std::int64_t latent_dim = 32;
  std::int64_t rope_dim = 8;
  std::int64_t page_tokens = 64;
  std::int64_t positions = 1;

  std::int64_t width() const { return latent_dim + rope_dim; }
};

inline std::string_view name_of(CacheType type) {
  constexpr std::string_view kNames[] = {"F32", "BF16", "Fp8"};
  return kNames[static_cast<std::size_t>(type)];
}
inline constexpr std::array kAllCacheTypes = {CacheType::F32, CacheType::BF16, CacheType::Fp8};

/// The absorbed queries of one token against all rows of a cache.
struct MlaCase {
  CacheCase cache;
  std::int64_t heads = 1;

  std::string name() const {
    return std::string(name_of(cache.type)) + " heads " + std::to_string(heads) + " positions " + std::to_string(cache.positions);
  }
  std::int64_t latent_bytes() const { return cache.positions * cache_row_bytes(cache.type, cache.width()); }
  std::int64_t operations() const { return 2 * heads * cache.positions * (cache.width() + cache.latent_dim); }
};

/// Eight heads of the released models: inside one block of positions, at its end, and over some blocks.
inline constexpr std::array kReleasedMla = {
    MlaCase{{CacheType::BF16, 512, 64, 64, 100}, 8}, MlaCase{{CacheType::BF16, 512, 64, 64, 512}, 8},
    MlaCase{{CacheType::BF16, 512, 64, 64, 2000}, 8}, MlaCase{{CacheType::Fp8, 512, 64, 64, 2000}, 8}};

struct CacheData {
  std::vector<Guarded<std::byte>> pages;
  std::vector<const std::byte*> addresses;
  std::vector<double> values;  // [positions, C + R] as the cache holds them
  LatentRows rows;
};

inline CacheData make_cache(Random& random, const CacheCase& c) {
  const std::int64_t width = c.width();
  const auto row_bytes = static_cast<std::size_t>(cache_row_bytes(c.type, width));
  CacheData cache;
  for (std::int64_t position = 0; position < c.positions; ++position) {
    if (position % c.page_tokens == 0) {
      const std::int64_t held = std::min(c.page_tokens, c.positions - position);
      cache.pages.emplace_back(static_cast<std::size_t>(held) * row_bytes);
      cache.addresses.push_back(cache.pages.back().data());
    }
    std::byte* row = cache.pages.back().data() + static_cast<std::size_t>(position % c.page_tokens) * row_bytes;
    const std::vector<float> values = normal_values(random, width);
    const float scale = std::ldexp(uniform(random, 1.0f, 2.0f), static_cast<int>(position % 5) - 8);  // unlike the neighbours'
    if (c.type == CacheType::Fp8) std::memcpy(row + width, &scale, sizeof(scale));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (c.type == CacheType::F32) {
        std::memcpy(row + 4 * i, &values[i], 4);
        cache.values.push_back(static_cast<double>(values[i]));
      } else if (c.type == CacheType::BF16) {
        const std::uint16_t bits = bf16_encode(values[i]);
        std::memcpy(row + 2 * i, &bits, 2);
        cache.values.push_back(static_cast<double>(bf16_decode(bits)));
      } else {
        const std::uint8_t code = e4m3_encode(values[i] / scale);
        row[i] = static_cast<std::byte>(code);
        cache.values.push_back(static_cast<double>(e4m3_decode(code)) * static_cast<double>(scale));
      }
    }
  }
  cache.rows = {c.type, c.latent_dim, c.rope_dim, c.page_tokens, cache.addresses};
  return cache;
}

}  // namespace calandra
