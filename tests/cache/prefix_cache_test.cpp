// What is found, what goes, and that nothing is lost: on a real pool.

#include "cache/prefix_cache.h"
#include "support/small_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace calandra {
namespace {

using Cache = PrefixCache<TokenKey>;

std::vector<std::int32_t> counting(std::int64_t count, std::int32_t from = 0) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

/// A boundary of a sequence of that many tokens, that nobody else holds any more.
std::unique_ptr<Boundary> boundary_at(MemoryPool& pool, std::int64_t position) {
  const auto memory = SequenceMemory::create(pool);
  if (!memory || !memory->reserve(position)) return nullptr;
  return memory->boundary_ahead(position);
}

TEST(PrefixCache, TheDeepestBoundaryThatIsAPrefixAndWithinTheLimit) {
  MemoryPool pool(small_layout(true), 200);
  Cache cache(pool);
  const auto tokens = counting(300);
  for (const std::int64_t position : {100, 200, 300})
    cache.store("", TokenKey(tokens), boundary_at(pool, position), BoundaryKind::End);
  const auto found = [&](std::span<const std::int32_t> key, std::int64_t limit) {
    const auto match = cache.match("", TokenKey(key), limit);
    return std::pair(match.boundary ? match.boundary->position() : 0, match.common);
  };
  EXPECT_EQ(found(tokens, 300), std::pair(std::int64_t{300}, std::int64_t{300}));
  EXPECT_EQ(found(tokens, 299), std::pair(std::int64_t{200}, std::int64_t{300}));
  EXPECT_EQ(found(counting(1000), 999), std::pair(std::int64_t{300}, std::int64_t{300}));
  auto parting = tokens;
  parting[250] = -1;
  EXPECT_EQ(found(parting, 299), std::pair(std::int64_t{200}, std::int64_t{250}));
  parting[0] = -1;
  EXPECT_EQ(found(parting, 299), std::pair(std::int64_t{0}, std::int64_t{0}));
}

TEST(PrefixCache, SpacesDoNotSeeEachOther) {
  MemoryPool pool(small_layout(false), 100);
  Cache cache(pool);
  const auto tokens = counting(100);
  cache.store("one", TokenKey(tokens), boundary_at(pool, 100), BoundaryKind::End);
  EXPECT_TRUE(cache.match("one", TokenKey(tokens), 100).boundary);
  const auto other = cache.match("two", TokenKey(tokens), 100);
  EXPECT_FALSE(other.boundary);
  EXPECT_EQ(other.common, 0);
}

TEST(PrefixCache, ThePoolTakesBackWhatItNeedsAndNoMore) {
  const MemoryLayout layout = small_layout(false);
  const std::int64_t each = layout.sequence_blocks(100);
  MemoryPool pool(layout, 5 * each);
  Cache cache(pool);
  for (int i = 0; i < 4; ++i) cache.store("", TokenKey(counting(100, 1000 * i)), boundary_at(pool, 100), BoundaryKind::End);
  EXPECT_EQ(pool.blocks().num_free(), each);
  const auto first = SequenceMemory::create(pool);
  ASSERT_TRUE(first->reserve(100));
  EXPECT_EQ(cache.statistics().boundaries, 4);
  const auto second = SequenceMemory::create(pool);
  ASSERT_TRUE(second && second->reserve(100));
  EXPECT_EQ(cache.statistics().boundaries, 3);
}

TEST(PrefixCache, WhatIsPinnedStaysAndThePoolIsDry) {
  const MemoryLayout layout = small_layout(false);
  const std::int64_t each = layout.sequence_blocks(100);
  MemoryPool pool(layout, 2 * each, FreedMemory::Poisoned);
  Cache cache(pool);
  cache.store("", TokenKey(counting(100)), boundary_at(pool, 100), BoundaryKind::End);
  {
    const auto match = cache.match("", TokenKey(counting(100)), 100);
    const auto memory = SequenceMemory::create(pool);
    ASSERT_TRUE(memory && memory->reserve(100));
    EXPECT_FALSE(SequenceMemory::create(pool));
    EXPECT_EQ(match.boundary->position(), 100);
  }
  const auto one = SequenceMemory::create(pool), two = SequenceMemory::create(pool);
  EXPECT_TRUE(one && two);
  EXPECT_EQ(cache.statistics().boundaries, 0);
}

TEST(PrefixCache, WhatSparesLessForItsBlocksGoesFirst) {
  const MemoryLayout layout = small_layout(false);
  MemoryPool pool(layout, 100);
  Cache cache(pool);
  const auto tokens = counting(1000);
  // On one path: the boundary at 990 spares 10 tokens beside that at 980, which spares 480.
  for (const std::int64_t position : {500, 980, 990})
    cache.store("", TokenKey(tokens), boundary_at(pool, position), BoundaryKind::End);
  cache.reclaim(pool.blocks().num_free() + 1);
  EXPECT_EQ(cache.match("", TokenKey(tokens), 1000).boundary->position(), 980);
  // Without it, nobody spares less than the first: but it has been asked for.
  EXPECT_EQ(cache.match("", TokenKey(tokens), 979).boundary->position(), 500);
}

TEST(PrefixCache, WhatIsAskedForOutlivesWhatIsNot) {
  const MemoryLayout layout = small_layout(false);
  MemoryPool pool(layout, 8 * layout.sequence_blocks(100));
  Cache cache(pool);
  const TokenKey wanted(counting(100));
  cache.store("", wanted, boundary_at(pool, 100), BoundaryKind::End);
  for (int i = 1; i < 100; ++i) {
    EXPECT_TRUE(cache.match("", wanted, 100).boundary) << i;
    cache.store("", TokenKey(counting(100, 1000 * i)), boundary_at(pool, 100), BoundaryKind::End);
  }
  // And nothing for ever.
  for (int i = 100; i < 2000 && cache.match("two", wanted, 100).common == 0; ++i)
    cache.store("", TokenKey(counting(100, 1000 * i)), boundary_at(pool, 100), BoundaryKind::End);
  EXPECT_FALSE(cache.match("", wanted, 100).boundary);
}

TEST(PrefixCache, WhatLiesBehindOneThatIsGoneIsFoundAllTheSame) {
  MemoryPool pool(small_layout(true), 200);
  Cache cache(pool);
  const auto tokens = counting(900);
  // The one that all others have in common spares least.
  cache.store("", TokenKey(tokens), boundary_at(pool, 70), BoundaryKind::Spaced);
  auto other = tokens;
  other[600] = -1;
  for (const auto& path : {tokens, other}) cache.store("", TokenKey(path), boundary_at(pool, 800), BoundaryKind::End);
  cache.reclaim(pool.blocks().num_free() + 1);
  ASSERT_EQ(cache.statistics().evicted, 1);
  const auto found = [&](std::span<const std::int32_t> key) {
    const auto match = cache.match("", TokenKey(key), std::ssize(key));
    return match.boundary ? match.boundary->position() : 0;
  };
  EXPECT_EQ(found(std::span(tokens).first(100)), 0);
  EXPECT_EQ(found(tokens), 800);
  EXPECT_EQ(found(other), 800);
}

TEST(PrefixCache, ABoundaryOfLittleWorthPushesNothingOut) {
  const MemoryLayout layout = small_layout(false);
  MemoryPool pool(layout, 2 * layout.sequence_blocks(1000));
  Cache cache(pool);
  cache.store("", TokenKey(counting(1000)), boundary_at(pool, 1000), BoundaryKind::End);
  EXPECT_TRUE(cache.admits(BoundaryKind::Spaced, 10, 0));
  BlockList others(pool.blocks());
  ASSERT_TRUE(others.grow(pool.blocks().num_free()));
  EXPECT_FALSE(cache.admits(BoundaryKind::Spaced, 10, 0));
  EXPECT_TRUE(cache.admits(BoundaryKind::Asked, 5000, 0));
}

/// Three boundaries on one path, of one sequence that is gone, and one in another space.
struct SmallTree {
  SmallTree() {
    const auto memory = SequenceMemory::create(pool);
    EXPECT_TRUE(memory->reserve(300));
    const auto tokens = counting(300);
    for (const auto& [position, kind] :
         {std::pair{100, BoundaryKind::Asked}, std::pair{200, BoundaryKind::Spaced}, std::pair{300, BoundaryKind::End}})
      cache.store("one", TokenKey(tokens), memory->boundary_ahead(position), kind);
    cache.store("two", TokenKey(counting(50)), boundary_at(pool, 50), BoundaryKind::Message);
  }
  std::int64_t used() { return pool.blocks().num_blocks() - pool.blocks().num_free(); }

  MemoryPool pool{small_layout(true), 300, FreedMemory::Poisoned};
  Cache cache{pool};
};

bool every_space(const std::string& /*space*/) { return true; }
bool space_one(const std::string& space) { return space == "one"; }

TEST(PrefixCache, ASurveyShowsTheTreeAndItsBlocksAreThoseOfThePool) {
  SmallTree tree;
  EXPECT_EQ(tree.cache.statistics().blocks, tree.used());
  const auto pin = tree.cache.match("one", TokenKey(counting(250)), 250);
  const CacheSurvey survey = tree.cache.survey(every_space, 10);
  EXPECT_EQ(survey.left_off, 0);
  EXPECT_EQ(survey.block_bytes, tree.pool.layout().block_bytes);
  ASSERT_EQ(survey.spaces.size(), 2u);
  ASSERT_EQ(survey.spaces[0].size(), 3u);
  std::int64_t blocks = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const CacheSurvey::Boundary& boundary = survey.spaces[0][i];
    EXPECT_EQ(boundary.position, 100 * static_cast<std::int64_t>(i + 1));
    EXPECT_EQ(boundary.parent, static_cast<std::int64_t>(i) - 1);
    EXPECT_EQ(boundary.kind, (std::array{BoundaryKind::Asked, BoundaryKind::Spaced, BoundaryKind::End})[i]);
    EXPECT_EQ(boundary.hits, i == 1 ? 1 : 0);
    EXPECT_EQ(boundary.is_pinned, i == 1);
    EXPECT_GE(boundary.idle_seconds, 0);
    EXPECT_LT(boundary.idle_seconds, 60);
    blocks += boundary.blocks;
  }
  ASSERT_EQ(survey.spaces[1].size(), 1u);
  EXPECT_EQ(survey.spaces[1][0].parent, -1);
  EXPECT_EQ(blocks + survey.spaces[1][0].blocks, tree.used());

  const CacheSurvey of_one = tree.cache.survey(space_one, 10);
  ASSERT_EQ(of_one.spaces.size(), 1u);
  EXPECT_EQ(of_one.spaces[0].size(), 3u);
}

TEST(PrefixCache, ASurveyIsBoundedAndLeavesOffWhatIsWorthLeast) {
  SmallTree tree;
  const CacheSurvey survey = tree.cache.survey(space_one, 2);
  EXPECT_EQ(survey.left_off, 1);
  ASSERT_EQ(survey.spaces.size(), 1u);
  ASSERT_EQ(survey.spaces[0].size(), 2u);
  // The one in the middle spares as much as the others and is the least likely; the last one's parent is the first then.
  EXPECT_EQ(survey.spaces[0][0].position, 100);
  EXPECT_EQ(survey.spaces[0][1].position, 300);
  EXPECT_EQ(survey.spaces[0][1].parent, 0);
  EXPECT_TRUE(tree.cache.survey(every_space, 0).spaces.empty());
  EXPECT_EQ(tree.cache.survey(every_space, 0).left_off, 4);
}

TEST(PrefixCache, AFlushDropsWhatIsMeantAndNotPinned) {
  SmallTree tree;
  {
    const auto pin = tree.cache.match("one", TokenKey(counting(250)), 250);
    const std::int64_t before = tree.used();
    const CacheFlush first = tree.cache.flush(space_one);
    EXPECT_EQ(first.boundaries, 2);
    EXPECT_EQ(first.pinned, 1);
    EXPECT_EQ(first.bytes, (before - tree.used()) * tree.pool.layout().block_bytes);
    EXPECT_GT(first.bytes, 0);
    EXPECT_EQ(pin.boundary->position(), 200);
  }
  EXPECT_EQ(tree.cache.statistics().boundaries, 2);
  EXPECT_EQ(tree.cache.statistics().blocks, tree.used());
  EXPECT_EQ(tree.cache.flush(space_one).boundaries, 1);
  EXPECT_EQ(tree.cache.flush(space_one).boundaries, 0);
  EXPECT_TRUE(tree.cache.match("two", TokenKey(counting(50)), 50).boundary);
  EXPECT_EQ(tree.cache.flush(every_space).boundaries, 1);
  EXPECT_EQ(tree.used(), 0);
  EXPECT_EQ(tree.cache.statistics().blocks, 0);
}

TEST(PrefixCache, NothingIsLostWhateverHappens) {
  const MemoryLayout layout = small_layout(true);
  EXPECT_TRUE(rc::check("", [&] {
    MemoryPool pool(layout, 60, FreedMemory::Poisoned);
    {
      Cache cache(pool);
      std::vector<Cache::Match> matches;
      std::vector<std::unique_ptr<SequenceMemory>> running;
      const auto steps = *rc::gen::container<std::vector<std::pair<int, std::int64_t>>>(
          rc::gen::pair(rc::gen::inRange(0, 5), rc::gen::inRange<std::int64_t>(1, 400)));
      for (const auto& [what, length] : steps) {
        const TokenKey key(counting(length, static_cast<std::int32_t>(length % 3) * 1000));
        switch (what) {
          case 0:
            if (auto boundary = boundary_at(pool, length)) cache.store("", key, std::move(boundary), BoundaryKind::Spaced);
            break;
          case 1: matches.push_back(cache.match("", key, length - 1)); break;
          case 2: matches.clear(); break;
          case 3:
            if (!matches.empty() && matches.back().boundary) {
              RC_ASSERT(matches.back().boundary->position() <= matches.back().common);
              running.push_back(SequenceMemory::resume(pool, *matches.back().boundary));
            }
            break;
          default: running.clear(); break;
        }
        RC_ASSERT(cache.statistics().stored - cache.statistics().evicted == cache.statistics().boundaries);
      }
      matches.clear();
      running.clear();
      cache.reclaim(60);
      RC_ASSERT(pool.blocks().num_free() == 60);
      RC_ASSERT(cache.statistics().boundaries == 0);
    }
    RC_ASSERT(pool.latents().num_used() == 0);
  }));
}

}  // namespace
}  // namespace calandra
