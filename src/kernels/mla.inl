// Absorbed attention over the cached rows of an MLA layer, all heads of some tokens together: a page of the cache is a weight
// matrix, scores are a product with its rows and contexts a transposed product with their latent part, each in the order
// of matmul.inl. Blocks of kAttentionBlock absolute positions stand alone: maximum m, weights p = exp(s - m), their sum (16
// lanes, then the tree), context in the order of positions. Blocks are merged in order into (maximum, sum, context),
// also when there is only one. Codes of an FP8 cache enter the products as they are: a row's scale multiplies its score, and
// its weight on the way into the context.
//
// Tokens beside each other share the rows that all of them see; what only later ones see is added for each alone, so that no
// token ever touches a row behind its own. Bytes: each row of the cache is read twice a block, from memory once.

#include "kernels/kernels.h"
#include "kernels/scratch.h"

#include <cstdint>
#include <cstring>
#include <limits>

namespace calandra {
namespace {

/// Scales of a row of FP8 codes that mean themselves: as many as the widest row has blocks of 128.
struct UnitScales {
  std::byte bytes[4 * 256] = {};
  constexpr UnitScales() {
    for (std::byte& byte : bytes) byte = std::byte{127};
  }
};
constexpr UnitScales kUnitScales;

template <CacheType type>
constexpr WeightFormat kPageFormat = type == CacheType::F32    ? WeightFormat::F32
                                     : type == CacheType::BF16 ? WeightFormat::BF16
                                                               : WeightFormat::Fp8E8m0;

/// Positions [begin, begin + count) of one page as rows of a matrix of `cols` columns: all C + R or the C of the latent.
struct PageRun {
  std::int64_t page, begin, count;
};
template <CacheType type>
inline WeightMatrix page_matrix(const LatentRows& cache, const PageRun& run, std::int64_t cols) {
  WeightMatrix rows;
  rows.format = kPageFormat<type>;
  rows.rows = run.count;
  rows.cols = cols;
  rows.data = cache.pages.data()[run.page];
  rows.stored_cols = cache.latent_dim + cache.rope_dim;
  rows.first_row = run.begin;
  if constexpr (type == CacheType::Fp8) {
    rows.stored_cols = cache_row_bytes(type, rows.stored_cols);
    rows.scales = kUnitScales.bytes;
  }
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

/// Scores, `count` of them followed by room up to a multiple of 16, become weights. Returns their maximum and sum. With
/// `row_scales`, scores and then weights are multiplied by them; the sum is of the weights before.
struct BlockSum {
  float maximum, sum;
};
inline BlockSum exponentiate(float* scores, std::int64_t count, float scale, const float* row_scales) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  Lanes maxima = broadcast(kMinusInfinity);
  for_runs(count, [&](std::int64_t i, std::int64_t run) {
    Lanes products = load_some(scores + i, run);
    if (row_scales != nullptr) products = products * load_some(row_scales + i, run);
    store(scores + i, products * broadcast(scale));
    for (std::int64_t missing = run; missing < 16; ++missing) scores[i + missing] = kMinusInfinity;
    maxima = max(load(scores + i), maxima);
  });
  const float maximum = largest(maxima);
  Lanes sums = zero_lanes();
  for_runs(count, [&](std::int64_t i, std::int64_t run) {
    const Lanes weights = exp(load(scores + i) - broadcast(maximum));
    sums = sums + weights;
    store(scores + i, row_scales != nullptr ? weights * load_some(row_scales + i, run) : weights);
  });
  return {maximum, sum(sums)};
}

/// exp of one number, by the lanes' formula.
inline float exp_of(float x) {
  float all[16];
  store(all, exp(broadcast(x)));
  return all[0];
}

/// What the query rows of a call keep between blocks: an array entry a row.
struct RowSums {
  float* maximum;  // so far
  float* sum;      // of exp(score - maximum) so far
  float* keep;     // factors of the last merge: of what came before,
  float* add;      // and of the block
};

/// Merges the maximum and sum of a block into those before: both are weighed by exp(own maximum - common maximum).
inline void merge_sums(const BlockSum& block, const RowSums& rows, std::int64_t r) {
  const float maximum = block.maximum > rows.maximum[r] ? block.maximum : rows.maximum[r];
  rows.keep[r] = exp_of(rows.maximum[r] - maximum);
  rows.add[r] = exp_of(block.maximum - maximum);
  rows.sum[r] = __builtin_fmaf(rows.sum[r], rows.keep[r], block.sum * rows.add[r]);
  rows.maximum[r] = maximum;
}

/// out = out * keep + context * add
inline void merge_context(const float* context, float keep, float add, float* out, std::int64_t n) {
  for_runs(n, [&](std::int64_t i, std::int64_t count) {
    const Lanes added = load_some(context + i, count) * broadcast(add);
    store_some(out + i, fma(load_some(out + i, count), broadcast(keep), added), count);
  });
}

/// The query rows of a call, token after token, and its work space.
struct Attention {
  std::int64_t heads;      // rows of a token
  std::int64_t first_end;  // the first token sees positions [0, first_end), each next one more
  float scale;
  Rows q;         // [rows, C + R]
  Rows scores;    // [rows, kAttentionBlock], and room for a whole run of 16 behind
  Rows contexts;  // [rows, C] of one block
  Rows out;       // [rows, C]
  RowSums sums;
  float* row_scales;  // [kAttentionBlock] of one block, FP8 caches only

  std::int64_t end_of(std::int64_t row) const { return first_end + row / heads; }
};

/// Calls body(first row, count of rows, begin, end) for the parts of a block's positions [begin, block_end) that runs of query
/// rows see: what all rows that reach into the block see, for these together; then for the rows of each token what it sees beyond.
template <class Body>
inline void for_visible(const Attention& a, std::int64_t begin, std::int64_t block_end, Body body) {
  const std::int64_t first_token = begin < a.first_end ? 0 : begin - a.first_end + 1;
  const std::int64_t first_row = first_token * a.heads;
  if (first_row >= a.q.rows) return;
  const std::int64_t common = a.end_of(first_row) < block_end ? a.end_of(first_row) : block_end;
  body(first_row, a.q.rows - first_row, begin, common);
  for (std::int64_t row = first_row + a.heads; row < a.q.rows; row += a.heads) {
    const std::int64_t end = a.end_of(row) < block_end ? a.end_of(row) : block_end;
    if (common < end) body(row, a.heads, common, end);
  }
}

/// One block of positions, up to `block_end`: scores, weights, contexts, merge.
template <CacheType type>
inline void attend_block(const Attention& a, const LatentRows& cache, std::int64_t begin, std::int64_t block_end) {
  constexpr WeightFormat format = kPageFormat<type>;
  const std::int64_t latent = cache.latent_dim, width = latent + cache.rope_dim;
  for_visible(a, begin, block_end, [&](std::int64_t row, std::int64_t rows, std::int64_t from, std::int64_t to) {
    for_pages(cache, from, to - from, [&](const PageRun& run, std::int64_t offset) {
      const Rows scores = a.scores.slice(row, rows).columns(from - begin + offset, run.count);
      multiply<format>(page_matrix<type>(cache, run, width), a.q.slice(row, rows), scores, 0, run.count);
    });
  });
  if constexpr (type == CacheType::Fp8) {
    for_pages(cache, begin, block_end - begin, [&](const PageRun& run, std::int64_t offset) {
      const std::byte* scale = cache.pages.data()[run.page] + run.begin * cache_row_bytes(type, width) + width;
      for (std::int64_t i = 0; i < run.count; ++i, scale += cache_row_bytes(type, width))
        std::memcpy(a.row_scales + offset + i, scale, sizeof(float));
    });
  }
  std::int64_t first_row = a.q.rows;
  for (std::int64_t r = 0; r < a.q.rows; ++r) {
    const std::int64_t end = a.end_of(r) < block_end ? a.end_of(r) : block_end;
    if (end <= begin) continue;
    if (first_row == a.q.rows) first_row = r;
    const BlockSum block = exponentiate(a.scores.row(r), end - begin, a.scale, type == CacheType::Fp8 ? a.row_scales : nullptr);
    merge_sums(block, a.sums, r);
  }
  fill_zero(a.contexts, 0, latent);
  for_visible(a, begin, block_end, [&](std::int64_t row, std::int64_t rows, std::int64_t from, std::int64_t to) {
    for_pages(cache, from, to - from, [&](const PageRun& run, std::int64_t offset) {
      const ConstRows weights = a.scores.slice(row, rows).columns(from - begin + offset, run.count);
      add_transposed<format>(page_matrix<type>(cache, run, latent), weights, a.contexts.slice(row, rows), 0, latent);
    });
  });
  for (std::int64_t r = first_row; r < a.q.rows; ++r)
    merge_context(a.contexts.row(r), a.sums.keep[r], a.sums.add[r], a.out.row(r), latent);
}

template <CacheType type>
inline void attend(const Attention& a, const LatentRows& cache) {
  const std::int64_t end = a.end_of(a.q.rows - 1);
  for (std::int64_t begin = 0; begin < end; begin += kAttentionBlock)
    attend_block<type>(a, cache, begin, end - begin < kAttentionBlock ? end : begin + kAttentionBlock);
}

inline void mla_attend(const MlaQueries& queries, const LatentRows& cache, std::int64_t count, float scale) {
  const std::int64_t latent = cache.latent_dim, width = latent + cache.rope_dim, rows = queries.tokens * queries.heads;
  // Rows of scores are as wide as a block, a multiple of 16.
  float* memory = scratch(ScratchUse::Attention, rows * (width + kAttentionBlock + 2 * latent + 4) + kAttentionBlock);
  Attention a = {};
  a.heads = queries.heads;
  a.first_end = count;
  a.scale = scale;
  a.scores = {memory, rows, kAttentionBlock, kAttentionBlock};
  a.row_scales = a.scores.row(rows);
  a.contexts = {a.row_scales + kAttentionBlock, rows, latent, latent};
  a.out = {a.contexts.row(rows), rows, latent, latent};
  a.q = {a.out.row(rows), rows, width, width};
  float* sums = a.q.row(rows);
  a.sums = {sums, sums + rows, sums + 2 * rows, sums + 3 * rows};
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t token = r / queries.heads, head = r % queries.heads;
    std::memcpy(a.q.row(r), queries.q + token * queries.q_stride + head * width, static_cast<std::size_t>(width) * sizeof(float));
    a.sums.maximum[r] = -std::numeric_limits<float>::infinity();
    a.sums.sum[r] = 0.0f;
  }
  fill_zero(a.out, 0, latent);
  if (rows > 0) {
    switch (cache.type) {
      case CacheType::F32: attend<CacheType::F32>(a, cache); break;
      case CacheType::BF16: attend<CacheType::BF16>(a, cache); break;
      case CacheType::Fp8: attend<CacheType::Fp8>(a, cache); break;
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    float* out = queries.out + r / queries.heads * queries.out_stride + r % queries.heads * latent;
    const Lanes total = broadcast(a.end_of(r) > 0 ? a.sums.sum[r] : 1.0f);
    for_runs(latent,
             [&](std::int64_t i, std::int64_t run) { store_some(out + i, load_some(a.out.row(r) + i, run) / total, run); });
  }
}

}  // namespace
}  // namespace calandra
