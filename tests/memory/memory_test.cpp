// Size formulas against published figures; life cycle of blocks, pages, sequences and boundaries.

#include "checkpoint/config.h"
#include "memory/sequence_memory.h"
#include "support/golden.h"
#include "support/small_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace calandra {
namespace {

void fill_row(const LatentCache& cache, std::int64_t position, int value) {
  std::memset(cache.row(position), value, static_cast<std::size_t>(cache.row_bytes));
}

int first_byte(const LatentCache& cache, std::int64_t position) { return std::to_integer<int>(*cache.row(position)); }

const std::vector<float> kHidden(8, 1.0f);

TEST(MemoryLayout, PublishedStateTailAndLatentBytes) {
  struct Row {
    const char* model;
    std::int64_t state, tails, per_token, block;
  };
  // State and tails of one sequence, latents of one token: the published figures (docs/model.md, Memory).
  for (const Row& row : {Row{"ling-3.1-flash", 264'241'152, 9'289'728, 10'368, 4 << 20},
                         Row{"ling-3.0-flash", 73'400'320, 2'580'480, 8'064, 2 << 20},
                         Row{"ling-3.0-tiny", 18'874'368, 663'552, 6'912, 1 << 20}}) {
    const MemoryLayout layout = memory_layout(published_config(row.model), CacheType::BF16, true);
    EXPECT_EQ(layout.state_bytes(), row.state) << row.model;
    EXPECT_EQ(layout.tails_bytes(), row.tails) << row.model;
    EXPECT_EQ(layout.cache_bytes_per_token(), row.per_token) << row.model;
    EXPECT_EQ(layout.block_bytes, row.block) << row.model;
    EXPECT_EQ(layout.page_tokens, 64) << row.model;
    EXPECT_EQ(layout.mtp_cache_bytes_per_token(), 1'152) << row.model;

    // In FP8 a row's 576 numbers take a byte each, and its scale four; tails stay.
    const MemoryLayout fp8 = memory_layout(published_config(row.model), {CacheType::Fp8, CacheType::BF16}, true);
    EXPECT_EQ(fp8.cache_bytes_per_token(), row.per_token / 1'152 * 580) << row.model;
    EXPECT_EQ(fp8.mtp_cache_bytes_per_token(), 580) << row.model;
    EXPECT_EQ(fp8.tails_bytes(), row.tails) << row.model;
    EXPECT_EQ(fp8.block_bytes, row.block) << row.model;
  }
}

TEST(MemoryLayout, TailsAreNeverFp8) {
  const std::string error = error_of([] { memory_layout(published_config("ling-3.1-flash"), CacheType::Fp8, false); });
  EXPECT_EQ(error, "convolution tails as fp8: expected fp32 or bf16, as the convolution sees its inputs");
}

TEST(MemoryLayout, PagesTileAttentionBlocksAndFitInABlock) {
  for (const std::string& name : golden_variants()) {
    const auto path = golden_path(name) / "config.json";
    const Config config = parse_config(read_text_file(path), path.string());
    for (const CacheTypes type :
         {CacheTypes(CacheType::F32), CacheTypes(CacheType::BF16), CacheTypes(CacheType::Fp8, CacheType::BF16)}) {
      const MemoryLayout layout = memory_layout(config, type, config.mtp_layers > 0);
      EXPECT_EQ(kAttentionBlock % layout.page_tokens, 0) << name;
      EXPECT_LE(layout.page_bytes * layout.pages_per_block, layout.block_bytes) << name;
      EXPECT_LE(layout.mtp_page_bytes, layout.block_bytes) << name;
      EXPECT_LE(layout.tail_bytes * layout.tails_per_block, layout.block_bytes) << name;
    }
  }
}

TEST(MemoryLayout, ABlockHoldsATokensLatentsAlsoWhereStatesAreSmaller) {
  Config config = published_config("ling-3.0-tiny");
  config.heads = 1;
  config.head_dim = 16;  // a state of 1,024 bytes
  for (const CacheType type : {CacheType::F32, CacheType::BF16}) {
    const MemoryLayout layout = memory_layout(config, type, true);
    EXPECT_GE(layout.block_bytes, layout.cache_bytes_per_token());
    EXPECT_GE(layout.pages_per_block, 1);
    EXPECT_GE(layout.mtp_pages_per_block, 1);
    EXPECT_GE(layout.tails_per_block, 1);
    EXPECT_EQ(layout.block_bytes % 64, 0);
  }
}

TEST(SequenceMemory, TakesExactlyTheBlocksOfTheFormula) {
  const MemoryLayout layout = small_layout(true);
  for (const std::int64_t tokens : {1, 63, 64, 65, 200, 1000}) {
    MemoryPool pool(layout, 100);
    const auto memory = SequenceMemory::create(pool);
    ASSERT_TRUE(memory->reserve(tokens));
    EXPECT_EQ(100 - pool.blocks().num_free(), layout.sequence_blocks(tokens)) << tokens;
  }
}

TEST(SequenceMemory, TakesAndGivesBackTheSameBlocksWhoeverGrowsBesideIt) {
  const MemoryLayout layout = small_layout(true);
  EXPECT_TRUE(rc::check("", [&] {
    MemoryPool pool(layout, 400);
    std::array<std::unique_ptr<SequenceMemory>, 4> sequences;
    std::array<std::int64_t, 4> ends{};
    const auto steps = *rc::gen::container<std::vector<std::pair<std::size_t, std::int64_t>>>(
        rc::gen::pair(rc::gen::inRange<std::size_t>(0, 4), rc::gen::inRange<std::int64_t>(0, 300)));
    for (const auto& [i, growth] : steps) {
      if (!sequences[i]) {
        sequences[i] = SequenceMemory::create(pool);
        ends[i] = 0;
      } else if (growth < 30 || ends[i] > 3000) {
        sequences[i].reset();
      } else {
        RC_ASSERT(sequences[i]->reserve(ends[i] += growth));
      }
      std::int64_t expected = 0;
      for (std::size_t j = 0; j < sequences.size(); ++j) expected += sequences[j] ? layout.sequence_blocks(ends[j]) : 0;
      RC_ASSERT(400 - pool.blocks().num_free() == expected);
    }
  }));
}

/// A sequence and what a scheduler counts for it.
struct Counted {
  std::unique_ptr<SequenceMemory> memory;
  std::int64_t end = 0;
  std::int64_t more_blocks = 0;
};

// Sequences fork from one another's boundaries, freeze and thaw in any order. Once the boundaries are gone the pool has what is counted.
TEST(SequenceMemory, ForksHoldNoMoreBlocksThanCounted) {
  const MemoryLayout layout = small_layout(true);
  EXPECT_TRUE(rc::check("", [&] {
    constexpr std::int64_t kBlocks = 2000;
    MemoryPool pool(layout, kBlocks, FreedMemory::Poisoned);
    std::vector<Counted> sequences;
    std::vector<std::unique_ptr<Boundary>> boundaries;
    const auto used = [&] { return kBlocks - pool.blocks().num_free(); };
    const auto counted = [&] {
      std::int64_t blocks = 0;
      for (const Counted& s : sequences) blocks += layout.sequence_blocks(s.end) + s.more_blocks;
      return blocks;
    };
    const auto steps = *rc::gen::container<std::vector<std::tuple<int, std::size_t, std::int64_t>>>(
        rc::gen::tuple(rc::gen::inRange(0, 8), rc::gen::arbitrary<std::size_t>(), rc::gen::inRange<std::int64_t>(1, 300)));
    for (const auto& [what, index, length] : steps) {
      const std::size_t s = sequences.empty() ? 0 : index % sequences.size(),
                        b = boundaries.empty() ? 0 : index % boundaries.size();
      if (sequences.empty() || what == 0) {
        sequences.push_back({SequenceMemory::create(pool)});
      } else if (what < 3) {
        RC_ASSERT(sequences[s].memory->reserve(sequences[s].end += length));
        sequences[s].memory->advance(sequences[s].end - sequences[s].memory->position() - length / 3, kHidden);
      } else if (what == 3) {
        boundaries.push_back(sequences[s].memory->snapshot());
      } else if (what == 4) {
        boundaries.push_back(SequenceMemory::freeze(std::move(sequences[s].memory)));
        sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(s));
      } else if (what == 5 && !boundaries.empty()) {
        const std::int64_t position = boundaries[b]->position(), more = boundaries[b]->scattered_blocks();
        sequences.push_back({SequenceMemory::resume(pool, *boundaries[b]), position, more});
      } else if (what == 6 && !boundaries.empty()) {
        const std::int64_t position = boundaries[b]->position(), more = boundaries[b]->scattered_blocks();
        sequences.push_back({SequenceMemory::thaw(pool, std::move(boundaries[b])), position, more});
        boundaries.erase(boundaries.begin() + static_cast<std::ptrdiff_t>(b));
      } else {
        boundaries.clear();
        RC_ASSERT(used() <= counted());
      }
      std::int64_t held = 0;
      for (const auto& boundary : boundaries) held += boundary->held_blocks();
      RC_ASSERT(used() <= counted() + held);
    }
    sequences.clear();
    boundaries.clear();
    RC_ASSERT(used() == 0);
  }));
}

TEST(SequenceMemory, ThawedItIsWhatWasFrozenAndTakesNoBlock) {
  const MemoryLayout layout = small_layout(true);
  MemoryPool pool(layout, layout.sequence_blocks(100), FreedMemory::Poisoned);
  auto memory = SequenceMemory::create(pool);
  ASSERT_TRUE(memory->reserve(100));
  for (std::int64_t t = 0; t < 70; ++t) fill_row(memory->latents(0), t, static_cast<int>(t));
  memory->state(1, 1)[5] = 7;
  memory->advance(70, kHidden);
  auto boundary = SequenceMemory::freeze(std::move(memory));
  EXPECT_EQ(boundary->position(), 70);
  EXPECT_EQ(boundary->held_blocks(), layout.sequence_blocks(70));
  memory = SequenceMemory::thaw(pool, std::move(boundary));
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->position(), 70);
  EXPECT_EQ(memory->state(1, 1)[5], 7);
  EXPECT_EQ(std::vector(memory->last_hidden().begin(), memory->last_hidden().end()), kHidden);
  for (std::int64_t t = 0; t < 70; ++t) EXPECT_EQ(first_byte(memory->latents(0), t), t);
  EXPECT_TRUE(memory->reserve(100));
}

TEST(SequenceMemory, StartsFromZeroInAPoolFullOfNaN) {
  MemoryPool pool(small_layout(false), 8, FreedMemory::Poisoned);
  EXPECT_TRUE(std::isnan(*reinterpret_cast<const float*>(pool.blocks().data(3))));
  const auto memory = SequenceMemory::create(pool);
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    for (std::int64_t head = 0; head < 2; ++head) {
      for (const float value : memory->state(layer, head)) ASSERT_EQ(value, 0.0f);
    }
    for (std::int64_t i = 0; i < memory->layout().tail_bytes; ++i) ASSERT_EQ(memory->tails(layer)[i], std::byte{0});
  }
}

TEST(SequenceMemory, ItsBlocksAreCountedByWhatIsInThem) {
  const MemoryLayout layout = small_layout(true);
  MemoryPool pool(layout, 200);
  EXPECT_EQ(pool.use().nothing, 200);
  {
    const auto one = SequenceMemory::create(pool), other = SequenceMemory::create(pool);
    ASSERT_TRUE(one->reserve(70) && other->reserve(700));
    const PoolUse use = pool.use();
    EXPECT_EQ(use.states, 2 * layout.fixed_blocks());
    const auto blocks = [&](std::int64_t tokens, std::int64_t pages_per_block) {
      const std::int64_t pages = (tokens + layout.page_tokens - 1) / layout.page_tokens;
      return (pages + pages_per_block - 1) / pages_per_block;
    };
    EXPECT_EQ(use.latents, blocks(70, layout.pages_per_block) + blocks(700, layout.pages_per_block));
    EXPECT_EQ(use.mtp_latents, blocks(69, layout.mtp_pages_per_block) + blocks(699, layout.mtp_pages_per_block));
    EXPECT_EQ(use.nothing, 200 - layout.sequence_blocks(70) - layout.sequence_blocks(700));
  }
  EXPECT_EQ(pool.use().states, 0);
  EXPECT_EQ(pool.use().latents, 0);
  EXPECT_EQ(pool.use().mtp_latents, 0);
  EXPECT_EQ(pool.use().nothing, 200);
}

TEST(SequenceMemory, OpeningAndClosingLosesNothing) {
  MemoryPool pool(small_layout(true), 14);
  for (int i = 0; i < 100; ++i) {
    const auto memory = SequenceMemory::create(pool);
    ASSERT_TRUE(memory->reserve(70));
    memory->advance(70, kHidden);
    const auto boundary = memory->snapshot();
    ASSERT_TRUE(boundary);
    ASSERT_TRUE(SequenceMemory::resume(pool, *boundary));
  }
  EXPECT_EQ(pool.blocks().num_free(), 14);
  EXPECT_EQ(pool.latents().num_used(), 0);
  EXPECT_EQ(pool.mtp_latents().num_used(), 0);
}

TEST(SequenceMemory, ADryPoolRefusesAndChangesNothing) {
  const MemoryLayout layout = small_layout(true);
  MemoryPool pool(layout, layout.fixed_blocks() + 1);
  const auto memory = SequenceMemory::create(pool);
  ASSERT_TRUE(memory);
  EXPECT_FALSE(memory->reserve(1)) << "latents fit, MTP latents do not";
  EXPECT_EQ(pool.blocks().num_free(), 1);
  EXPECT_FALSE(SequenceMemory::create(pool));
  EXPECT_FALSE(memory->snapshot());
  EXPECT_EQ(pool.blocks().num_free(), 1);
}

TEST(Boundary, DoesNotChangeWhenItsSequenceGoesOn) {
  MemoryPool pool(small_layout(true), 40);
  const auto memory = SequenceMemory::create(pool);
  ASSERT_TRUE(memory->reserve(100));
  memory->state(1, 1)[7] = 3.0f;
  memory->tails(1)[5] = std::byte{9};
  for (std::int64_t t = 0; t < 70; ++t) fill_row(memory->latents(0), t, 1);
  memory->advance(70, kHidden);
  const auto boundary = memory->snapshot();

  memory->state(1, 1)[7] = 4.0f;
  memory->tails(1)[5] = std::byte{8};
  for (std::int64_t t = 70; t < 80; ++t) fill_row(memory->latents(0), t, 2);
  memory->advance(10, std::vector<float>(8, 2.0f));

  const auto resumed = SequenceMemory::resume(pool, *boundary);
  EXPECT_EQ(resumed->position(), 70);
  EXPECT_EQ(resumed->state(1, 1)[7], 3.0f);
  EXPECT_EQ(resumed->tails(1)[5], std::byte{9});
  EXPECT_EQ(resumed->last_hidden()[0], 1.0f);
  for (std::int64_t t = 0; t < 70; ++t) ASSERT_EQ(first_byte(resumed->latents(0), t), 1);
}

TEST(Boundary, SequencesFromOneBoundaryDoNotSeeEachOther) {
  for (const std::int64_t position : {1, 63, 64, 65, 128, 130}) {
    MemoryPool pool(small_layout(true), 60, FreedMemory::Poisoned);
    auto memory = SequenceMemory::create(pool);
    ASSERT_TRUE(memory->reserve(position));
    for (std::int64_t t = 0; t < position; ++t) fill_row(memory->latents(0), t, 1);
    for (std::int64_t t = 0; t + 1 < position; ++t) fill_row(memory->mtp_latents(), t, 1);
    memory->advance(position, kHidden);
    const auto boundary = memory->snapshot();
    memory.reset();  // the boundary holds its pages alone
    const auto a = SequenceMemory::resume(pool, *boundary), b = SequenceMemory::resume(pool, *boundary);
    for (const auto& [sequence, value] : {std::pair(a.get(), 2), std::pair(b.get(), 3)}) {
      ASSERT_TRUE(sequence->reserve(position + 3));
      for (std::int64_t t = position; t < position + 3; ++t) fill_row(sequence->latents(0), t, value);
      for (std::int64_t t = position - 1; t < position + 2; ++t) fill_row(sequence->mtp_latents(), t, value);
    }
    const auto c = SequenceMemory::resume(pool, *boundary);
    for (std::int64_t t = 0; t < position; ++t) {
      ASSERT_EQ(first_byte(a->latents(0), t), 1) << position;
      ASSERT_EQ(first_byte(c->latents(0), t), 1) << position;
      if (t + 1 < position) {
        ASSERT_EQ(first_byte(c->mtp_latents(), t), 1) << position;
      }
    }
    EXPECT_EQ(first_byte(a->latents(0), position), 2) << position;
    EXPECT_EQ(first_byte(b->latents(0), position), 3) << position;
    EXPECT_EQ(first_byte(a->mtp_latents(), position - 1), 2) << position;
    EXPECT_EQ(first_byte(b->mtp_latents(), position - 1), 3) << position;
  }
}

TEST(Boundary, ASequenceThatSharesNothingOutlivesTheOthersUnchanged) {
  const MemoryLayout layout = small_layout(true);
  for (const std::int64_t position : {0, 1, 64, 130, 640}) {
    MemoryPool pool(layout, 100, FreedMemory::Poisoned);
    auto memory = SequenceMemory::create(pool);
    ASSERT_TRUE(memory->reserve(position));
    for (std::int64_t t = 0; t < position; ++t) fill_row(memory->latents(0), t, static_cast<int>(t % 100));
    for (std::int64_t t = 0; t + 1 < position; ++t) fill_row(memory->mtp_latents(), t, static_cast<int>(t % 90));
    memory->state(1, 0)[3] = 5.0f;
    memory->advance(position, kHidden);
    auto boundary = memory->snapshot();
    const auto alone = SequenceMemory::resume(pool, *boundary, BoundaryPages::Copied);
    ASSERT_TRUE(alone);
    for (std::int64_t t = 0; t < position; ++t) std::memset(memory->latents(0).row(t), 0x55, 1);
    memory.reset();
    boundary.reset();
    EXPECT_EQ(pool.latents().num_used(), (position + 63) / 64) << position;  // all its own: nobody else is left
    EXPECT_EQ(pool.mtp_latents().num_used(), (std::max<std::int64_t>(position, 1) - 1 + 63) / 64) << position;
    EXPECT_EQ(alone->state(1, 0)[3], 5.0f);
    for (std::int64_t t = 0; t < position; ++t) ASSERT_EQ(first_byte(alone->latents(0), t), t % 100) << position;
    for (std::int64_t t = 0; t + 1 < position; ++t) ASSERT_EQ(first_byte(alone->mtp_latents(), t), t % 90) << position;
  }
}

TEST(Boundary, ATimelineOfManyTurnsKeepsFillingItsBlocks) {
  const MemoryLayout layout = small_layout(true);
  MemoryPool pool(layout, 400);
  std::unique_ptr<SequenceMemory> memory = SequenceMemory::create(pool);
  std::unique_ptr<Boundary> boundary = memory->snapshot();
  for (std::int64_t position = 0; position < 9'000;) {
    memory.reset();
    memory = SequenceMemory::resume(pool, *boundary);
    ASSERT_TRUE(memory->reserve(position + 90));
    memory->advance(90, kHidden);
    position += 90;
    boundary = memory->snapshot();  // the one before leaves a hole where it had a page of its own
    const std::int64_t partial_pages = 2;
    ASSERT_LE(400 - pool.blocks().num_free(), layout.sequence_blocks(position) + layout.fixed_blocks() + partial_pages);
  }
}

TEST(Boundary, WholePagesAreSharedNotCopied) {
  MemoryPool pool(small_layout(false), 40);
  const auto memory = SequenceMemory::create(pool);
  ASSERT_TRUE(memory->reserve(640));
  memory->advance(640, kHidden);
  const std::int64_t used = pool.latents().num_used();
  const auto boundary = memory->snapshot();
  const auto resumed = SequenceMemory::resume(pool, *boundary);
  EXPECT_EQ(pool.latents().num_used(), used);
}

TEST(BlockPool, FreedPagesArePoisonedAtOnce) {
  MemoryPool pool(small_layout(false), 10, FreedMemory::Poisoned);
  auto memory = SequenceMemory::create(pool);
  ASSERT_TRUE(memory->reserve(65));
  memory->advance(64, kHidden);
  const auto keeps_block = memory->snapshot();
  fill_row(memory->latents(0), 64, 1);
  const std::byte* row = memory->latents(0).row(64);
  memory.reset();
  EXPECT_EQ(pool.latents().num_used(), 1);
  EXPECT_EQ(*row, std::byte{0xFF});
}

}  // namespace
}  // namespace calandra
