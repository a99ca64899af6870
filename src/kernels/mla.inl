// Absorbed attention of one token over the cached rows of an MLA layer, all heads together: a page of the cache is a weight
// matrix, scores are a product with its rows and contexts a transposed product with their latent part, each in the order
// of matmul.inl. Blocks of kAttentionBlock absolute positions stand alone: maximum m, weights p = exp(s - m), their sum (16
// lanes, then the tree), context in the order of positions. Blocks are merged in order into (maximum, sum, context),
// also when there is only one. Bytes: each row of the cache is read twice a block, from memory once.

#include "kernels/kernels.h"
#include "kernels/scratch.h"

#include <cstdint>
#include <limits>

namespace calandra {
namespace {

/// Positions [begin, begin + count) of one page as rows of a matrix of `cols` columns: all C + R or the C of the latent.
struct PageRun {
  std::int64_t page, begin, count;
};
inline WeightMatrix page_matrix(const LatentRows& cache, const PageRun& run, std::int64_t cols) {
  WeightMatrix rows;
  rows.format = cache.type == CacheType::BF16 ? WeightFormat::BF16 : WeightFormat::F32;
  rows.rows = run.count;
  rows.cols = cols;
  rows.data = cache.pages.data()[run.page];
  rows.stored_cols = cache.latent_dim + cache.rope_dim;
  rows.first_row = run.begin;
  return rows;
}

/// Calls body(run, offset from `begin`) for the pages that hold positions [begin, begin + count).
template <class Body>
inline void for_pages(const LatentRows& cache, std::int64_t begin, std::int64_t count, Body body) {
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t page = (begin + done) / cache.page_tokens;
    const std::int64_t first = (begin + done) % cache.page_tokens;
    const std::int64_t left = cache.page_tokens - first;
    const std::int64_t rows = left < count - done ? left : count - done;
    body(PageRun{page, first, rows}, done);
    done += rows;
  }
}

/// Scores, `count` of them followed by room up to a multiple of 16, become weights. Returns their maximum and sum.
struct BlockSum {
  float maximum, sum;
};
inline BlockSum exponentiate(float* scores, std::int64_t count, float scale) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  Lanes maxima = broadcast(kMinusInfinity);
  for_runs(count, [&](std::int64_t i, std::int64_t run) {
    store(scores + i, load_some(scores + i, run) * broadcast(scale));
    for (std::int64_t missing = run; missing < 16; ++missing) scores[i + missing] = kMinusInfinity;
    maxima = max(load(scores + i), maxima);
  });
  const float maximum = largest(maxima);
  Lanes sums = zero_lanes();
  for_runs(count, [&](std::int64_t i, std::int64_t) {
    const Lanes weights = exp(load(scores + i) - broadcast(maximum));
    store(scores + i, weights);
    sums = sums + weights;
  });
  return {maximum, sum(sums)};
}

/// exp of one number, by the lanes' formula.
inline float exp_of(float x) {
  float all[16];
  store(all, exp(broadcast(x)));
  return all[0];
}

/// What the heads of a call keep between blocks: an array entry a head.
struct HeadSums {
  float* maximum;  // so far
  float* sum;      // of exp(score - maximum) so far
  float* keep;     // factors of the last merge: of what came before,
  float* add;      // and of the block
};

/// Merges the maximum and sum of a block into those before: both are weighed by exp(own maximum - common maximum).
inline void merge_sums(const BlockSum& block, const HeadSums& heads, std::int64_t h) {
  const float maximum = block.maximum > heads.maximum[h] ? block.maximum : heads.maximum[h];
  heads.keep[h] = exp_of(heads.maximum[h] - maximum);
  heads.add[h] = exp_of(block.maximum - maximum);
  heads.sum[h] = __builtin_fmaf(heads.sum[h], heads.keep[h], block.sum * heads.add[h]);
  heads.maximum[h] = maximum;
}

/// out = out * keep + context * add
inline void merge_context(const float* context, float keep, float add, float* out, std::int64_t n) {
  for_runs(n, [&](std::int64_t i, std::int64_t count) {
    const Lanes added = load_some(context + i, count) * broadcast(add);
    store_some(out + i, fma(load_some(out + i, count), broadcast(keep), added), count);
  });
}

/// One block: scores, weights, contexts, merge.
inline void attend_block(ConstRows q, const LatentRows& cache, std::int64_t begin, std::int64_t positions, float scale,
                         Rows scores, Rows contexts, const HeadSums& heads, Rows out) {
  const std::int64_t latent = cache.latent_dim;
  for_pages(cache, begin, positions, [&](const PageRun& run, std::int64_t offset) {
    matmul(page_matrix(cache, run, latent + cache.rope_dim), q, scores.columns(offset, run.count), 0, run.count);
  });
  for (std::int64_t h = 0; h < q.rows; ++h) merge_sums(exponentiate(scores.row(h), positions, scale), heads, h);
  fill_zero(contexts, 0, latent);
  for_pages(cache, begin, positions, [&](const PageRun& run, std::int64_t offset) {
    const ConstRows weights = scores.columns(offset, run.count);
    const WeightMatrix latents = page_matrix(cache, run, latent);
    if (cache.type == CacheType::BF16) {
      add_transposed<WeightFormat::BF16>(latents, weights, contexts, 0, latent);
    } else {
      add_transposed<WeightFormat::F32>(latents, weights, contexts, 0, latent);
    }
  });
  for (std::int64_t h = 0; h < q.rows; ++h) merge_context(contexts.row(h), heads.keep[h], heads.add[h], out.row(h), latent);
}

inline void mla_attend(ConstRows q, const LatentRows& cache, std::int64_t count, float scale, Rows out) {
  const std::int64_t latent = cache.latent_dim;
  fill_zero(out, 0, latent);
  if (count <= 0) return;

  float* memory = scratch(ScratchUse::Attention, q.rows * (kAttentionBlock + latent + 4));
  const Rows scores = {memory, q.rows, kAttentionBlock, kAttentionBlock};
  const Rows contexts = {scores.row(q.rows), q.rows, latent, latent};
  float* sums = contexts.row(q.rows);
  const HeadSums heads = {sums, sums + q.rows, sums + 2 * q.rows, sums + 3 * q.rows};
  for (std::int64_t h = 0; h < q.rows; ++h) {
    heads.maximum[h] = -std::numeric_limits<float>::infinity();
    heads.sum[h] = 0.0f;
  }
  for (std::int64_t begin = 0; begin < count; begin += kAttentionBlock) {
    const std::int64_t positions = count - begin < kAttentionBlock ? count - begin : kAttentionBlock;
    attend_block(q, cache, begin, positions, scale, scores, contexts, heads, out);
  }
  for (std::int64_t h = 0; h < q.rows; ++h) {
    float* context = out.row(h);
    const Lanes total = broadcast(heads.sum[h]);
    for_runs(latent,
             [&](std::int64_t i, std::int64_t run) { store_some(context + i, load_some(context + i, run) / total, run); });
  }
}

}  // namespace
}  // namespace calandra
