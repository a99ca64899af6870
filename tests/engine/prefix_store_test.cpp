// What the engine asks of its store, in the order in which a step asks it.

#include "engine/prefix_store.h"

#include "engine/engine_harness.h"

#include <gtest/gtest.h>

#include <numeric>

namespace calandra {
namespace {

class PrefixStoreTest : public EngineTest {
 protected:
  /// As a pass would take it there; what is computed does not matter here.
  static void advance(SequenceMemory& memory, std::int64_t position) {
    ASSERT_TRUE(memory.reserve(position));
    const std::vector<float> hidden(static_cast<std::size_t>(model().config().hidden));
    memory.advance(position - memory.position(), hidden);
  }
  Resumption resume(PrefixUser& user, const Tokens& tokens) { return store_.resume(user, tokens, pool_.blocks().num_free()); }

  MemoryPool pool_{model().layout(), 20 * blocks(512)};
  PrefixStore store_{pool_, model(), {}, [] {}};
};

TEST_F(PrefixStoreTest, WhoIsPreemptedAndAdmittedByOneStepGoesOnFromWhatItWasAdmittedWith) {
  Tokens tokens(310);
  std::iota(tokens.begin(), tokens.end(), 0);
  PrefixUser first;
  EXPECT_EQ(resume(first, Tokens(tokens.begin(), tokens.begin() + 300)).tokens, 0);
  auto memory = store_.make(first, tokens, 300);
  advance(*memory, 300);
  store_.leave(first, tokens, std::move(memory), true);

  PrefixUser second;
  EXPECT_EQ(resume(second, tokens).tokens, 300);
  memory = store_.make(second, tokens, 310);
  EXPECT_EQ(memory->position(), 300);
  advance(*memory, 305);
  // The scheduler decides both before anything is done: the memory of before is given away after the claim of the admission.
  const Resumption again = resume(second, tokens);
  store_.leave(second, tokens, std::move(memory), true);
  EXPECT_EQ(store_.make(second, tokens, 310)->position(), again.tokens);
  EXPECT_EQ(again.tokens, 300);
}

}  // namespace
}  // namespace calandra
