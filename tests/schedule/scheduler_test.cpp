// What the scheduler decides, case by case, on a real pool.

#include "schedule/runner.h"
#include "support/golden.h"
#include "support/small_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace calandra {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kPlenty = 1000;  // blocks

Request request_of(std::int64_t prompt, std::int64_t max_new, std::uint64_t client = 0, Priority priority = Priority::Normal) {
  Request request;
  request.prompt_tokens = prompt;
  request.max_new_tokens = max_new;
  request.client = client;
  request.priority = priority;
  return request;
}

/// Blocks of one sequence of that many tokens.
std::int64_t blocks(std::int64_t tokens) { return small_layout(true).sequence_blocks(tokens); }

/// (request, begin, count) of the last step.
std::vector<std::tuple<RequestId, std::int64_t, std::int64_t>> slices(const Runner& runner) {
  std::vector<std::tuple<RequestId, std::int64_t, std::int64_t>> list;
  for (const ScheduledSlice& slice : runner.last().slices) list.emplace_back(slice.id, slice.begin, slice.count);
  return list;
}

std::vector<RequestId> admitted(const Runner& runner) {
  std::vector<RequestId> ids;
  for (const Admission& admission : runner.last().admitted) ids.push_back(admission.id);
  return ids;
}

/// States and rows share one pool: neither kind of request can find its own part full while the other's is empty.
TEST(Scheduler, ManyShortRequestsBesideALongOneFillThePoolAndAllSlots) {
  ScheduleLimits limits;
  limits.max_running = 9;
  limits.prefill_tokens = limits.prefill_tokens_beside_decodes = 100'000;
  for (const std::int64_t length : {200, 5000}) {
    Runner runner(small_layout(true), blocks(length + 10) + 8 * blocks(20), limits);
    const RequestId long_one = runner.take(request_of(length, 10));
    std::vector<RequestId> short_ones;
    for (std::uint64_t i = 0; i < 16; ++i) short_ones.push_back(runner.take(request_of(10, 10, 1 + i)));
    runner.step({});
    const ScheduleStatistics now = runner.scheduler().statistics();
    EXPECT_EQ(now.running, 9) << length;
    EXPECT_EQ(now.blocks_used, now.blocks_total) << length;
    EXPECT_EQ(slices(runner).size(), 9u) << "nobody waits for rows";
    runner.run_dry();
    EXPECT_EQ(runner.complaint(), "");
    EXPECT_EQ(runner.life(long_one).preemptions, 0);
    for (const RequestId id : short_ones) EXPECT_EQ(runner.life(id).fate, Runner::Fate::Finished);
  }
}

TEST(Scheduler, APromptIsCutToTheBudgetAndThenDecoded) {
  ScheduleLimits limits;
  limits.prefill_tokens = 100;
  Runner runner(small_layout(true), kPlenty, limits);
  const RequestId a = runner.take(request_of(250, 3));
  const std::vector<std::pair<std::int64_t, std::int64_t>> expected{{0, 100}, {100, 100}, {200, 50}, {250, 1}, {251, 1}};
  for (const auto& [begin, count] : expected) {
    runner.step({});
    EXPECT_THAT(slices(runner), ElementsAre(std::tuple(a, begin, count)));
    EXPECT_EQ(runner.last().slices[0].wants_logits, begin >= 200);
  }
  EXPECT_EQ(runner.life(a).fate, Runner::Fate::Finished);  // the third token is never computed
  runner.step({});
  EXPECT_THAT(runner.last().slices, IsEmpty());
  EXPECT_EQ(runner.complaint(), "");
}

TEST(Scheduler, DecodesGoFirstAndLeavePromptsTheSmallerBudget) {
  ScheduleLimits limits;
  limits.prefill_tokens = 100;
  limits.prefill_tokens_beside_decodes = 30;
  Runner runner(small_layout(true), kPlenty, limits);
  const RequestId a = runner.take(request_of(20, 50)), b = runner.take(request_of(200, 50));
  runner.step({});
  EXPECT_THAT(slices(runner), ElementsAre(std::tuple(a, 0, 20), std::tuple(b, 0, 80)));
  runner.step({});
  EXPECT_THAT(slices(runner), ElementsAre(std::tuple(a, 20, 1), std::tuple(b, 80, 30)));
  EXPECT_EQ(runner.complaint(), "");
}

TEST(Scheduler, SeveralPromptsShareTheBudgetInTheOrderTheyCame) {
  Runner runner(small_layout(true), kPlenty, {});
  const RequestId a = runner.take(request_of(100, 5)), b = runner.take(request_of(150, 5)), c = runner.take(request_of(900, 5));
  runner.step({});
  EXPECT_THAT(slices(runner), ElementsAre(std::tuple(a, 0, 100), std::tuple(b, 0, 150), std::tuple(c, 0, 262)));
}

TEST(Scheduler, AShortPromptDoesNotWaitForAnothersLongOne) {
  Runner runner(small_layout(true), kPlenty, {});
  runner.take(request_of(20'000, 5, 1));
  for (int i = 0; i < 3; ++i) runner.step({});
  const RequestId brief = runner.take(request_of(10, 1, 2));
  std::int64_t steps = 0;
  while (runner.life(brief).fate == Runner::Fate::Alive && steps < 40) runner.step({}), ++steps;
  EXPECT_LE(steps, 1 + kPrefillTurnTokens / ScheduleLimits{}.prefill_tokens);
  EXPECT_EQ(runner.complaint(), "");
}

TEST(Scheduler, EqualPromptsOfDifferentClientsEndOneAfterAnother) {
  Runner runner(small_layout(true), kPlenty, {});
  const RequestId a = runner.take(request_of(1'500, 1, 1)), b = runner.take(request_of(1'500, 1, 2));
  for (int i = 0; i < 3; ++i) runner.step({});
  EXPECT_EQ(runner.life(a).fate, Runner::Fate::Finished);
  EXPECT_LT(runner.life(b).position, 100);
}

TEST(Scheduler, WithinAClientFirstInFirstOut) {
  ScheduleLimits limits;
  limits.max_running = 1;
  Runner runner(small_layout(true), kPlenty, limits);
  std::vector<RequestId> ids;
  for (const std::int64_t length : {90, 5, 300, 40}) ids.push_back(runner.take(request_of(length, 1)));
  std::vector<RequestId> order;
  while (runner.num_alive() > 0) {
    runner.step({});
    for (const RequestId id : admitted(runner)) order.push_back(id);
  }
  EXPECT_EQ(order, ids);
}

TEST(Scheduler, AHigherClassGoesFirstAndTakesTheMemoryOfALowerOne) {
  ScheduleLimits limits;
  limits.reserved_new_tokens = 10;
  Runner runner(small_layout(true), 2 * blocks(210), limits);
  const RequestId low1 = runner.take(request_of(200, 20, 1, Priority::Low));
  const RequestId low2 = runner.take(request_of(200, 20, 2, Priority::Low));
  runner.step({});
  ASSERT_THAT(admitted(runner), ElementsAre(low1, low2));
  const RequestId normal = runner.take(request_of(200, 20, 3));
  const RequestId high = runner.take(request_of(200, 20, 4, Priority::High));
  runner.step({});
  EXPECT_THAT(runner.last().preempted, ElementsAre(low2));
  EXPECT_THAT(admitted(runner), ElementsAre(high));
  runner.step({});
  EXPECT_THAT(runner.last().preempted, ElementsAre(low1));
  EXPECT_THAT(admitted(runner), ElementsAre(normal));
  runner.run_dry();
  for (const RequestId id : {low1, low2, normal, high}) EXPECT_EQ(runner.life(id).generated(), 20);
  EXPECT_EQ(runner.complaint(), "");
}

TEST(Scheduler, NobodyIsPreemptedForARequestThatWouldNotFitAllTheSame) {
  ScheduleLimits limits;
  limits.max_running = 2;
  Runner runner(small_layout(true), kPlenty, limits);
  runner.take(request_of(10, 100, 1, Priority::High));
  runner.take(request_of(10, 100, 1, Priority::High));
  runner.step({});
  runner.take(request_of(10, 10, 2, Priority::High));
  runner.step({});
  EXPECT_THAT(runner.last().preempted, IsEmpty());
}

TEST(Scheduler, ADryPoolPreemptsTheYoungestWhichGoesOnBeforeAllOthers) {
  ScheduleLimits limits;
  limits.reserved_new_tokens = 1;
  const MemoryLayout layout = small_layout(true);
  const std::int64_t tokens_of_a_block = layout.page_tokens * layout.pages_per_block;
  // Room for both prompts, not for both answers.
  Runner runner(layout, 2 * blocks(tokens_of_a_block), limits);
  const RequestId a = runner.take(request_of(200, 200, 1)), b = runner.take(request_of(200, 200, 2));
  runner.step({});
  const RequestId c = runner.take(request_of(1, 1, 3));
  while (runner.last().preempted.empty() && runner.num_alive() > 0) runner.step({});
  EXPECT_THAT(runner.last().preempted, ElementsAre(b));
  std::vector<RequestId> order;
  while (runner.num_alive() > 0) {
    runner.step({});
    for (const RequestId id : admitted(runner)) order.push_back(id);
  }
  EXPECT_THAT(order, ElementsAre(b, c));
  EXPECT_EQ(runner.life(a).preemptions, 0);
  EXPECT_EQ(runner.life(b).generated(), 200);
  EXPECT_GT(runner.scheduler().statistics().recomputed_tokens, 0);
  EXPECT_EQ(runner.complaint(), "");
}

/// Knows the first half of everything.
class HalfPrefixes : public Prefixes {
 public:
  Resumption resume(RequestId id, std::int64_t tokens, std::int64_t spare_blocks) override {
    asked.emplace_back(id, tokens);
    spare.push_back(spare_blocks);
    return {tokens / 2, more_blocks, held_blocks};
  }
  std::int64_t more_blocks = 0, held_blocks = 0;
  std::vector<std::pair<RequestId, std::int64_t>> asked;
  std::vector<std::int64_t> spare;
};

TEST(Scheduler, WhatIsStoredIsNotComputedAndNotPaidFor) {
  HalfPrefixes prefixes;
  Runner runner(small_layout(true), kPlenty, {}, &prefixes);
  const RequestId a = runner.take(request_of(300, 2));
  runner.step({});
  EXPECT_THAT(prefixes.asked, ElementsAre(std::pair(a, 300)));
  EXPECT_EQ(runner.last().admitted[0].resume_at, 150);
  EXPECT_THAT(slices(runner), ElementsAre(std::tuple(a, 150, 150)));
  EXPECT_EQ(runner.scheduler().statistics().computed_tokens, 150);
  EXPECT_EQ(runner.scheduler().statistics().resumed_tokens, 150);
  runner.run_dry();
  EXPECT_EQ(runner.complaint(), "");
}

TEST(Scheduler, BlocksOfAStoreAreCountedWhileItNeedsThem) {
  const MemoryLayout layout = small_layout(true);
  HalfPrefixes prefixes;
  prefixes.more_blocks = 2;
  prefixes.held_blocks = 5;
  Runner runner(layout, kPlenty, {}, &prefixes);
  const RequestId a = runner.take(request_of(300, 2)), b = runner.take(request_of(100, 2));
  const std::int64_t of_a = layout.sequence_blocks(301), of_b = layout.sequence_blocks(101);
  runner.step({});
  EXPECT_THAT(prefixes.asked, ElementsAre(std::pair(a, 300), std::pair(b, 100)));
  EXPECT_THAT(prefixes.spare, ElementsAre(kPlenty - of_a, kPlenty - of_a - 7 - of_b));
  EXPECT_EQ(runner.scheduler().statistics().blocks_used, of_a + 2 + of_b + 2);
  for (const RequestId id : {a, b}) EXPECT_TRUE(runner.scheduler().cancel(id));
  EXPECT_EQ(runner.scheduler().statistics().blocks_used, 0);
}

class WrongPrefixes : public Prefixes {
 public:
  explicit WrongPrefixes(Resumption answer) : answer_(answer) {}
  Resumption resume(RequestId, std::int64_t, std::int64_t) override { return answer_; }

 private:
  Resumption answer_;
};

TEST(Scheduler, AStoreMustLeaveTheLastTokenToComputeAndTakeOnlyWhatIsSpare) {
  const auto complaint = [](Resumption answer) {
    WrongPrefixes prefixes(answer);
    Scheduler scheduler(small_layout(true), kPlenty, {}, &prefixes);
    (void)scheduler.submit(request_of(300, 2));
    return error_of([&] { scheduler.next_step({}); });
  };
  EXPECT_THAT(complaint({300, 0, 0}), HasSubstr("resumes at 300, expected 0 to 299"));
  const std::int64_t spare = kPlenty - small_layout(true).sequence_blocks(301);
  EXPECT_THAT(complaint({10, 1, spare}), HasSubstr(fmt::format("expected at most {}", spare)));
  EXPECT_EQ(complaint({10, 1, spare - 1}), "");
}

TEST(Scheduler, ADeadlineEndsARequestWhereverItIs) {
  ScheduleLimits limits;
  limits.max_running = 1;
  Runner runner(small_layout(true), kPlenty, limits);
  Request running = request_of(10, 100), waiting = request_of(10, 100);
  running.deadline = seconds(5);
  waiting.deadline = seconds(3);
  const RequestId a = runner.take(running), b = runner.take(waiting);
  runner.step(seconds(1));
  EXPECT_EQ(runner.scheduler().next_deadline(), Instant(seconds(3)));
  runner.step(seconds(3) - Instant(1));
  EXPECT_THAT(runner.last().expired, IsEmpty());
  runner.step(seconds(3));
  EXPECT_THAT(runner.last().expired, ElementsAre(b));
  runner.step(seconds(6));
  EXPECT_THAT(runner.last().expired, ElementsAre(a));
  EXPECT_EQ(runner.scheduler().next_deadline(), std::nullopt);
  EXPECT_EQ(runner.scheduler().statistics().blocks_used, 0);
  EXPECT_EQ(runner.complaint(), "");
}

TEST(Scheduler, CancelFreesAtOnceAtAnyState) {
  ScheduleLimits limits;
  limits.prefill_tokens = 50;
  limits.prefill_tokens_beside_decodes = 50;
  limits.max_running = 2;
  Runner runner(small_layout(true), kPlenty, limits);
  const RequestId decodes = runner.take(request_of(10, 100)), prefills = runner.take(request_of(500, 100)),
                  waits = runner.take(request_of(10, 100));
  runner.step({});
  runner.step({});
  runner.cancel(waits);
  EXPECT_EQ(runner.scheduler().statistics().waiting, 0);
  runner.cancel(prefills);
  EXPECT_EQ(runner.scheduler().statistics().running, 1);
  runner.step({}, [&] { runner.cancel(decodes); });  // in the middle of its step
  EXPECT_EQ(runner.scheduler().statistics().blocks_used, 0);
  EXPECT_EQ(runner.scheduler().statistics().cancelled, 3);
  EXPECT_FALSE(runner.scheduler().cancel(decodes));
  EXPECT_FALSE(runner.scheduler().cancel(RequestId{77}));
  EXPECT_EQ(runner.complaint(), "");
}

TEST(Scheduler, CancellingAWaitingRequestTouchesNobodyElse) {
  ScheduleLimits limits;
  limits.max_running = 1;
  Runner with(small_layout(true), kPlenty, limits), without(small_layout(true), kPlenty, limits);
  for (Runner* runner : {&with, &without}) {
    runner->take(request_of(600, 30));
    runner->step({});
    if (runner == &with) runner->cancel(runner->take(request_of(30, 10, 5)));
    runner->run_dry();
  }
  EXPECT_EQ(with.digest(), without.digest());
}

TEST(Scheduler, AFullQueueRefusesAndSaysWhenToComeBack) {
  ScheduleLimits limits;
  limits.max_running = 1;
  limits.max_waiting = 8;
  Runner runner(small_layout(true), kPlenty, limits);
  for (int i = 0; i < 8; ++i) runner.take(request_of(10, 1));
  const auto refused = std::get<QueueFull>(runner.submit(request_of(10, 1), 1));
  EXPECT_EQ(refused.waiting, 8);
  EXPECT_EQ(refused.retry_after, seconds(1));  // nothing is known yet
  // One request in five seconds.
  for (int i = 0; i < 200; ++i) {
    runner.step(seconds(5 * i));
    runner.take(request_of(10, 1));
  }
  const auto later = std::get<QueueFull>(runner.submit(request_of(10, 1), 1));
  EXPECT_EQ(later.retry_after, seconds(5));  // one of eight
  EXPECT_EQ(later.message(), "queue: 8 requests wait, expected a request when fewer do (in 5 s)");
  EXPECT_EQ(runner.scheduler().statistics().refused, 2);
}

TEST(Scheduler, ARequestLargerThanThePoolIsRefusedWithTheNumbers) {
  const std::int64_t pool = blocks(1000);
  Runner runner(small_layout(true), pool, {});
  // The last token needs no memory.
  std::int64_t most = 1000;
  while (blocks(most + 1) == pool) ++most;
  runner.take(request_of(most, 1));
  runner.take(request_of(1, most));
  const auto refused = std::get<LargerThanPool>(runner.submit(request_of(2, most), 1));
  EXPECT_EQ(refused.tokens, most + 2);
  EXPECT_EQ(refused.blocks, pool + 2);  // latents and MTP latents
  EXPECT_EQ(refused.pool_blocks, pool);
  EXPECT_THAT(refused.message(), HasSubstr("blocks of memory, expected at most the pool's"));
  EXPECT_TRUE(std::holds_alternative<LargerThanPool>(runner.submit(request_of(INT64_MAX, INT64_MAX), 1)));
  runner.run_dry();
  EXPECT_EQ(runner.complaint(), "");
}

TEST(Scheduler, TheQueueTimeOfAnAdmissionIsSinceItsArrival) {
  Runner runner(small_layout(true), kPlenty, {});
  Request request = request_of(10, 1);
  request.arrival = seconds(3);
  runner.take(request);
  runner.step(seconds(10));
  EXPECT_EQ(runner.last().admitted[0].waited, Instant(seconds(7)));
}

TEST(Scheduler, ARequestWhoseTokenIsNotKnownYetSitsOut) {
  Scheduler scheduler(small_layout(true), kPlenty, {});
  const RequestId a = std::get<RequestId>(scheduler.submit(request_of(10, 5)));
  scheduler.next_step({});
  scheduler.complete_step();
  EXPECT_THAT(scheduler.next_step({}).slices, IsEmpty());
  EXPECT_TRUE(scheduler.append_tokens(a));
  EXPECT_EQ(scheduler.next_step({}).slices.size(), 1u);
}

/// Of the last step's slices.
std::vector<std::int64_t> drafts(const Runner& runner) {
  std::vector<std::int64_t> list;
  for (const ScheduledSlice& slice : runner.last().slices) list.push_back(slice.drafts);
  return list;
}

TEST(Scheduler, AStreamGoesOnBehindTheDraftsThatCameTrue) {
  Runner runner(small_layout(true), kPlenty, {});
  const RequestId a = runner.take(request_of(20, 50));
  runner.step({});
  std::int64_t proposed = 4, accepted = 2;
  runner.proposes = [&](RequestId) { return proposed; };
  runner.accepts = [&](RequestId, std::int64_t) { return accepted; };
  runner.step({});
  EXPECT_THAT(slices(runner), ElementsAre(std::tuple(a, 20, 5)));
  EXPECT_THAT(drafts(runner), ElementsAre(4));
  EXPECT_TRUE(runner.last().slices[0].wants_logits);
  EXPECT_EQ(runner.scheduler().statistics().decode_rows, 5);
  EXPECT_EQ(runner.scheduler().statistics().computed_tokens, 23);  // with two drafts, without the other two
  accepted = 0;
  runner.step({});
  EXPECT_THAT(slices(runner), ElementsAre(std::tuple(a, 23, 5)));
  proposed = 0;
  runner.step({});
  EXPECT_THAT(slices(runner), ElementsAre(std::tuple(a, 24, 1)));
  EXPECT_EQ(runner.scheduler().statistics().draft_rows, 8);
  EXPECT_EQ(runner.scheduler().statistics().accepted_drafts, 2);
  runner.run_dry();
  EXPECT_EQ(runner.life(a).generated(), 50);
  EXPECT_EQ(runner.complaint(), "");
}

TEST(Scheduler, NoDraftIsTheLastTokenThatARequestMayMake) {
  Runner runner(small_layout(true), kPlenty, {});
  const RequestId a = runner.take(request_of(20, 5));
  runner.proposes = [](RequestId) { return INT64_MAX; };
  runner.step({});
  EXPECT_THAT(drafts(runner), ElementsAre(0));  // of a prompt
  runner.step({});
  EXPECT_THAT(slices(runner), ElementsAre(std::tuple(a, 20, 4)));
  runner.accepts = [](RequestId, std::int64_t proposed) { return proposed; };
  runner.step({});
  EXPECT_THAT(slices(runner), ElementsAre(std::tuple(a, 21, 3)));
  EXPECT_EQ(runner.life(a).fate, Runner::Fate::Finished);
  EXPECT_EQ(runner.life(a).generated(), 5);
  EXPECT_EQ(runner.complaint(), "");
}

TEST(Scheduler, AnAnswerMayEndAmongItsDrafts) {
  Runner runner(small_layout(true), kPlenty, {});
  const RequestId a = runner.take(request_of(20, 50), 4);
  runner.proposes = [](RequestId) { return 9; };
  runner.accepts = [](RequestId, std::int64_t proposed) { return proposed; };
  runner.step({});
  runner.step({});
  EXPECT_EQ(runner.life(a).fate, Runner::Fate::Finished);
  EXPECT_EQ(runner.life(a).generated(), 4);
  EXPECT_EQ(runner.scheduler().statistics().accepted_drafts, 2);
  EXPECT_EQ(runner.scheduler().statistics().blocks_used, 0);
}

TEST(Scheduler, DraftsTakeWhatIsSpareAndNoBlockWhileSomebodyWaits) {
  ScheduleLimits limits;
  limits.reserved_new_tokens = 1;
  const MemoryLayout layout = small_layout(true);
  const std::int64_t page = layout.page_tokens * layout.pages_per_block;
  for (const bool somebody_waits : {false, true}) {
    limits.max_running = 2;
    Runner runner(layout, 2 * blocks(page) + blocks(page + 1) - blocks(page), limits);  // one of them may have one page more
    const RequestId a = runner.take(request_of(page - 10, 200, 1)), b = runner.take(request_of(page - 10, 200, 2));
    runner.step({});
    ASSERT_THAT(admitted(runner), ElementsAre(a, b));
    runner.step({});
    runner.step({});
    if (somebody_waits) runner.take(request_of(1, 1, 3));
    runner.proposes = [](RequestId) { return 20; };
    runner.step({});
    // Each is at its own row page - 8, of which 7 more fit.
    EXPECT_THAT(drafts(runner), somebody_waits ? ElementsAre(7, 7) : ElementsAre(20, 7)) << somebody_waits;
    EXPECT_THAT(runner.last().preempted, IsEmpty());
    runner.run_dry();
    EXPECT_EQ(runner.complaint(), "");
  }
}

TEST(Scheduler, ADecodeIsNotPreemptedForTheDraftsOfAnOlderOne) {
  ScheduleLimits limits;
  limits.reserved_new_tokens = 1;
  const MemoryLayout layout = small_layout(true);
  const std::int64_t page = layout.page_tokens * layout.pages_per_block;
  Runner runner(layout, 2 * blocks(page) + blocks(page + 1) - blocks(page), limits);  // one of them may have one page more
  const RequestId a = runner.take(request_of(page - 9, 200, 1)), b = runner.take(request_of(page - 1, 200, 2));
  while (runner.life(b).known <= page) runner.step({});  // until its own row needs that page
  runner.proposes = [&](RequestId id) { return id == a ? 20 : 0; };
  const std::int64_t more = page - runner.life(a).known;
  runner.step({});
  EXPECT_THAT(runner.last().preempted, IsEmpty());
  EXPECT_THAT(slices(runner), ElementsAre(std::tuple(a, page - more - 1, 1 + more), std::tuple(b, page, 1)));
  EXPECT_EQ(runner.complaint(), "");
}

TEST(Scheduler, WhatIsProposedIsForgottenWithTheNextSliceAndByAPreemption) {
  Scheduler scheduler(small_layout(true), kPlenty, {});
  ScheduleLimits limits;
  const auto last_drafts = [](Scheduler& s) {
    const ScheduledStep& step = s.next_step({});
    const std::int64_t drafts = step.slices.at(0).drafts;
    s.complete_step();
    return drafts;
  };
  const RequestId a = std::get<RequestId>(scheduler.submit(request_of(10, 50)));
  scheduler.propose(a, 3);  // it waits
  EXPECT_EQ(last_drafts(scheduler), 0);
  EXPECT_TRUE(scheduler.append_tokens(a));
  scheduler.propose(a, 3);
  scheduler.propose(a, 2);
  EXPECT_EQ(last_drafts(scheduler), 2);
  EXPECT_TRUE(scheduler.append_tokens(a, 3));
  EXPECT_EQ(last_drafts(scheduler), 0);
  EXPECT_TRUE(scheduler.append_tokens(a));
  scheduler.propose(RequestId{77}, 3);

  limits.max_running = 1;
  HalfPrefixes prefixes;
  Scheduler narrow(small_layout(true), kPlenty, limits, &prefixes);
  const RequestId low = std::get<RequestId>(narrow.submit(request_of(1, 50, 1, Priority::Low)));
  EXPECT_EQ(last_drafts(narrow), 0);
  EXPECT_TRUE(narrow.append_tokens(low));
  narrow.propose(low, 3);
  (void)narrow.submit(request_of(10, 1, 2));
  const RequestId first = narrow.next_step({}).slices.at(0).id;
  EXPECT_NE(first, low);
  narrow.propose(low, 3);  // it waits
  narrow.complete_step();
  EXPECT_FALSE(narrow.append_tokens(first));
  EXPECT_EQ(last_drafts(narrow), 0);  // from token 1 of 2: a row that looks like a decode
}

TEST(Scheduler, OnlyVerifiedDraftsAreAppended) {
  Scheduler scheduler(small_layout(true), kPlenty, {});
  const auto pass = [&] {
    scheduler.next_step({});
    scheduler.complete_step();
  };
  const RequestId a = std::get<RequestId>(scheduler.submit(request_of(10, 5)));
  const auto complaint = [&](std::int64_t count) { return error_of([&] { (void)scheduler.append_tokens(a, count); }); };
  pass();
  EXPECT_EQ(complaint(0), "request 1: found 0 tokens to append, expected 1 to 1");
  EXPECT_EQ(complaint(2), "request 1: found 2 tokens to append, expected 1 to 1");
  EXPECT_EQ(complaint(1), "");
  scheduler.propose(a, 10);
  pass();
  EXPECT_EQ(complaint(5), "request 1: found 5 tokens to append, expected 1 to 4");  // one of its five is known
  EXPECT_EQ(complaint(-1), "request 1: found -1 tokens to append, expected 1 to 4");
  EXPECT_EQ(complaint(2), "");
  EXPECT_EQ(complaint(1), "request 1: a token is appended at position 12 of 13, expected all computed");
  pass();
  EXPECT_EQ(complaint(2), "request 1: found 2 tokens to append, expected 1 to 1");  // those of a step before are gone
  EXPECT_TRUE(scheduler.append_tokens(a));
  EXPECT_EQ(scheduler.statistics().computed_tokens, 13);
}

TEST(Scheduler, MisuseIsNamed) {
  Scheduler scheduler(small_layout(true), kPlenty, {});
  EXPECT_EQ(error_of([&] { scheduler.complete_step(); }), "complete_step: no step is under way");
  EXPECT_EQ(error_of([&] { (void)scheduler.submit(request_of(0, 1)); }), "prompt_tokens: found 0, expected at least 1");
  EXPECT_EQ(error_of([&] { (void)scheduler.submit(request_of(1, 0)); }), "max_new_tokens: found 0, expected at least 1");
  Request request = request_of(1000, 5);
  request.weight = -1;
  EXPECT_EQ(error_of([&] { (void)scheduler.submit(request); }), "weight: found -1, expected more than 0");
  const RequestId a = std::get<RequestId>(scheduler.submit(request_of(1000, 5)));
  scheduler.next_step({});
  EXPECT_THAT(error_of([&] { scheduler.next_step({}); }), HasSubstr("a step is under way"));
  scheduler.complete_step();
  EXPECT_THAT(error_of([&] { (void)scheduler.append_tokens(a); }), HasSubstr("appended at position 512 of 1000"));
  EXPECT_EQ(error_of([&] { scheduler.propose(a, -1); }), "drafts: found -1, expected at least 0");
  ScheduleLimits limits;
  limits.prefill_tokens_beside_decodes = 0;
  EXPECT_EQ(error_of([&] { Scheduler(small_layout(true), 10, limits); }),
            "prefill_tokens_beside_decodes: found 0, expected at least 1");
}

}  // namespace
}  // namespace calandra
