// The prefix contract: a caller hands over the whole history, and whatever the session reused, the logits are the same bits.

#include "engine/session.h"

#include "cache/file_store.h"
#include "engine/perplexity.h"
#include "engine/sampler.h"
#include "support/golden.h"
#include "support/json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <random>

namespace calandra {
namespace {

using Tokens = std::vector<std::int32_t>;

std::string bundled() { return source_path("models/austen-5m").string(); }

class SessionTest : public testing::Test {
 protected:
  static Model& model() {
    static Model loaded(bundled(), {.with_mtp = true});
    return loaded;
  }
  static Tokens tokens(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    Tokens all(count);
    for (auto& token : all) token = static_cast<std::int32_t>(random() % 2031);
    return all;
  }
  static std::vector<float> fresh(const Tokens& history) {
    Session session(model(), 2048, FreedMemory::Poisoned);
    const auto logits = session.logits(history);
    return {logits.begin(), logits.end()};
  }
};

TEST_F(SessionTest, AllLogitsAreThoseOfEveryBeginning) {
  const Tokens history = tokens(130, 4);
  Session session(model(), 2048, FreedMemory::Poisoned), each(model(), 2048);
  session.logits(tokens(20, 9));  // something to leave
  std::int64_t visited = 0;
  const auto last = session.all_logits(history, {}, [&](std::int64_t position, std::span<const float> logits) {
    ASSERT_EQ(position, ++visited);
    expect_same_bits(logits, each.logits(std::span(history).first(static_cast<std::size_t>(position))), "a beginning");
  });
  EXPECT_EQ(visited, 129);
  expect_same_bits(last, each.logits(history), "the last");
  EXPECT_EQ(session.num_reused_tokens(), 0);
}

TEST_F(SessionTest, ExtendingRepeatingForkingAndShorteningGiveTheBitsOfAFreshRun) {
  Session session(model(), 2048, FreedMemory::Poisoned);
  std::mt19937 random(3);
  Tokens history = tokens(40, 1);
  for (unsigned step = 0; step < 40; ++step) {
    const auto logits = session.logits(history);
    expect_same_bits(logits, fresh(history),
                     fmt::format("step {} with {} tokens, {} reused", step, history.size(), session.num_reused_tokens()));
    if (random() % 3 == 0) session.keep_boundary();
    switch (random() % 4) {
      case 0: break;  // the same again
      case 1: history.resize(1 + random() % history.size()); break;
      case 2: history[random() % history.size()] = static_cast<std::int32_t>(random() % 2031); break;
      default: {
        const Tokens more = tokens(1 + random() % 30, 100 + step);
        history.insert(history.end(), more.begin(), more.end());
      }
    }
  }
}

TEST_F(SessionTest, ReusesWhatItHolds) {
  Session session(model(), 2048);
  Tokens history = tokens(700, 2);  // more than one step of prefill
  session.logits(history);
  EXPECT_EQ(session.num_reused_tokens(), 0);
  session.keep_boundary();
  history.push_back(5);
  session.logits(history);
  EXPECT_EQ(session.num_reused_tokens(), 700);
  session.logits(history);
  EXPECT_EQ(session.num_reused_tokens(), 701) << "the same history needs no computation";
  history.back() = 6;
  session.logits(history);
  EXPECT_EQ(session.num_reused_tokens(), 700) << "resumed at the boundary";
  history.resize(699);
  session.logits(history);
  EXPECT_EQ(session.num_reused_tokens(), 0) << "no boundary before";
}

TEST_F(SessionTest, WhatIsSavedIsGoneOnFromElsewhere) {
  const TemporaryFolder folder;
  const Tokens history = tokens(1300, 8);
  {
    Session session(model(), 2048);
    session.logits(std::span(history).first(700));
    session.save(std::make_shared<FileStore>(folder.path() / "chat"), history);
    session.logits(std::span(history).first(1200));
    session.save(std::make_shared<FileStore>(folder.path() / "chat"), history);
  }
  Session session(model(), 2048, FreedMemory::Poisoned);
  session.logits(tokens(20, 9));  // something to leave
  session.load(std::make_shared<FileStore>(folder.path() / "chat"), history);
  EXPECT_EQ(session.position(), 1200);
  expect_same_bits(session.logits(history), fresh(history), "from 1,200");
  EXPECT_EQ(session.num_reused_tokens(), 1200);

  // Nothing is gained from it any more, or nothing fits.
  session.load(std::make_shared<FileStore>(folder.path() / "chat"), history);
  EXPECT_EQ(session.position(), 1300);
  const Tokens other = tokens(1300, 10);
  session.load(std::make_shared<FileStore>(folder.path() / "chat"), other);
  expect_same_bits(session.logits(other), fresh(other), "another");

  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "chat")) {
    if (entry.path().extension() == ".run") std::filesystem::resize_file(entry.path(), entry.file_size() - 1);
  }
  session.load(std::make_shared<FileStore>(folder.path() / "chat"), history);
  expect_same_bits(session.logits(history), fresh(history), "damaged");
  EXPECT_LT(session.num_reused_tokens(), 1024);
}

TEST_F(SessionTest, AHistoryThatEndsAtABoundaryIsComputedFromBefore) {
  Session session(model(), 2048);
  const Tokens history = tokens(64, 4);
  session.logits(history);
  session.keep_boundary();
  Tokens longer = history;
  longer.push_back(9);
  session.logits(longer);
  expect_same_bits(session.logits(history), fresh(history), "the last token's logits must be computed again");
}

TEST_F(SessionTest, AStoppedPrefillGoesOnWhereItStopped) {
  Session session(model(), 4096);
  const Tokens history = tokens(1500, 5);
  int calls = 0;
  EXPECT_TRUE(session
                  .logits(history,
                          [&](std::int64_t, std::int64_t total) {
                            EXPECT_EQ(total, 1500);
                            return ++calls < 3;
                          })
                  .empty());
  EXPECT_EQ(session.position(), 1024);
  const auto logits = session.logits(history);
  EXPECT_EQ(session.num_reused_tokens(), 1024);
  Session other(model(), 4096);
  expect_same_bits(logits, other.logits(history), "stopped and gone on");
}

TEST_F(SessionTest, RefusesWhatDoesNotFit) {
  Session session(model(), 100);
  EXPECT_EQ(error_of([&] { session.logits(tokens(101, 1)); }), "history of 101 tokens: expected at most the context of 100");
  EXPECT_EQ(error_of([&] { session.logits({}); }), "history: no tokens, expected at least 1");
  EXPECT_EQ(error_of([&] { session.logits(Tokens{1, 2048}); }), "token id 2048: expected 0 to 2047");
  EXPECT_EQ(error_of([&] { Session(model(), 40000); }),
            "context of 40000 tokens: expected 1 to the model's 32768 (--context N asks for more by name)");
}

TEST_F(SessionTest, ABadTokenLeavesTheSessionUsable) {
  Session session(model(), 100);
  Tokens history = tokens(10, 6);
  session.logits(history);
  history.push_back(-1);
  EXPECT_THROW(session.logits(history), Error);
  history.back() = 7;
  expect_same_bits(session.logits(history), fresh(history), "after an error");
}

TEST(BundledModel, GreedyTokensEqualTheReference) {
  const auto reference = read_json(source_path("models/austen-5m/reference.json"));
  Model model(bundled(), {.activations = Activations::Fp32});
  for (const auto& text : reference.at("cases")) {
    Session session(model, 2048);
    EXPECT_EQ(model.tokenizer().encode(text.at("prompt").get<std::string>()), text.at("prompt_ids").get<Tokens>())
        << text.at("name");
    Tokens history = text.at("prompt_ids").get<Tokens>(), greedy;
    for (std::size_t n = 0; n < text.at("greedy_ids").size(); ++n) {
      const auto logits = session.logits(history);
      greedy.push_back(sample(logits.first(static_cast<std::size_t>(model.num_samplable())), {.temperature = 0},
                              {.position = std::ssize(history)}));
      history.push_back(greedy.back());
    }
    EXPECT_EQ(greedy, text.at("greedy_ids").get<Tokens>()) << text.at("name");
  }
}

TEST(BundledModel, FirstLogitsEqualTheReference) {
  const auto reference = read_json(source_path("models/austen-5m/reference.json"));
  Model model(bundled(), {.activations = Activations::Fp32});
  for (const auto& text : reference.at("cases")) {
    Session session(model, 2048);
    const auto logits = session.logits(text.at("prompt_ids").get<Tokens>());
    for (const auto& [token, logit] : text.at("first_top5").get<std::vector<std::pair<std::size_t, double>>>()) {
      EXPECT_NEAR(logits[token], logit, 2e-4) << text.at("name") << " token " << token;
    }
  }
}

TEST(Perplexity, IsTheMeanOverTheLogitsThatASessionGives) {
  Model model(bundled(), {});
  const Tokens tokens =
      model.tokenizer().encode("It was the best of balls, and Emma could not but be pleased with every partner.");
  const PerplexityResult result = measure_perplexity(model, tokens);
  EXPECT_EQ(result.predicted_tokens, static_cast<std::int64_t>(tokens.size()) - 1);
  Session session(model, 256);
  double nats = 0;
  for (std::size_t n = 1; n < tokens.size(); ++n) {
    const auto logits = session.logits(std::span(tokens).first(n)).first(static_cast<std::size_t>(model.num_samplable()));
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    nats += std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(tokens[n])]);
  }
  EXPECT_NEAR(result.nats, nats, 1e-6 * nats);
}

TEST(Perplexity, HeldOutProseIsNearThePublishedLoss) {
  // The model card: 3.27 nats a token on held-out chapters. Any prose of the kind must be in that region, and noise far off.
  Model model(bundled(), {});
  const Tokens prose = model.tokenizer().encode(
      "She was not surprised to hear that Mr. Elton had been there; but she could not think of him without some vexation, and "
      "was very glad when her father proposed that they should walk into the garden before dinner.");
  Tokens noise = prose;
  std::shuffle(noise.begin(), noise.end(), std::mt19937(1));
  EXPECT_LT(measure_perplexity(model, prose).mean_nats(), 4.0);
  EXPECT_GT(measure_perplexity(model, noise).mean_nats(), 6.0);
}

}  // namespace
}  // namespace calandra
