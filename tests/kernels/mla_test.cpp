// Absorbed attention over the latent cache: golden data, a float64 softmax around block borders, unwritten rows.

#include "cases.h"
#include "implementations.h"
#include "support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace calandra {
namespace {

/// Of all tokens in q, the first of which sees `count` rows.
std::vector<float> attend(const Kernels& kernels, const Guarded<float>& q, std::int64_t heads, const LatentRows& cache,
                          std::int64_t count, float scale) {
  const auto tokens = static_cast<std::int64_t>(q.size()) / (heads * (cache.latent_dim + cache.rope_dim));
  Guarded<float> out(static_cast<std::size_t>(tokens * heads * cache.latent_dim));
  kernels.mla_attend({tokens, heads, q.data(), heads * (cache.latent_dim + cache.rope_dim), out.data(), heads * cache.latent_dim},
                     cache, count, scale);
  return out.copy();
}

std::vector<float> reference(const CacheData& cache, const Guarded<float>& q, std::int64_t heads, std::int64_t count,
                             float scale) {
  const auto latent = static_cast<std::size_t>(cache.rows.latent_dim);
  const auto width = latent + static_cast<std::size_t>(cache.rows.rope_dim);
  std::vector<float> out;
  for (std::size_t h = 0; h < static_cast<std::size_t>(heads); ++h) {
    std::vector<double> scores;
    double maximum = -std::numeric_limits<double>::infinity();
    for (std::size_t p = 0; p < static_cast<std::size_t>(count); ++p) {
      double dot = 0;
      for (std::size_t i = 0; i < width; ++i) dot += static_cast<double>(q[h * width + i]) * cache.values[p * width + i];
      scores.push_back(dot * static_cast<double>(scale));
      maximum = std::max(maximum, scores.back());
    }
    double sum = 0;
    std::vector<double> context(latent);
    for (std::size_t p = 0; p < scores.size(); ++p) {
      const double weight = std::exp(scores[p] - maximum);
      sum += weight;
      for (std::size_t i = 0; i < latent; ++i) context[i] += weight * cache.values[p * width + i];
    }
    for (const double value : context) out.push_back(static_cast<float>(value / sum));
  }
  return out;
}

TEST(MlaGolden, PrefillResumeAndDecodeThroughTheAbsorbedForm) {
  const GoldenTensors golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  const std::vector<std::pair<std::string, float>> cases = {
      {"mla_prefill", 0.14433756729740643f}, {"mla_resume", 0.14433756729740643f}, {"mla_decode", 0.2041241452319315f}};
  for (const auto& [name, scale] : cases) {
    const Shape nope = golden.shape(name + "/q_nope");
    const std::int64_t tokens = nope[0];
    const std::int64_t heads = nope[1];
    const std::int64_t N = nope[2];
    const std::int64_t R = golden.shape(name + "/q_rope")[2];
    const std::int64_t positions = golden.shape(name + "/latent")[0];
    const std::int64_t C = golden.shape(name + "/latent")[1];
    const std::int64_t V = golden.shape(name + "/kv_b")[1] - N;
    const std::vector<float> q_nope = golden.floats(name + "/q_nope");
    const std::vector<float> q_rope = golden.floats(name + "/q_rope");
    const std::vector<float> latent = golden.floats(name + "/latent");
    const std::vector<float> k_rope = golden.floats(name + "/k_rope");
    const WeightMatrix kv = {WeightFormat::F32, heads * (N + V), C, golden.bytes(name + "/kv_b").data(), nullptr, C, 0, 1};

    std::vector<Guarded<float>> pages;
    std::vector<const std::byte*> addresses;
    constexpr std::int64_t kPage = 16;
    for (std::int64_t p = 0; p < positions; ++p) {
      if (p % kPage == 0) {
        Guarded<float>& page = pages.emplace_back(static_cast<std::size_t>(std::min(kPage, positions - p) * (C + R)));
        addresses.push_back(reinterpret_cast<const std::byte*>(page.data()));
      }
      float* row = pages.back().data() + p % kPage * (C + R);
      std::memcpy(row, latent.data() + p * C, static_cast<std::size_t>(C) * sizeof(float));
      std::memcpy(row + C, k_rope.data() + p * R, static_cast<std::size_t>(R) * sizeof(float));
    }
    const LatentRows cache = {CacheType::F32, C, R, kPage, addresses};

    for (const Implementation& implementation : implementations()) {
      std::vector<float> o;
      for (std::int64_t t = 0; t < tokens; ++t) {
        Guarded<float> q(static_cast<std::size_t>(heads * (C + R)));
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t row = t * heads + h;
          implementation->matmul_transposed(kv.slice(h * (N + V), N), {q_nope.data() + row * N, 1, N, N},
                                            {q.data() + h * (C + R), 1, C, C}, 0, C);
          std::memcpy(q.data() + h * (C + R) + C, q_rope.data() + row * R, static_cast<std::size_t>(R) * sizeof(float));
        }
        const Guarded<float> context(attend(*implementation.kernels, q, heads, cache, positions - tokens + t + 1, scale));
        for (std::int64_t h = 0; h < heads; ++h) {
          std::vector<float> values(static_cast<std::size_t>(V));
          implementation->matmul(kv.slice(h * (N + V) + N, V), rows_of(context, heads).slice(h, 1), {values.data(), 1, V, V}, 0,
                                 V);
          o.insert(o.end(), values.begin(), values.end());
        }
      }
      expect_close_to_largest(o, golden.floats(name + "/o"), 1e-5, implementation.name + " " + name);
    }
  }
}

TEST(Mla, AnyCountAroundBlockBordersMatchesAFloat64Softmax) {
  Random random(1);
  for (const CacheType type : kAllCacheTypes) {
    const CacheCase c = {type, 48, 16, 64, 1100};
    const CacheData cache = make_cache(random, c);
    constexpr std::int64_t kHeads = 3;
    const Guarded<float> q(normal_values(random, kHeads * 64));
    for (const std::int64_t count : {1, 15, 63, 64, 65, 511, 512, 513, 1024, 1025}) {
      const std::vector<float> expected = reference(cache, q, kHeads, count, 0.4f);
      std::vector<float> scalar;
      for (const Implementation& implementation : implementations()) {
        const std::vector<float> out = attend(*implementation.kernels, q, kHeads, cache.rows, count, 0.4f);
        if (scalar.empty()) scalar = out;
        const std::string what = implementation.name + " count " + std::to_string(count);
        expect_close_to_largest(out, expected, 2e-6, what);
        expect_same_bits(out, scalar, what);
      }
    }
  }
}

TEST(Mla, CachesOfAReleasedModelMatchAFloat64Softmax) {
  Random random(6);
  const float scale = 1.0f / std::sqrt(192.0f);
  for (const MlaCase& c : kReleasedMla) {
    const CacheData cache = make_cache(random, c.cache);
    const Guarded<float> q(normal_values(random, c.heads * c.cache.width()));
    const std::vector<float> expected = reference(cache, q, c.heads, c.cache.positions, scale);
    for (const Implementation& implementation : implementations()) {
      expect_close_to_largest(attend(*implementation.kernels, q, c.heads, cache.rows, c.cache.positions, scale), expected, 1e-5,
                              implementation.name + " " + c.name());
    }
  }
}

TEST(Mla, HeadsAndPagesDoNotMatter) {
  Random random(2);
  for (const CacheType type : kAllCacheTypes) {
    const CacheCase c = {type, 40, 13, 64, 530};
    const std::uint64_t seed = random();
    Random same(seed);
    const CacheData cache = make_cache(same, c);
    constexpr std::int64_t kHeads = 6;
    const Guarded<float> q(normal_values(random, kHeads * 53));
    for (const Implementation& implementation : implementations()) {
      const std::vector<float> all = attend(*implementation.kernels, q, kHeads, cache.rows, c.positions, 0.2f);
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const Guarded<float> one(q.span().subspan(static_cast<std::size_t>(h * 53), 53));
        expect_same_bits(attend(*implementation.kernels, one, 1, cache.rows, c.positions, 0.2f),
                         std::span(all).subspan(static_cast<std::size_t>(h * 40), 40), implementation.name + " one head");
      }
      for (const std::int64_t page_tokens : {1, 16, 512}) {
        std::vector<std::byte> bytes;
        for (const Guarded<std::byte>& page : cache.pages) bytes.insert(bytes.end(), page.span().begin(), page.span().end());
        const std::size_t page_bytes = static_cast<std::size_t>(page_tokens * cache_row_bytes(type, 53));
        std::vector<const std::byte*> pages;
        for (std::size_t begin = 0; begin < bytes.size(); begin += page_bytes) pages.push_back(bytes.data() + begin);
        const LatentRows other = {type, 40, 13, page_tokens, pages};
        expect_same_bits(attend(*implementation.kernels, q, kHeads, other, c.positions, 0.2f), all,
                         implementation.name + " pages of " + std::to_string(page_tokens));
      }
    }
  }
}

TEST(Mla, TokensBesideEachOtherGiveTheBitsOfEachAlone) {
  Random random(7);
  for (const CacheType type : kAllCacheTypes) {
    constexpr std::int64_t kHeads = 3, kWidth = 45, kLatent = 40, kMostTokens = 9;
    CacheData cache = make_cache(random, {type, kLatent, kWidth - kLatent, 64, 1040});
    const Guarded<float> q(normal_values(random, kMostTokens * kHeads * kWidth));
    for (const std::int64_t count : {1, 60, 507, 512, 1020, 1031}) {  // within blocks and over their borders
      for (const std::int64_t tokens : {std::int64_t{2}, kMostTokens}) {
        // What the last token does not see is not a number, so the first ones must not see what the last one does.
        const auto row_bytes = static_cast<std::size_t>(cache_row_bytes(type, kWidth));
        const auto last = static_cast<std::size_t>(count + tokens - 2);
        std::byte* row = cache.pages[last / 64].data() + last % 64 * row_bytes;
        const std::vector<std::byte> kept(row, row + row_bytes);
        std::memset(row, 0xFF, row_bytes);
        for (const Implementation& implementation : implementations()) {
          const auto rows = [&](std::int64_t first, std::int64_t number) {
            return Guarded<float>(q.span().subspan(static_cast<std::size_t>(first * kHeads * kWidth),
                                                   static_cast<std::size_t>(number * kHeads * kWidth)));
          };
          const std::vector<float> together = attend(*implementation.kernels, rows(0, tokens), kHeads, cache.rows, count, 0.3f);
          for (std::int64_t t = 0; t < tokens; ++t) {
            const std::string what = implementation.name + " " + std::string(name_of(type)) + " count " + std::to_string(count) +
                                     " token " + std::to_string(t) + " of " + std::to_string(tokens);
            const auto part = std::span(together).subspan(static_cast<std::size_t>(t * kHeads * kLatent),
                                                          static_cast<std::size_t>(kHeads * kLatent));
            if (t + 1 == tokens) {
              EXPECT_TRUE(std::ranges::all_of(part, [](float value) { return std::isnan(value); })) << what;
            } else {
              expect_same_bits(part, attend(*implementation.kernels, rows(t, 1), kHeads, cache.rows, count + t, 0.3f), what);
            }
          }
        }
        std::memcpy(row, kept.data(), row_bytes);
      }
    }
  }
}

TEST(Mla, UnwrittenRowsAreNeverUsed) {
  Random random(3);
  for (const CacheType type : kAllCacheTypes) {
    CacheData cache = make_cache(random, {type, 32, 8, 64, 640});
    constexpr std::int64_t kHeads = 4;
    const Guarded<float> q(normal_values(random, kHeads * 40));
    for (const std::int64_t count : {600, 513, 100, 1}) {  // rows from `count` on become NaN
      const std::vector<float> expected = reference(cache, q, kHeads, count, 0.3f);
      const auto row_bytes = static_cast<std::size_t>(cache_row_bytes(type, 40));
      for (std::int64_t p = count; p < 640; ++p) {
        std::memset(cache.pages[static_cast<std::size_t>(p / 64)].data() + static_cast<std::size_t>(p % 64) * row_bytes, 0xFF,
                    row_bytes);
      }
      for (const Implementation& implementation : implementations()) {
        expect_close_to_largest(attend(*implementation.kernels, q, kHeads, cache.rows, count, 0.3f), expected, 2e-6,
                                implementation.name);
      }
    }
  }
}

TEST(Mla, ScoresFarApartNeitherOverflowNorVanish) {
  Random random(4);
  const CacheData cache = make_cache(random, {CacheType::F32, 32, 8, 64, 700});
  Guarded<float> q(normal_values(random, 2 * 40));
  for (float& value : q.span()) value *= 50.0f;  // scores of several hundred: one position takes all
  const std::vector<float> expected = reference(cache, q, 2, 700, 1.0f);
  for (const Implementation& implementation : implementations()) {
    expect_close_to_largest(attend(*implementation.kernels, q, 2, cache.rows, 700, 1.0f), expected, 1e-4, implementation.name);
  }
}

TEST(Mla, NoPositionsGiveZeros) {
  Random random(5);
  const CacheData cache = make_cache(random, {CacheType::F32, 20, 4, 64, 1});
  const Guarded<float> q(normal_values(random, 24));
  for (const Implementation& implementation : implementations()) {
    EXPECT_EQ(attend(*implementation.kernels, q, 1, cache.rows, 0, 1.0f), std::vector<float>(20, 0.0f)) << implementation.name;
  }
}

}  // namespace
}  // namespace calandra
