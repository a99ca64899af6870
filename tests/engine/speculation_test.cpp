// Speculation changes when tokens come and nothing else: tokens, texts, log probabilities, logits and what the memory holds are bit for bit
// those of plain decoding, whatever the drafters say.

#include "engine/speculation_harness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace calandra {
namespace {

/// Some answers of every kind, each twice: the second goes on from the first.
std::vector<AnswerRequest> next_turns(const std::vector<AnswerRequest>& requests, const std::vector<Answered>& before) {
  std::vector<AnswerRequest> turns = requests;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    Tokens& prompt = turns[i].prompt;
    prompt.insert(prompt.end(), before[i].heard->ids.begin(), before[i].heard->ids.end());
    for (std::int32_t token = 5; token < 12; ++token) prompt.push_back(token);
    turns[i].options.max_tokens = 12;
  }
  return turns;
}

class SpeculatedModels : public SpeculationTest, public testing::WithParamInterface<std::string> {
 protected:
  Model& model() const { return drafting_model(GetParam()); }
  std::vector<AnswerRequest> requests(unsigned seed, std::size_t count = 6) const {
    std::vector<AnswerRequest> all;
    for (unsigned i = 0; all.size() < count; ++i) {
      AnswerRequest wanted = request(seed * 100 + i);
      for (std::int32_t& token : wanted.prompt) token %= static_cast<std::int32_t>(model().num_samplable());
      wanted.prompt.resize(std::min<std::size_t>(wanted.prompt.size(), static_cast<std::size_t>(model().config().context) / 2));
      if (model().tokenizer_if_any() == nullptr) wanted.options.stop = {};
      if (i % 3 == 1) wanted.options.sampling.presence_penalty = 1.5;
      if (i % 4 == 2) wanted.options.sampling.logit_bias = {{7, 3.0f}, {9, -100.0f}};
      all.push_back(std::move(wanted));
    }
    return all;
  }

  /// Both turns with such drafts, against both without any.
  void expect_no_difference(
      unsigned seed, std::int64_t drafts,
      const std::function<std::shared_ptr<Drafter>(const Truth& first, const Truth& second)>& drafter) const {
    const std::vector<AnswerRequest> first = requests(seed);
    Engine plain(model(), options_with(model(), 0));
    const std::vector<Answered> expected = answers(plain, first);
    const std::vector<AnswerRequest> second = next_turns(first, expected);
    const std::vector<Answered> expected_next = answers(plain, second);
    Engine drafting(model(), options_with(model(), drafts, drafter(Truth(first, expected), Truth(second, expected_next))));
    const std::vector<Answered> actual = answers(drafting, first);
    for (std::size_t i = 0; i < first.size(); ++i) expect_same(actual[i], expected[i], fmt::format("answer {} of {}", i, seed));
    const std::vector<Answered> actual_next = answers(drafting, second);
    for (std::size_t i = 0; i < second.size(); ++i) {
      expect_same(actual_next[i], expected_next[i], fmt::format("second answer {} of {}", i, seed));
      EXPECT_EQ(actual_next[i].heard->summary.cached_tokens, expected_next[i].heard->summary.cached_tokens);
    }
    statistics_ = drafting.statistics();
    expect_all_back(drafting);
  }
  mutable EngineStatistics statistics_;
};

TEST_P(SpeculatedModels, DraftsThatAreAlwaysRight) {
  expect_no_difference(1, 3, [](const Truth& first, const Truth& second) {
    return std::make_shared<ScriptedDrafter>([=](const Tokens& tokens, std::int64_t wanted) {
      const Tokens next = second.after(tokens, wanted);
      return next.empty() ? first.after(tokens, wanted) : next;
    });
  });
  EXPECT_EQ(statistics_.drafters[0].num_accepted(), statistics_.drafters[0].num_drafted());
  EXPECT_GT(statistics_.drafters[0].num_accepted(), 0);
}

TEST_P(SpeculatedModels, DraftsThatAreAlwaysWrong) {
  const auto vocab = static_cast<std::int32_t>(model().num_samplable());
  expect_no_difference(2, 2, [&](const Truth& first, const Truth& second) {
    return std::make_shared<ScriptedDrafter>([=](const Tokens& tokens, std::int64_t wanted) {
      Tokens next = second.after(tokens, wanted);
      if (next.empty()) next = first.after(tokens, wanted);
      for (std::int32_t& token : next) token = (token + 1) % vocab;
      return next;
    });
  });
  EXPECT_EQ(statistics_.drafters[0].num_accepted(), 0);
  EXPECT_GT(statistics_.drafters[0].num_drafted(), 0);
}

TEST_P(SpeculatedModels, DraftsThatAreRightByChance) {
  const auto vocab = static_cast<std::int32_t>(model().num_samplable());
  const auto random = std::make_shared<std::mt19937>(3);
  for (unsigned seed = 3; seed < 6; ++seed) {
    expect_no_difference(seed, 1 + 2 * (seed - 2), [&](const Truth& first, const Truth& second) {
      return std::make_shared<ScriptedDrafter>([=](const Tokens& tokens, std::int64_t wanted) {
        Tokens next = second.after(tokens, wanted);
        if (next.empty()) next = first.after(tokens, wanted);
        for (std::int32_t& token : next) {
          if ((*random)() % 4 == 0) token = static_cast<std::int32_t>((*random)() % static_cast<unsigned>(vocab));
        }
        next.resize((*random)() % (next.size() + 1));
        return next;
      });
    });
    EXPECT_GT(statistics_.drafters[0].num_accepted(), 0);
    EXPECT_LT(statistics_.drafters[0].num_accepted(), statistics_.drafters[0].num_drafted());
  }
}

TEST_P(SpeculatedModels, DraftsOfTheModelsOwnLayerAndOfTheText) {
  for (const std::int64_t drafts : {1, 2, 4, 8}) {
    expect_no_difference(static_cast<unsigned>(drafts), drafts, [](const Truth&, const Truth&) { return nullptr; });
    std::int64_t drafted = 0;
    for (const DrafterStatistics& drafter : statistics_.drafters) drafted += drafter.num_drafted();
    EXPECT_GT(drafted, 0);
  }
}

TEST_P(SpeculatedModels, ADrafterThatThrowsOrIsTooEagerCostsNothingButItsDrafts) {
  const auto calls = std::make_shared<int>(0);
  expect_no_difference(9, 3, [&](const Truth& first, const Truth& second) {
    class Eager : public Drafter {
     public:
      Eager(Truth before, Truth after, std::shared_ptr<int> counted)
          : first_(std::move(before)), second_(std::move(after)), calls_(std::move(counted)) {}
      std::string_view name() const override { return "eager"; }
      std::int64_t look(DraftedAnswer&) override { return kMostDrafts; }
      void draft(std::span<DraftedAnswer* const> answers) override {
        for (DraftedAnswer* answer : answers) {
          const Tokens next = second_.after(answer->tokens, 100);
          answer->drafts = next.empty() ? first_.after(answer->tokens, 100) : next;
          if (++*calls_ % 5 == 0) throw std::runtime_error("no more");
        }
      }

     private:
      Truth first_, second_;
      std::shared_ptr<int> calls_;
    };
    return std::make_shared<Eager>(first, second, calls);
  });
  EXPECT_GT(*calls, 10);
  EXPECT_GT(statistics_.drafters[0].num_accepted(), 0);
  EXPECT_EQ(statistics_.drafters[0].drafted[3], 0) << "three are wanted at most";
}

INSTANTIATE_TEST_SUITE_P(Models, SpeculatedModels,
                         testing::Values("models/austen-5m", "tests/data/golden/b_flash_bf16", "tests/data/golden/c_flash31_fp8"),
                         name_of_model);

}  // namespace
}  // namespace calandra
