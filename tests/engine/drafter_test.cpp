// Where drafts come from: earlier places of a text against all its places, and the draft layer against the float64 reference.

#include "engine/speculation_harness.h"
#include "engine/trace.h"
#include "support/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace calandra {
namespace {

using testing::ElementsAre;

/// Looks at every place there is: of the latest so many that end with the last three tokens the longest match, of equal ones the latest.
SuffixIndex::Match searched(std::span<const std::int32_t> text, int most_places) {
  SuffixIndex::Match best;
  int places = 0;
  for (std::int64_t end = std::ssize(text) - 1; end >= 3 && places < most_places; --end) {
    std::int64_t length = 0;
    while (length < std::min<std::int64_t>(end, 64) &&
           text[static_cast<std::size_t>(end - 1 - length)] == text[text.size() - 1 - static_cast<std::size_t>(length)])
      ++length;
    if (length < 3) continue;
    ++places;
    if (length > best.length) best = {length, end};
  }
  return best;
}

TEST(SuffixIndex, FindsWhatASearchThroughTheWholeTextFinds) {
  std::mt19937 random(1);
  int found = 0, long_ones = 0, crowded = 0;
  for (int round = 0; round < (long_tests() ? 600 : 40); ++round) {
    const auto alphabet = static_cast<unsigned>(1 + random() % 5);
    const bool has_large_ids = round % 4 == 0;
    Tokens text;
    SuffixIndex index;
    const std::size_t length = 1 + random() % 400;
    while (text.size() < length) {
      // Grows by one token, as an answer, or by many, as a prompt; at times by a copy of what was there.
      const std::size_t copied = random() % 6 == 0 && !text.empty() ? random() % std::min<std::size_t>(text.size(), 90) : 0;
      const std::size_t from = copied > 0 ? random() % (text.size() - copied + 1) : 0;
      for (std::size_t i = 0; i < copied; ++i) text.push_back(text[from + i]);
      const std::size_t more = 1 + random() % (random() % 8 == 0 ? 80 : 2);
      for (std::size_t i = 0; i < more; ++i)
        text.push_back(static_cast<std::int32_t>(random() % alphabet * (has_large_ids ? 31'000u : 1u)));
      const SuffixIndex::Match actual = index.find(text);
      SuffixIndex::Match expected = searched(text, 32);
      // Places of other tokens with the same hash may stand among the 32 that are looked at. Of two tokens, 0 and 1, there are none.
      const bool is_exact = text.size() <= 32 || (alphabet <= 2 && !has_large_ids);
      for (int places = 31; !is_exact && places > 0 && actual.end != expected.end; --places) expected = searched(text, places);
      ASSERT_EQ(actual.length, expected.length) << "round " << round << ", " << text.size() << " tokens";
      ASSERT_EQ(actual.end, expected.end) << "round " << round << ", " << text.size() << " tokens";
      found += expected.length > 0 ? 1 : 0;
      long_ones += expected.length == SuffixIndex::kMostMatch ? 1 : 0;
      crowded += alphabet == 1 && text.size() > 40 ? 1 : 0;
    }
  }
  EXPECT_GT(found, 100);
  EXPECT_GT(long_ones, 10);
  EXPECT_GT(crowded, 10);
}

TEST(SuffixIndex, ShortTextsAndNewOnesHaveNoPlace) {
  SuffixIndex index;
  Tokens text;
  EXPECT_EQ(index.find(text).length, 0);
  for (std::int32_t token = 0; token < 200; ++token) {
    text.push_back(token);
    EXPECT_EQ(index.find(text).length, 0) << token;
  }
}

class DrafterTest : public SpeculationTest {
 protected:
  /// What a drafter makes of these tokens.
  static Tokens drafts_of(Drafter& drafter, const Tokens& text, std::int64_t wanted, std::vector<std::int32_t> stop_ids = {}) {
    GenerationOptions options;
    options.stop_ids = std::move(stop_ids);
    const AnswerBuilder builder(nullptr, text, options, 4096);
    DraftedAnswer answer(builder, text);
    if (drafter.look(answer) == 0) return {};
    answer.wanted = wanted;
    DraftedAnswer* const asked = &answer;
    drafter.draft(std::span(&asked, 1));
    return answer.drafts;
  }
};

TEST_F(DrafterTest, WhatIsLookedUpIsWhatCameAfterTheSameTokens) {
  const auto drafter = lookup_drafter();
  EXPECT_THAT(drafts_of(*drafter, {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, 4), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(drafts_of(*drafter, {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, 4, {6}), ElementsAre(4, 5, 6)) << "nothing behind an end";
  EXPECT_THAT(drafts_of(*drafter, {1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 1}, 4), ElementsAre()) << "no three tokens of the end";
  // The longer of two matches, although it is older; the later of equal ones.
  EXPECT_THAT(drafts_of(*drafter, {7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 3}, 1), ElementsAre(4));
  EXPECT_THAT(drafts_of(*drafter, {1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 3}, 1), ElementsAre(5));
}

TEST_F(DrafterTest, ATextThatRepeatsItselfToItsEndGoesOnRepeating) {
  const auto drafter = lookup_drafter();
  EXPECT_THAT(drafts_of(*drafter, {5, 5, 5, 5}, 6), ElementsAre(5, 5, 5, 5, 5, 5));
  EXPECT_THAT(drafts_of(*drafter, {9, 1, 2, 1, 2, 1}, 8), ElementsAre(2, 1, 2, 1, 2, 1, 2, 1));
  EXPECT_THAT(drafts_of(*drafter, {1, 2, 3, 4, 1, 2, 3, 4}, 8), ElementsAre(1, 2, 3, 4, 1, 2, 3, 4));
}

/// The first drafts of every model's own layer, by the engine, are those of the reference; and at every place of an answer those of a trace that
/// begins there.
TEST_F(DrafterTest, TheDraftLayerSaysWhatTheReferenceSays) {
  int compared = 0;
  for (const std::string& name : golden_variants()) {
    const auto info = read_json(golden_path(name) / "golden.json");
    if (!info.contains("mtp_draft_ids")) continue;
    SCOPED_TRACE(name);
    ++compared;
    Model model(golden_path(name).string(), {.activations = Activations::Fp32, .threads = 2, .with_mtp = true});
    const auto ids = GoldenTensors::load(golden_path(name) / "golden.safetensors").ints("input_ids");
    AnswerRequest wanted;
    wanted.prompt.assign(ids.begin(), ids.end());
    wanted.options.sampling.temperature = 0;
    wanted.options.max_tokens = 8;
    const auto recorded = std::make_shared<RecordedDrafter>(mtp_drafter(model));
    Tokens made;
    {
      Engine engine(model, options_with(model, 3, recorded));
      made = hear(engine, wanted)->ids;
    }
    const Tokens after_first = joined(wanted.prompt, {made.front()});
    ASSERT_TRUE(recorded->drafted.contains(after_first));
    EXPECT_EQ(recorded->drafted.at(after_first), info.at("mtp_draft_ids").get<Tokens>());
    EXPECT_GT(recorded->drafted.size(), 1u);
    for (const auto& [tokens, drafts] : recorded->drafted) {
      TraceOptions asked;
      asked.ids = first_of(tokens, std::ssize(tokens) - 1);
      asked.drafts = static_cast<int>(drafts.size());
      EXPECT_EQ(run_trace(model, asked).draft_ids, drafts) << tokens.size() << " tokens";
    }
  }
  EXPECT_EQ(compared, 3);
}

}  // namespace
}  // namespace calandra
