// The promise, bit for bit: logits and memory depend on the tokens and on nothing else. For every model, instruction set
// and numerics mode.

#include "model/harness.h"

#include <gtest/gtest.h>

#include <array>

namespace calandra {
namespace {

struct Case {
  std::string model;
  Isa isa;
  Activations activations;
  std::optional<CacheType> latents = {};
};

class Promise : public testing::TestWithParam<Case> {
 protected:
  TestModel make(int num_threads = 2) const {
    return TestModel(GetParam().model, GetParam().isa, GetParam().activations, num_threads, GetParam().latents);
  }
  /// Sequences are short where a token is dear: true widths, and plain C++ kernels.
  std::size_t length(std::size_t tokens) const {
    const bool wide = GetParam().model.starts_with("slice-"), slow = GetParam().isa == Isa::Scalar;
    return std::max<std::size_t>(6, tokens / ((wide ? 4 : 1) * (slow ? 3 : 1)));
  }
};

struct Outcome {
  std::vector<float> hidden;
  std::vector<float> memory;
};

/// One sequence, cut before each of `cuts`.
Outcome run_cut(TestModel& model, std::span<const std::int32_t> tokens, std::span<const std::size_t> cuts) {
  Outcome run;
  const auto pool = model.pool(1, static_cast<std::int64_t>(tokens.size()));
  const auto memory = SequenceMemory::create(*pool);
  std::size_t begin = 0;
  for (const std::size_t cut : cuts) {
    model.feed(*memory, tokens.subspan(begin, cut - begin), run.hidden);
    begin = cut;
  }
  model.feed(*memory, tokens.subspan(begin), run.hidden);
  run.memory = model.contents(*memory);
  return run;
}

void expect_same(const Outcome& actual, const Outcome& expected, TestModel& model, const std::string& what) {
  expect_same_bits(actual.hidden, expected.hidden, what + ": final-norm rows");
  expect_same_bits(actual.memory, expected.memory, what + ": memory");
  const std::int64_t h = model.config().hidden;
  const auto logits = [&](const Outcome& run) {
    return model.logits({run.hidden.data(), static_cast<std::int64_t>(run.hidden.size()) / h, h, h});
  };
  expect_same_bits(logits(actual), logits(expected), what + ": logits");
}

TEST_P(Promise, PrefillCutAnywhereGivesTheSameBits) {
  TestModel model = make();
  const auto tokens = model.random_tokens(length(80), 1);
  const Outcome whole = run_cut(model, tokens, {});
  std::mt19937 random(7);
  for (int round = 0; round < 4; ++round) {
    std::vector<std::size_t> cuts;
    for (std::size_t at = 1; at < tokens.size(); ++at) {
      if (random() % (round == 0 ? 1u : 5u * static_cast<unsigned>(round)) == 0) cuts.push_back(at);
    }
    expect_same(run_cut(model, tokens, cuts), whole, model, fmt::format("{} cuts", cuts.size()));
  }
}

TEST_P(Promise, CutsAroundAnAttentionBlockGiveTheSameBits) {
  if (GetParam().model.starts_with("slice-") || GetParam().isa == Isa::Scalar) GTEST_SKIP() << "would take minutes";
  TestModel model = make();
  const auto tokens = model.random_tokens(kAttentionBlock + 20, 6);
  const Outcome whole = run_cut(model, tokens, {});
  const std::size_t border = kAttentionBlock;
  expect_same(run_cut(model, tokens, std::array{border}), whole, model, "a cut at the border");
  expect_same(run_cut(model, tokens, std::array{border - 1, border + 1}), whole, model, "a cut on each side of it");
  expect_same(run_cut(model, tokens, std::array{border / 2 + 3, border, border + 1}), whole, model, "and inside the block");
}

TEST_P(Promise, ABatchOfEightMixedLengthsEqualsEachAlone) {
  TestModel model = make();
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<Outcome> alone;
  const std::size_t longest = length(40);
  for (unsigned i = 0; i < 8; ++i) {
    prompts.push_back(model.random_tokens(1 + longest * i / 8, 20 + i));
    alone.push_back(run_cut(model, prompts.back(), {}));
  }
  // Each step feeds every unfinished sequence a different number of tokens, one-token rows in the middle of long ones.
  const auto pool = model.pool(8, static_cast<std::int64_t>(longest) + 1);
  std::vector<std::unique_ptr<SequenceMemory>> memories;
  for (std::size_t i = 0; i < 8; ++i) memories.push_back(SequenceMemory::create(*pool));
  std::vector<Outcome> together(8);
  for (std::size_t step = 0;; ++step) {
    std::vector<Slice> slices;
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < 8; ++i) {
      const auto done = static_cast<std::size_t>(memories[i]->position());
      const std::size_t count = std::min(prompts[i].size() - done, 1 + (i * 5 + step * 3) % 7);
      if (count == 0) continue;
      ASSERT_TRUE(memories[i]->reserve(static_cast<std::int64_t>(done + count)));
      slices.push_back({memories[i].get(), std::span(prompts[i]).subspan(done, count)});
      members.push_back(i);
    }
    if (slices.empty()) break;
    ConstRows rows = model.pass().run(slices);
    for (std::size_t s = 0; s < slices.size(); ++s) {
      const auto values = static_cast<std::int64_t>(slices[s].tokens.size()) * rows.cols;
      auto& hidden = together[members[s]].hidden;
      hidden.insert(hidden.end(), rows.data, rows.data + values);
      rows.data += values;
    }
  }
  for (std::size_t i = 0; i < 8; ++i) {
    together[i].memory = model.contents(*memories[i]);
    expect_same(together[i], alone[i], model, fmt::format("sequence {} of {} tokens", i, prompts[i].size()));
  }
}

TEST_P(Promise, OneTwoAndFiveThreadsGiveTheSameBits) {
  TestModel two = make();
  const auto tokens = two.random_tokens(length(60), 3);
  const std::vector<std::size_t> cuts{tokens.size() - 2, tokens.size() - 1};
  const Outcome expected = run_cut(two, tokens, cuts);
  for (const int threads : {1, 5}) {
    TestModel other = make(threads);
    expect_same(run_cut(other, tokens, cuts), expected, two, fmt::format("{} threads", threads));
  }
}

TEST_P(Promise, ResumeFromABoundaryAtEveryPosition) {
  TestModel model = make();
  const auto tokens = model.random_tokens(length(36), 4);
  const Outcome whole = run_cut(model, tokens, {});
  const auto pool = model.pool(4, static_cast<std::int64_t>(tokens.size()));
  const auto walker = SequenceMemory::create(*pool);
  std::vector<float> walked;
  for (std::size_t at = 1; at < tokens.size(); ++at) {
    model.feed(*walker, std::span(tokens).subspan(at - 1, 1), walked);
    const auto boundary = walker->snapshot();
    ASSERT_TRUE(boundary);
    const auto resumed = SequenceMemory::resume(*pool, *boundary);
    ASSERT_TRUE(resumed);
    Outcome run;
    run.hidden = walked;
    model.feed(*resumed, std::span(tokens).subspan(at), run.hidden);
    run.memory = model.contents(*resumed);
    expect_same(run, whole, model, fmt::format("resumed at {}", at));
  }
}

TEST_P(Promise, BoundariesFilledByAPassGoingByAreThoseOfAStop) {
  TestModel model = make();
  const auto tokens = model.random_tokens(length(36), 8);
  const Outcome whole = run_cut(model, tokens, {});
  const auto end = static_cast<std::int64_t>(tokens.size());
  const auto pool = model.pool(6, end);
  const auto memory = SequenceMemory::create(*pool);
  ASSERT_TRUE(memory->reserve(end));
  // The first ones within the reach of the convolutions, the last at the end of its pass.
  std::vector<std::unique_ptr<Boundary>> boundaries;
  std::vector<float> passed;
  const auto pass_by = [&](std::int64_t until, std::initializer_list<std::int64_t> positions) {
    std::vector<Boundary*> ahead;
    for (const std::int64_t position : positions) {
      boundaries.push_back(memory->boundary_ahead(position));
      ASSERT_TRUE(boundaries.back());
      ahead.push_back(boundaries.back().get());
    }
    const auto begin = static_cast<std::size_t>(memory->position());
    const Slice slice{memory.get(), std::span(tokens).subspan(begin, static_cast<std::size_t>(until) - begin), ahead};
    const ConstRows rows = model.pass().run(std::span(&slice, 1));
    passed.insert(passed.end(), rows.data, rows.data + rows.rows * rows.cols);
  };
  pass_by(end / 2, {1, 2, end / 2});
  pass_by(end, {end / 2 + 1, end - 1});
  const std::int64_t h = model.config().hidden;
  for (const auto& boundary : boundaries) {
    const auto at = static_cast<std::size_t>(boundary->position());
    const auto resumed = SequenceMemory::resume(*pool, *boundary);
    ASSERT_TRUE(resumed);
    expect_same_bits(model.contents(*resumed), run_cut(model, std::span(tokens).first(at), {}).memory,
                     fmt::format("memory at {}", at));
    Outcome run;
    run.hidden.assign(passed.begin(), passed.begin() + static_cast<std::ptrdiff_t>(at) * h);
    model.feed(*resumed, std::span(tokens).subspan(at), run.hidden);
    run.memory = model.contents(*resumed);
    expect_same(run, whole, model, fmt::format("resumed at {}", at));
  }
}

/// Three sequences, one of them without drafts. Each step guesses some tokens, of which some are right, and drafts from where it is.
TEST_P(Promise, VerifiedDraftsLeaveWhatPlainDecodingLeaves) {
  TestModel model = make();
  const std::int64_t h = model.config().hidden;
  const bool drafts = model.pass().with_mtp();
  std::mt19937 random(11);
  const auto end = static_cast<std::int64_t>(length(40));
  const auto pool = model.pool(3, end + 8);
  std::vector<std::vector<std::int32_t>> texts;
  std::vector<Outcome> plain, run(3);
  std::vector<std::unique_ptr<SequenceMemory>> memories;
  for (unsigned i = 0; i < 3; ++i) {
    texts.push_back(model.random_tokens(static_cast<std::size_t>(end), 40 + i));
    plain.push_back(run_cut(model, texts.back(), {}));
    memories.push_back(SequenceMemory::create(*pool));
    ASSERT_TRUE(memories.back()->reserve(end + 8));
  }
  for (;;) {
    std::vector<Slice> slices;
    std::vector<std::size_t> members;
    std::vector<std::int64_t> right;
    std::vector<std::vector<std::int32_t>> guesses(3);
    for (std::size_t i = 0; i < 3; ++i) {
      const std::int64_t at = memories[i]->position(), left = end - at;
      if (left == 0) continue;
      const std::int64_t count = 1 + static_cast<std::int64_t>(random() % 5);
      // 0: the whole slice is given up, as when its request ends in an error.
      right.push_back(i == 0 ? std::min<std::int64_t>(left, 1)
                             : std::min<std::int64_t>(left, static_cast<std::int64_t>(random() % 6)));
      right.back() = std::min(right.back(), count);
      const auto first = texts[i].begin() + at;
      guesses[i].assign(first, first + right.back());
      while (i != 0 && std::ssize(guesses[i]) < count) {
        const std::int64_t wrong = at + std::ssize(guesses[i]);
        const std::int32_t truth = wrong < end ? texts[i][static_cast<std::size_t>(wrong)] : 0;
        guesses[i].push_back((truth + 1) % static_cast<std::int32_t>(model.config().vocab));
      }
      slices.push_back({memories[i].get(), guesses[i], {}, i != 0, random() % 4 != 0});
      members.push_back(i);
    }
    if (slices.empty()) break;
    ConstRows rows = model.pass().run(slices);
    std::vector<Commit> commits;
    for (std::size_t s = 0; s < slices.size(); ++s) {
      const std::size_t i = members[s];
      run[i].hidden.insert(run[i].hidden.end(), rows.data, rows.data + right[s] * h);
      rows.data += std::ssize(slices[s].tokens) * h;
      const std::int64_t count = i == 0 ? 0 : right[s], position = memories[i]->position() + count;
      Commit commit{memories[i].get(), count, std::nullopt};
      // The token after them is not always known, and not always what comes in the end.
      if (drafts && position > 0 && random() % 3 != 0)
        commit.next = position < end && random() % 4 != 0 ? texts[i][static_cast<std::size_t>(position)] : 1;
      commits.push_back(commit);
    }
    const ConstRows u = model.pass().commit(commits);
    const std::vector<float> committed(u.data, u.data + u.rows * u.cols);
    std::size_t row = 0;
    for (const Commit& commit : commits) {
      if (!commit.next) continue;
      const MtpSlice slice{commit.memory, commit.memory->position() - 1, std::span(&*commit.next, 1)};
      const ConstRows hidden{commit.memory->last_hidden().data(), 1, h, h};
      const ConstRows alone = model.pass().mtp(std::span(&slice, 1), hidden);
      expect_same_bits(std::vector<float>(alone.data, alone.data + h),
                       std::vector<float>(committed.begin() + static_cast<std::ptrdiff_t>(row) * h,
                                          committed.begin() + static_cast<std::ptrdiff_t>(row + 1) * h),
                       "the row that predicts");
      const MtpSlice further{commit.memory, commit.memory->position(), std::span(&*commit.next, 1)};
      model.pass().mtp(std::span(&further, 1), alone);
      ++row;
    }
    EXPECT_EQ(static_cast<std::int64_t>(row), u.rows);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    model.pass().settle(*memories[i]);
    run[i].memory = model.contents(*memories[i]);
    expect_same(run[i], plain[i], model, fmt::format("sequence {}", i));
  }
}

TEST_P(Promise, RowsOfTheMtpLayerThatArePutOffAreThoseOfEveryPass) {
  TestModel model = make();
  if (!model.pass().with_mtp()) GTEST_SKIP() << "no MTP layer";
  const auto tokens = model.random_tokens(5 + 2 * kMostMtpRowsPutOff, 12);
  const auto pool = model.pool(3, std::ssize(tokens));
  const auto memory = SequenceMemory::create(*pool);
  ASSERT_TRUE(memory->reserve(std::ssize(tokens)));
  Outcome run;
  std::int64_t most = 0;
  for (std::size_t at = 0; at < tokens.size(); ++at) {
    const Slice slice{memory.get(), std::span(tokens).subspan(at, 1), {}, false, true};
    const ConstRows rows = model.pass().run(std::span(&slice, 1));
    run.hidden.insert(run.hidden.end(), rows.data, rows.data + rows.cols);
    most = std::max<std::int64_t>(most, std::ssize(memory->mtp_tokens_put_off()));
  }
  EXPECT_EQ(most, kMostMtpRowsPutOff);
  EXPECT_GT(memory->mtp_tokens_put_off().size(), 0u);
  EXPECT_THROW(memory->snapshot(), Error);
  model.pass().settle(*memory);
  EXPECT_TRUE(memory->snapshot());
  run.memory = model.contents(*memory);
  expect_same(run, run_cut(model, tokens, {}), model, "rows put off");
}

TEST_P(Promise, ATentativeSliceIsCommittedOnceAndWithinItsTokens) {
  TestModel model = make();
  const auto tokens = model.random_tokens(4, 2);
  const auto pool = model.pool(2, 8);
  const auto memory = SequenceMemory::create(*pool);
  ASSERT_TRUE(memory->reserve(8));
  const auto expect_refused = [&](std::int64_t count) {
    const Commit commit{memory.get(), count, std::nullopt};
    EXPECT_THROW(model.pass().commit(std::span(&commit, 1)), Error) << count;
  };
  expect_refused(1);
  const Slice slice{memory.get(), tokens, {}, true};
  model.pass().run(std::span(&slice, 1));
  EXPECT_EQ(memory->position(), 0);
  expect_refused(5);
  expect_refused(-1);
  const Commit commit{memory.get(), 2, std::nullopt};
  model.pass().commit(std::span(&commit, 1));
  EXPECT_EQ(memory->position(), 2);
  expect_refused(1);
  const auto boundary = memory->boundary_ahead(3);
  Boundary* const ahead = boundary.get();
  const Slice with_boundary{memory.get(), tokens, std::span(&ahead, 1), true};
  EXPECT_THROW(model.pass().run(std::span(&with_boundary, 1)), Error);
}

TEST_P(Promise, BoundariesOutsideTheSliceAreRefused) {
  TestModel model = make();
  const auto tokens = model.random_tokens(4, 9);
  const auto pool = model.pool(3, 8);
  const auto memory = SequenceMemory::create(*pool);
  ASSERT_TRUE(memory->reserve(8));
  const auto beyond = memory->boundary_ahead(5), within = memory->boundary_ahead(3);
  for (const std::vector<Boundary*>& boundaries : {std::vector{beyond.get()}, {within.get(), within.get()}}) {
    const Slice slice{memory.get(), tokens, boundaries};
    EXPECT_THROW(model.pass().run(std::span(&slice, 1)), Error);
  }
  EXPECT_EQ(memory->position(), 0);
}

TEST_P(Promise, MemoryOfEarlierSequencesLeavesNoTrace) {
  TestModel model = make();
  const auto tokens = model.random_tokens(length(30), 5);
  const Outcome expected = run_cut(model, tokens, {});
  const auto pool = model.pool(1, static_cast<std::int64_t>(tokens.size()));
  for (unsigned round = 0; round < 2; ++round) {
    std::vector<float> ignored;
    const auto other = SequenceMemory::create(*pool);
    model.feed(*other, model.random_tokens(tokens.size(), 50 + round), ignored);
  }
  Outcome run;
  const auto memory = SequenceMemory::create(*pool);
  model.feed(*memory, tokens, run.hidden);
  run.memory = model.contents(*memory);
  expect_same(run, expected, model, "after two other sequences");
}

std::vector<Case> cases() {
  std::vector<std::string> models = golden_variants();
  models.emplace_back("austen-5m");
  for (const char* format : {"fp8", "fp8-ue8m0", "fp4"}) models.push_back(std::string("slice-") + format);
  std::vector<Case> all;
  for (const std::string& model : models) {
    for (const Isa isa : available_isas()) {
      // Plain C++ at true widths takes minutes; its kernels are the others' bit for bit (tests/kernels).
      if (isa == Isa::Scalar && model.starts_with("slice-") && !long_tests()) continue;
      for (const Activations activations : {Activations::Bf16, Activations::Fp32}) all.push_back({model, isa, activations, {}});
      if (model == "austen-5m" || model == "c_flash31_fp8") all.push_back({model, isa, Activations::Bf16, CacheType::Fp8});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, Promise, testing::ValuesIn(cases()), [](const testing::TestParamInfo<Case>& test) {
  std::string name =
      fmt::format("{}_{}_{}{}", test.param.model, name_of(test.param.isa),
                  test.param.activations == Activations::Fp32 ? "fp32" : "bf16", test.param.latents ? "_kv_fp8" : "");
  std::ranges::replace_if(
      name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace calandra
