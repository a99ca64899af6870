// The test of the promise is itself tested: it passes where the promise holds, and sees every way in which it can be broken.

#include "verify/verify.h"

#include "engine/session.h"
#include "support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace calandra {
namespace {

using testing::HasSubstr;
using Kind = VerifyCase::Kind;

Model& bundled_model() {
  static Model model(source_path("models/austen-5m").string(), {.threads = 2});
  return model;
}

VerifyOptions small_options(std::uint64_t seed = 1) {
  return {.prompt_tokens = kLeastVerifyPrompt, .answer_tokens = 5, .rounds = 1, .seed = seed};
}

VerifyReport verified(Model& model, const VerifyOptions& options, const std::vector<VerifyPath>& paths = verify_paths()) {
  VerifyListener listener;
  return verify(model, options, listener, paths);
}

/// What a path that does `take` is found to be.
PathFindings findings_of(const std::function<void(PathRun&)>& take) {
  return verified(bundled_model(), small_options(), {{"broken", "", take}}).paths.front();
}

VerifyCase case_with_rows(std::vector<float> logits) {
  VerifyCase made;
  made.name = "a request";
  made.prompt = {1, 2, 3};
  made.ids = {0, 1};
  made.logits = std::move(logits);
  return made;
}

TEST(Verify, ThePromiseHoldsOnTheBundledModelOnEveryPath) {
  VerifyOptions options = small_options();
  options.prompt_tokens = 150;
  options.rounds = long_tests() ? 10 : 1;
  const VerifyReport report = verified(bundled_model(), options);
  EXPECT_TRUE(report.holds());
  EXPECT_EQ(report.width, bundled_model().num_samplable());
  EXPECT_EQ(report.rows, report.requests * options.answer_tokens);
  std::map<std::string_view, const PathFindings*> by_name;
  for (const PathFindings& path : report.paths) {
    SCOPED_TRACE(path.name);
    EXPECT_TRUE(path.holds()) << path.failure.value_or("") << path.not_taken.value_or("");
    // Every answer asked for was compared from its first token to its last.
    EXPECT_EQ(path.rows.rows(), path.requests * options.answer_tokens);
    by_name[path.name] = &path;
  }
  for (const char* name : {"cut", "cold", "busy", "threads"}) {
    ASSERT_TRUE(by_name.contains(name));
    EXPECT_EQ(by_name[name]->cached_tokens, 0) << name;
    EXPECT_GE(by_name[name]->requests, report.requests) << name;
  }
  for (const char* name : {"samples", "conversations", "warm", "folder", "restarted", "drafts", "everything"})
    EXPECT_GT(by_name[name]->cached_tokens, 0) << name;
  // Of a prompt that comes again at once all but a token is cached; one of one token has none to spare.
  EXPECT_GE(by_name["warm"]->cached_tokens, by_name["warm"]->prompt_tokens / 2 - by_name["warm"]->requests / 2);
}

TEST(Verify, ItHoldsForEveryFormatAlsoWithoutATokenizer) {
  for (const std::string& variant : golden_variants()) {
    SCOPED_TRACE(variant);
    Model model(golden_path(variant).string(), {.threads = 2});
    ASSERT_EQ(model.tokenizer_if_any(), nullptr);
    const VerifyOptions options = small_options();
    // The others take long with many small steps, and differ from these in nothing that a format has a part in.
    std::vector<VerifyPath> paths = verify_paths();
    if (!long_tests())
      std::erase_if(paths, [](const VerifyPath& path) {
        return path.name != "cut" && path.name != "preempted" && path.name != "warm" && path.name != "drafts";
      });
    const VerifyReport report = verified(model, options, paths);
    EXPECT_TRUE(report.holds());
    EXPECT_GE(report.paths.size(), 4u);
    for (const PathFindings& path : report.paths)
      EXPECT_TRUE(path.holds()) << path.name << path.failure.value_or("") << path.not_taken.value_or("");
  }
}

TEST(Verify, OneTurnedBitOfAStateIsSeen) {
  const VerifyScript script = make_script(bundled_model(), small_options(), 0, [] {});
  int turned = 0, seen = 0;
  for (std::uint64_t seed = 0; seed < (long_tests() ? 20u : 2u); ++seed) {
    Draws draws(seed, {});
    for (const VerifyCase& one : script.cases) {
      if (one.num_prompt() < 2) continue;
      const RowTally rows = rows_after_a_turned_bit(bundled_model(), one, draws, kControlBit);
      EXPECT_EQ(rows.rows(), std::ssize(one.ids));
      ++turned;
      seen += rows.different() > 0 ? 1 : 0;
    }
  }
  EXPECT_EQ(seen, turned);
}

// A model that computes a little differently stands for an engine that does.
TEST(Verify, AnotherModelsRowsAreDifferentAndTheFirstIsNamed) {
  Model other(source_path("models/austen-5m").string(), {.latents = CacheType::Fp8, .threads = 1});
  const PathFindings found = findings_of([&](PathRun& run) {
    PathRun inner(other, run.script(), run.draws(), [] {});
    verify_paths()[1].take(inner);
    run.findings() = inner.findings();
  });
  EXPECT_FALSE(found.holds());
  EXPECT_TRUE(found.differs());
  EXPECT_GT(found.rows.different(), found.rows.rows() / 2);
  EXPECT_GT(found.rows.largest(), 0);
  EXPECT_LT(found.rows.largest(), 20);
  ASSERT_TRUE(found.rows.first());
  EXPECT_EQ(found.rows.first()->request, "turn 1 of conversation 1");
  EXPECT_NE(found.rows.first()->expected, found.rows.first()->found);
  EXPECT_GE(found.rows.first()->position, 1);
}

TEST(Verify, APathThatAsksNothingOrDoesNotDoWhatItIsAboutDoesNotHold) {
  EXPECT_FALSE(findings_of([](PathRun&) {}).holds());
  const auto cold_but_said_to_be_warm = [](PathRun& run) {
    verify_paths()[1].take(run);
    run.findings().not_taken = "nothing was found in the cache";
  };
  const PathFindings found = findings_of(cold_but_said_to_be_warm);
  EXPECT_FALSE(found.differs());
  EXPECT_FALSE(found.holds());
}

TEST(Verify, AnAnswerOfOtherTokensOrOfTooFewIsFound) {
  const auto with_other = [](auto change) {
    return [change](PathRun& run) {
      VerifyCase one = run.script().cases.front();
      change(one);
      Engine engine(run.model(), run.engine_options(2, false));
      run.ask(engine, one);
    };
  };
  // The logits are right and the draw is not.
  const PathFindings other = findings_of(with_other([](VerifyCase& one) { one.ids[2] ^= 1; }));
  EXPECT_EQ(other.other_tokens, 1);
  EXPECT_EQ(other.rows.rows(), 3);  // those behind it would be of another text
  EXPECT_EQ(other.rows.different(), 0);
  EXPECT_FALSE(other.holds());
  const PathFindings other_prompt = findings_of(with_other([](VerifyCase& one) { one.prompt.front() ^= 1; }));
  EXPECT_GT(other_prompt.rows.different(), 0);
}

TEST(Verify, WhatTheEngineRefusesIsAnErrorOfThePath) {
  EXPECT_THAT(error_of([] {
                findings_of([](PathRun& run) {
                  Engine engine(run.model(), run.engine_options_with_blocks(run.model().layout().sequence_blocks(1), false));
                  for (const VerifyCase* one : run.cases()) run.ask(engine, *one);
                });
              }),
              HasSubstr("needs"));
}

TEST(Verify, AStoppedRunHasNotShownAnything) {
  struct Stops : VerifyListener {
    bool doing(std::string_view what, std::int64_t, std::int64_t) override { return what != "busy"; }
    void finished(const PathFindings& path) override { names.emplace_back(path.name); }
    std::vector<std::string> names;
  } listener;
  const VerifyReport report = verify(bundled_model(), small_options(), listener);
  EXPECT_FALSE(report.is_complete);
  EXPECT_FALSE(report.holds());
  EXPECT_THAT(listener.names, testing::ElementsAre("cut", "cold", "threads"));
}

TEST(Verify, LengthsThatTheContextDoesNotHoldAreRefused) {
  VerifyOptions options = small_options();
  const std::int64_t context = bundled_model().config().context;
  options.prompt_tokens = context - options.answer_tokens + 1;
  EXPECT_EQ(error_of([&] { check(options, bundled_model()); }),
            fmt::format("prompts of up to {} tokens: expected 64 to {}, which leaves room for an answer in the context",
                        options.prompt_tokens, context - options.answer_tokens));
  options = small_options();
  options.answer_tokens = 3;
  EXPECT_EQ(error_of([&] { check(options, bundled_model()); }), "answers of 3 tokens: expected at least 4");
}

TEST(VerifyScript, HasWhatItSaysAndIsDecidedByTheSeed) {
  const VerifyOptions options = small_options(7);
  const VerifyScript script = make_script(bundled_model(), options, 0, [] {});
  std::set<std::int64_t> lengths;
  std::map<std::string, const VerifyCase*> by_name;
  for (const VerifyCase& one : script.cases) {
    lengths.insert(one.num_prompt());
    by_name[one.name] = &one;
    EXPECT_EQ(std::ssize(one.ids), options.answer_tokens);
    // The likeliest token, where nothing is drawn.
    for (std::int64_t i = 0; one.sampling.temperature == 0 && i < options.answer_tokens; ++i)
      EXPECT_EQ(std::ranges::max_element(one.row(i)) - one.row(i).begin(), one.ids[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(*lengths.begin(), 1);
  EXPECT_TRUE(lengths.contains(options.prompt_tokens));
  EXPECT_EQ(by_name.size(), script.cases.size()) << "names are unique";
  for (int turn = 2; turn <= 3; ++turn) {
    const VerifyCase& before = *by_name.at(fmt::format("turn {} of conversation 1", turn - 1));
    const VerifyCase& one = *by_name.at(fmt::format("turn {} of conversation 1", turn));
    ASSERT_GT(one.num_prompt(), before.length());
    EXPECT_TRUE(std::equal(before.prompt.begin(), before.prompt.end(), one.prompt.begin()));
    EXPECT_TRUE(std::equal(before.ids.begin(), before.ids.end(), one.prompt.begin() + before.num_prompt()));
  }
  std::set<std::vector<std::int32_t>> samples, prompts;
  for (const VerifyCase& one : script.cases) {
    if (one.kind == Kind::Sample) {
      samples.insert(one.ids);
      prompts.insert(one.prompt);
    }
    if (one.kind != Kind::Growing) continue;
    // The prompt and a token more fill the memory that it begins with; all of its answer does not fit.
    const MemoryLayout layout = bundled_model().layout();
    EXPECT_EQ(layout.sequence_blocks(one.num_prompt() + 1), layout.sequence_blocks(script.block_border));
    EXPECT_GT(layout.sequence_blocks(one.length() - 1), layout.sequence_blocks(script.block_border));
  }
  EXPECT_EQ(prompts.size(), 1u);
  EXPECT_GT(samples.size(), 1u);

  const VerifyScript again = make_script(bundled_model(), options, 0, [] {});
  const VerifyScript next = make_script(bundled_model(), options, 1, [] {});
  EXPECT_EQ(again.cases.back().prompt, script.cases.back().prompt);
  EXPECT_NE(next.cases.back().prompt, script.cases.back().prompt);
}

TEST(RowTally, EveryBitCounts) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const VerifyCase alone = case_with_rows({1, 2, 0, nan, -infinity, 3});
  RowTally rows;
  rows.compare(alone, 0, std::vector<float>{1, 2, 0});
  rows.compare(alone, 1, std::vector<float>{nan, -infinity, 3});
  EXPECT_EQ(rows.different(), 0);
  rows.compare(alone, 0, std::vector<float>{1, 2, -0.0F});
  EXPECT_EQ(rows.different(), 1);
  EXPECT_EQ(rows.largest(), 0);
  EXPECT_EQ(rows.first()->token, 2);
  rows.compare(alone, 0, std::vector<float>{1, std::nextafter(2.0F, 3.0F), 0});
  EXPECT_EQ(rows.different(), 2);
  EXPECT_EQ(rows.largest(), std::nextafter(2.0F, 3.0F) - 2.0F);
  rows.compare(alone, 1, std::vector<float>{nan, -infinity, 4});
  EXPECT_EQ(rows.largest(), 1);
  rows.compare(alone, 1, std::vector<float>{0, -infinity, 3});
  EXPECT_EQ(rows.largest(), infinity);
  rows.compare(alone, 0, std::vector<float>{1, 2});
  EXPECT_EQ(rows.different(), 5);
  EXPECT_EQ(rows.rows(), 7);
  // The first stays.
  EXPECT_EQ(rows.first()->request, "a request");
  EXPECT_EQ(rows.first()->position, 3);
  RowTally sum;
  sum.add(rows);
  sum.add(rows);
  EXPECT_EQ(sum.rows(), 14);
  EXPECT_EQ(sum.different(), 10);
}

TEST(VerifyReport, HoldsOnlyIfTheControlWasSeen) {
  VerifyReport report;
  report.is_complete = true;
  PathFindings path;
  const VerifyCase alone = case_with_rows({1, 2, 3, 4});
  path.rows.compare(alone, 0, std::vector<float>{1, 2});
  report.paths = {path};
  EXPECT_FALSE(report.holds()) << "without a control";
  report.bits_turned = 2;
  report.bits_seen = 1;
  EXPECT_FALSE(report.holds());
  report.bits_seen = 2;
  EXPECT_TRUE(report.holds());
  report.paths[0].rows.compare(alone, 1, std::vector<float>{3, 5});
  EXPECT_FALSE(report.holds());
}

}  // namespace
}  // namespace calandra
