// Whatever is asked, whoever drafts, however many, in whatever company: answers are those without drafts. Who drafts changes from step to
// step of every answer.

#include "engine/generate.h"
#include "engine/speculation_harness.h"
#include "support/wide_slice.h"

#include <gtest/gtest.h>

namespace calandra {
namespace {

class RandomSpeculation : public SpeculationTest, public testing::WithParamInterface<std::string> {
 protected:
  static bool is_wide() { return GetParam() == "wide_slice"; }
  static Model& model() { return drafting_model(is_wide() ? wide_slice_folder().string() : GetParam()); }

  std::int64_t below(std::int64_t limit) { return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit)); }
  bool one_in(std::int64_t n) { return below(n) == 0; }

  Tokens text(std::int64_t count) {
    const std::int64_t alphabet = one_in(3) ? 4 : model().num_samplable();  // of a few tokens, for texts that repeat themselves
    Tokens tokens;
    for (std::int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<std::int32_t>(below(alphabet)));
    return tokens;
  }

  GenerationOptions options() {
    GenerationOptions options;
    SamplingOptions& sampling = options.sampling;
    sampling.temperature = one_in(3) ? 0 : 0.2 * static_cast<double>(1 + below(8));
    sampling.seed = random_();
    if (one_in(3)) sampling.top_k = 1 + static_cast<int>(below(30));
    if (one_in(3)) sampling.top_p = 0.5 + 0.05 * static_cast<double>(below(10));
    if (one_in(4)) sampling.min_p = 0.02 * static_cast<double>(below(10));
    if (one_in(4)) sampling.repetition_penalty = 0.8 + 0.1 * static_cast<double>(below(8));
    if (one_in(4)) sampling.frequency_penalty = -1 + 0.5 * static_cast<double>(below(6));
    if (one_in(4)) sampling.presence_penalty = -1 + 0.5 * static_cast<double>(below(6));
    if (one_in(4)) sampling.logit_bias = {{static_cast<std::int32_t>(below(50)), 4.0F}, {60, -100.0F}};
    options.max_tokens = is_wide() ? 4 + below(8) : 1 + below(40);
    if (one_in(4)) options.stop_ids = text(20);
    if (one_in(6)) options.min_tokens = below(options.max_tokens);
    if (one_in(3) && model().tokenizer_if_any() != nullptr) options.stop = {"e", "th", "ing "};
    if (one_in(2)) options.logprobs = static_cast<int>(below(4));
    if (one_in(5)) options.prompt_logprobs = static_cast<int>(below(3));
    return options;
  }

  std::vector<AnswerRequest> requests() {
    std::vector<AnswerRequest> all(static_cast<std::size_t>(2 + below(is_wide() ? 2 : 6)));
    const Tokens common = text(below(is_wide() ? 10 : 140));
    for (AnswerRequest& wanted : all) {
      wanted.prompt = joined(one_in(2) ? common : Tokens(), text(1 + below(is_wide() ? 10 : 80)));
      wanted.options = options();
      wanted.sample = static_cast<std::uint32_t>(below(3));
      wanted.priority = static_cast<Priority>(below(3));
    }
    return all;
  }

  /// With guides of their own, for those that have one.
  std::vector<Answered> ask(Engine& engine, std::vector<AnswerRequest> requests) const {
    std::vector<std::shared_ptr<HistoryGuide>> guides(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].prompt.back() % 3 != 0) continue;
      guides[i] = std::make_shared<HistoryGuide>(model().num_samplable());
      requests[i].guide = guides[i];
    }
    const std::vector<Answered> all = answers(engine, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (!guides[i]) continue;
      EXPECT_EQ(guides[i]->told, all[i].heard->ids);
      EXPECT_EQ(guides[i]->broken, 0);
    }
    return all;
  }

  /// Right, wrong, of no sense, of the model's own layer, looked up: each at some of the steps, nobody at others.
  SpeculationOptions speculation(const Truth& truth) {
    SpeculationOptions options;
    options.setting = one_in(4) ? DraftSetting{} : DraftSetting{.automatic = false, .drafts = 1 + below(kMostDrafts)};
    const auto vocab = static_cast<std::uint64_t>(model().num_samplable());
    const std::uint64_t seed = random_();
    const std::vector<std::shared_ptr<Drafter>> all = {
        partly_right(truth, model(), [](const Tokens&) { return kMostDrafts; }),
        partly_right(truth, model(), [=](const Tokens& tokens) { return luck(tokens, seed) % 6; }),
        std::make_shared<ScriptedDrafter>([=](const Tokens& tokens, std::int64_t wanted) {
          Tokens drafts(luck(tokens, seed) % static_cast<std::uint64_t>(wanted + 1));
          for (std::size_t i = 0; i < drafts.size(); ++i) drafts[i] = static_cast<std::int32_t>(luck(tokens, seed + i) % vocab);
          return drafts;
        }),
        mtp_drafter(model()),
        lookup_drafter(),
    };
    const auto kinds = static_cast<std::uint64_t>(std::ssize(all) + (one_in(2) ? 1 : 0));
    for (std::size_t i = 0; i < all.size(); ++i) {
      options.drafters.push_back(
          std::make_shared<DrafterAtTimes>(all[i], [=](const Tokens& tokens) { return luck(tokens, seed + 77) % kinds == i; }));
    }
    return options;
  }

  std::mt19937_64 random_;
};

TEST_P(RandomSpeculation, AnswersAreThoseWithoutDrafts) {
  const int rounds = long_tests() ? (is_wide() ? 10 : 100) : (is_wide() ? 2 : 5);
  std::int64_t drafted = 0, accepted = 0;
  for (int round = 0; round < rounds; ++round) {
    random_.seed(static_cast<std::uint64_t>(round) + 1);
    const std::vector<AnswerRequest> first = requests();
    EngineOptions plain = options_with(model(), 0);
    plain.prefixes.keeps = false;
    Engine without(model(), plain);
    const std::vector<Answered> expected = ask(without, first);
    const Truth truth(first, expected);
    EngineOptions options = options_with(model(), 0);
    options.speculation = speculation(truth);
    options.prefixes.keeps = one_in(2);
    if (one_in(2)) {
      options.limits.prefill_tokens = 1 + below(40);
      options.limits.prefill_tokens_beside_decodes = 1 + below(20);
    }
    if (round % 2 == 1) {  // not everybody at once
      options.pool_bytes = 2 * model().layout().sequence_blocks(260) * model().layout().block_bytes;
      options.limits.reserved_new_tokens = 1;
    }
    Engine engine(model(), options);
    for (int time = 0; time < 2; ++time) {
      const std::vector<Answered> actual = ask(engine, first);
      for (std::size_t i = 0; i < first.size(); ++i)
        expect_same(actual[i], expected[i], fmt::format("round {}, answer {}, time {}", round, i, time));
      ASSERT_FALSE(HasFailure());
    }
    expect_all_back(engine);
    const EngineStatistics statistics = engine.statistics();
    drafted += num_drafted(statistics);
    for (const DrafterStatistics& drafter : statistics.drafters) accepted += drafter.num_accepted();
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(drafted, accepted);
}

INSTANTIATE_TEST_SUITE_P(Of, RandomSpeculation,
                         testing::Values("models/austen-5m", "tests/data/golden/b_flash_bf16", "tests/data/golden/c_flash31_fp8",
                                         "tests/data/golden/d_mix_fp4", "wide_slice"),
                         name_of_model);

/// A session that is gone on with, forked, and left in the middle of a step.
TEST_F(SpeculationTest, ASessionWithDraftsAnswersAsAFreshOneWithout) {
  Model& model = drafting_model();
  std::mt19937_64 random(5);
  std::int64_t accepted = 0, rejected = 0;
  for (int round = 0; round < (long_tests() ? 60 : 5); ++round) {
    SpeculationOptions options;
    options.setting = {.automatic = round % 4 == 3, .drafts = 1 + round % 8};
    Speculation speculation(model, options);
    Session session(model, 512, FreedMemory::Poisoned);
    Tokens history = random_tokens(10 + random() % 100, static_cast<unsigned>(round));
    for (int turn = 0; turn < 4; ++turn) {
      GenerationOptions wanted;
      wanted.max_tokens = 1 + static_cast<std::int64_t>(random() % 30);
      wanted.sampling.temperature = turn % 2 == 0 ? 0 : 0.7;
      wanted.sampling.seed = random();
      if (turn == 1) wanted.stop = {"e"};
      wanted.logprobs = 1;
      // Leaves after so many texts, or is stopped.
      const std::uint64_t leaves = 1 + random() % 10, way = random() % 3;
      const auto listener = [&] {
        GenerationListener made;
        const auto heard = std::make_shared<std::uint64_t>(0);
        if (way == 1) made.text = [=](std::string_view) { return ++*heard < leaves; };
        return made;
      };
      Session fresh(model, 512);
      const Generation expected = generate(model, fresh, history, wanted, listener());
      const Generation actual = generate(model, session, history, wanted, listener(), &speculation);
      const std::string what = fmt::format("round {}, turn {}", round, turn);
      ASSERT_EQ(actual.ids, expected.ids) << what;
      EXPECT_EQ(actual.text, expected.text) << what;
      EXPECT_EQ(actual.logprobs, expected.logprobs) << what;
      EXPECT_EQ(actual.finish_reason, expected.finish_reason) << what;
      EXPECT_LT(actual.accepted_drafts, std::ssize(actual.ids)) << what;
      accepted += actual.accepted_drafts;
      rejected += actual.rejected_drafts;
      history = joined(history, actual.ids);
      if (random() % 3 == 0) history.resize(history.size() - random() % actual.ids.size());
      history = joined(history, random_tokens(1 + random() % 6, static_cast<unsigned>(random())));
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(rejected, 0);
}

/// Rows after drafts are there when somebody who hears of a token throws: nobody takes them for the row after the history.
TEST_F(SpeculationTest, AListenerThatThrowsInsideAStepLeavesASessionThatGoesOn) {
  Model& model = drafting_model();
  const Tokens prompt = random_tokens(40, 3);
  GenerationOptions wanted;
  wanted.max_tokens = 30;
  wanted.sampling.temperature = 0;
  Session fresh(model, 256);
  const Generation expected = generate(model, fresh, prompt, wanted);
  SpeculationOptions options;
  options.setting = {.automatic = false, .drafts = 4};
  options.drafters = {std::make_shared<ScriptedDrafter>([&](const Tokens& tokens, std::int64_t count) {
    const std::int64_t made = std::ssize(tokens) - std::ssize(prompt);
    return Tokens(expected.ids.begin() + made, expected.ids.begin() + std::min(std::ssize(expected.ids), made + count));
  })};
  for (int throws_at = 1; throws_at < 12; ++throws_at) {
    Speculation speculation(model, options);
    Session session(model, 256, FreedMemory::Poisoned);
    GenerationListener listener;
    int heard = 0;
    listener.text = [&](std::string_view) -> bool {
      if (++heard == throws_at) throw Error("gone");
      return true;
    };
    EXPECT_THROW(generate(model, session, prompt, wanted, listener, &speculation), Error);
    // What is in memory, asked for as it is, and then one token on.
    const Tokens known = first_of(joined(prompt, expected.ids), session.position());
    Session other(model, 256);
    const auto logits = [](Session& of, const Tokens& history) {
      const auto row = of.logits(history);
      return std::vector<float>(row.begin(), row.end());
    };
    expect_same_bits(logits(session, known), logits(other, known), fmt::format("thrown at {}", throws_at));
    EXPECT_EQ(generate(model, session, prompt, wanted, {}, &speculation).ids, expected.ids);
  }
}

}  // namespace
}  // namespace calandra
