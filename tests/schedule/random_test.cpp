// Random arrivals, lengths, budgets, cancels and deadlines on a real pool: Runner checks every step.

#include "schedule/runner.h"
#include "support/golden.h"
#include "support/small_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <vector>

namespace calandra {
namespace {

using std::chrono::milliseconds;

struct Event {
  enum class Kind { Arrival, Cancel, CancelDuringStep, Step } kind = Kind::Step;
  std::int64_t prompt = 1, max_new = 1, answer = 1;
  int client = 0, priority = 0;
  bool has_deadline = false;
  std::uint64_t victim = 0;  // of a cancel

  friend std::ostream& operator<<(std::ostream& out, const Event& e) {
    return out << "{kind " << static_cast<int>(e.kind) << " prompt " << e.prompt << " max_new " << e.max_new << " answer "
               << e.answer << " client " << e.client << " priority " << e.priority << " deadline " << e.has_deadline << " victim "
               << e.victim << "}";
  }
};

rc::Gen<Event> event() {
  using Kind = Event::Kind;
  return rc::gen::build<Event>(
      rc::gen::set(&Event::kind, rc::gen::weightedElement<Kind>(
                                     {{6, Kind::Arrival}, {1, Kind::Cancel}, {1, Kind::CancelDuringStep}, {10, Kind::Step}})),
      rc::gen::set(&Event::prompt, rc::gen::weightedOneOf<std::int64_t>({{3, rc::gen::inRange<std::int64_t>(1, 40)},
                                                                         {2, rc::gen::inRange<std::int64_t>(1, 1500)}})),
      rc::gen::set(&Event::max_new, rc::gen::weightedOneOf<std::int64_t>({{2, rc::gen::inRange<std::int64_t>(1, 10)},
                                                                          {3, rc::gen::inRange<std::int64_t>(1, 700)}})),
      rc::gen::set(&Event::answer, rc::gen::inRange<std::int64_t>(1, 700)), rc::gen::set(&Event::client, rc::gen::inRange(0, 4)),
      rc::gen::set(&Event::priority, rc::gen::inRange(0, 3)),
      rc::gen::set(&Event::has_deadline, rc::gen::weightedElement<bool>({{5, false}, {1, true}})),
      rc::gen::set(&Event::victim, rc::gen::inRange<std::uint64_t>(0, 1000)));
}

struct Scene {
  ScheduleLimits limits;
  std::int64_t spare_blocks = 0;  // beyond the smallest pool in which the longest request fits
  bool mtp = true;
};

Scene scene() {
  Scene s;
  s.limits.max_running = *rc::gen::inRange<std::int64_t>(1, 12);
  s.limits.max_waiting = *rc::gen::inRange<std::int64_t>(1, 40);
  s.limits.prefill_tokens = *rc::gen::inRange<std::int64_t>(1, 600);
  s.limits.prefill_tokens_beside_decodes = *rc::gen::inRange<std::int64_t>(1, 200);
  s.limits.reserved_new_tokens = *rc::gen::element<std::int64_t>(1, 16, 64, 512);
  s.spare_blocks = *rc::gen::inRange<std::int64_t>(0, 30);
  s.mtp = *rc::gen::arbitrary<bool>();
  return s;
}

/// Plays the events and then runs dry.
void play(Runner& runner, const std::vector<Event>& events) {
  Instant now{};
  const auto cancel = [&](std::uint64_t victim) {
    if (!runner.lives().empty()) runner.cancel(RequestId{1 + victim % runner.lives().size()});
  };
  std::uint64_t cancel_during = 0;
  for (const Event& e : events) {
    now += milliseconds(10);
    switch (e.kind) {
      case Event::Kind::Arrival: {
        Request request;
        request.prompt_tokens = e.prompt;
        request.max_new_tokens = e.max_new;
        request.client = static_cast<std::uint64_t>(e.client);
        request.weight = 1 + e.client;
        request.priority = static_cast<Priority>(e.priority);
        request.arrival = now;
        if (e.has_deadline) request.deadline = now + milliseconds(e.prompt);
        (void)runner.submit(request, e.answer);
        break;
      }
      case Event::Kind::Cancel: cancel(e.victim); break;
      case Event::Kind::CancelDuringStep: cancel_during = e.victim + 1; break;
      case Event::Kind::Step:
        runner.step(now, [&] {
          if (cancel_during > 0) cancel(cancel_during - 1);
          cancel_during = 0;
        });
    }
    if (!runner.complaint().empty()) return;
  }
  runner.run_dry(now);
}

/// Drafts as chance has them, some longer than a block of memory. Few come true, or all, or some.
struct DraftScript {
  std::uint64_t seed = 0;  // 0: none ever

  std::uint64_t word(const Runner& runner, RequestId id) const {
    const std::uint64_t word = (seed + static_cast<std::uint64_t>(id) * 7919) ^ static_cast<std::uint64_t>(runner.steps()) << 20;
    return word * 0x9E3779B97F4A7C15 >> 40;
  }
  std::int64_t proposed(const Runner& runner, RequestId id) const {
    static constexpr std::array<std::int64_t, 8> kSome{0, 0, 1, 2, 4, 7, 40, 300};
    return seed == 0 ? 0 : kSome[word(runner, id) % kSome.size()];
  }
  std::int64_t accepted(const Runner& runner, RequestId id, std::int64_t drafts) const {
    const std::uint64_t luck = word(runner, id) / 8;
    if (luck % 4 < 2) return luck % 4 == 0 ? 0 : drafts;
    return static_cast<std::int64_t>(luck / 4 % static_cast<std::uint64_t>(drafts + 1));
  }
  void drive(Runner& runner) const {
    runner.proposes = [this, &runner](RequestId id) { return proposed(runner, id); };
    runner.accepts = [this, &runner](RequestId id, std::int64_t drafts) { return accepted(runner, id, drafts); };
  }
};

DraftScript drafts() {
  return {
      *rc::gen::weightedOneOf<std::uint64_t>({{1, rc::gen::just<std::uint64_t>(0)}, {3, rc::gen::arbitrary<std::uint64_t>()}})};
}

Runner runner_of(const Scene& s, Prefixes* prefixes = nullptr) {
  const MemoryLayout layout = small_layout(s.mtp);
  return {layout, layout.sequence_blocks(1200) + s.spare_blocks, s.limits, prefixes};
}

TEST(Schedules, KeepEveryPromiseOnARealPool) {
  std::int64_t preemptions = 0, cancelled = 0, expired = 0, refused = 0, recomputed = 0, in_vain = 0, accepted = 0;
  EXPECT_TRUE(rc::check("", [&] {
    const Scene s = scene();
    const auto events = *rc::gen::scale(long_tests() ? 4.0 : 1.5, rc::gen::container<std::vector<Event>>(event()));
    const DraftScript guesses = drafts();
    Runner runner = runner_of(s);
    guesses.drive(runner);
    play(runner, events);
    RC_ASSERT(runner.complaint() == "");
    const ScheduleStatistics statistics = runner.scheduler().statistics();
    RC_ASSERT(statistics.blocks_used == 0);
    RC_ASSERT(statistics.running + statistics.waiting + statistics.preempted == 0);
    RC_ASSERT(statistics.submitted == statistics.refused + statistics.finished + statistics.cancelled + statistics.expired);
    std::int64_t served = 0;
    for (const auto& [id, life] : runner.lives()) {
      served += life.served;
      if (life.fate != Runner::Fate::Finished) continue;
      RC_ASSERT(life.generated() == life.answer);
      RC_ASSERT(life.served == life.known - 1);
    }
    if (statistics.cancelled == 0) RC_ASSERT(statistics.computed_tokens - statistics.recomputed_tokens == served);
    preemptions += statistics.preemptions;
    cancelled += statistics.cancelled;
    expired += statistics.expired;
    refused += statistics.refused;
    recomputed += statistics.recomputed_tokens;
    in_vain += statistics.draft_rows - statistics.accepted_drafts;
    accepted += statistics.accepted_drafts;
  }));
  // The scenes are worth something only if all of it happens.
  EXPECT_GT(preemptions, 20);
  EXPECT_GT(cancelled, 20);
  EXPECT_GT(expired, 20);
  EXPECT_GT(refused, 20);
  EXPECT_GT(recomputed, 1000);
  EXPECT_GT(in_vain, 1000);
  EXPECT_GT(accepted, 1000);
}

/// Says of some requests that others are computing what they begin with, whether that is so or not.
class Whims : public Prefixes {
 public:
  explicit Whims(std::uint64_t seed) : seed_(seed) {}

  std::optional<ComingPrefix> coming(RequestId id, std::int64_t tokens) override {
    asked_twice |= !asked_.insert(id).second;
    std::uint64_t word = (static_cast<std::uint64_t>(id) + seed_) * 0x9E3779B97F4A7C15;
    word ^= word >> 29;
    if (word % 3 == 0) return std::nullopt;
    waiting_.insert(id);
    // The one admitted last, or its own number and those around; positions before the end and behind it.
    const RequestId near{static_cast<std::uint64_t>(id) + word / 4 % 5 - 3};
    return ComingPrefix{word % 4 == 1 ? near : last_, static_cast<std::int64_t>(word / 64 % 2 * 5000) + tokens / 2};
  }
  Resumption resume(RequestId id, std::int64_t tokens, std::int64_t /*spare_blocks*/) override {
    waiting_.erase(id);
    last_ = id;
    const std::uint64_t word =
        (static_cast<std::uint64_t>(id) + seed_ + static_cast<std::uint64_t>(tokens)) * 0x9E3779B97F4A7C15 >> 32;
    is_later_[id] = word % 3 == 0;
    num_later += word % 3 == 0 ? 1 : 0;
    if (word % 3 == 1) return {};
    return {static_cast<std::int64_t>(word / 3 % static_cast<std::uint64_t>(tokens)), 0, 0, is_later_[id]};
  }
  bool comes_later(RequestId id) const { return is_later_.at(id); }
  bool may_wait(RequestId id) const { return waiting_.contains(id); }

  bool asked_twice = false;
  std::int64_t num_later = 0;

 private:
  std::uint64_t seed_;
  std::set<RequestId> asked_, waiting_;
  std::map<RequestId, bool> is_later_;
  RequestId last_{};
};

TEST(Schedules, KeepEveryPromiseWhoeverIsWaitedFor) {
  std::int64_t set_aside = 0, later = 0, preemptions = 0, cancelled = 0, expired = 0;
  EXPECT_TRUE(rc::check("", [&] {
    const Scene s = scene();
    const auto events = *rc::gen::scale(long_tests() ? 4.0 : 1.5, rc::gen::container<std::vector<Event>>(event()));
    Whims whims(*rc::gen::arbitrary<std::uint64_t>());
    const DraftScript guesses = drafts();
    Runner runner = runner_of(s, &whims);
    guesses.drive(runner);
    runner.comes_later = [&](RequestId id) { return whims.comes_later(id); };
    runner.may_be_passed = [&](RequestId id) { return whims.may_wait(id); };
    play(runner, events);
    RC_ASSERT(runner.complaint() == "");
    RC_ASSERT(!whims.asked_twice);
    const ScheduleStatistics statistics = runner.scheduler().statistics();
    RC_ASSERT(statistics.blocks_used == 0);
    RC_ASSERT(statistics.running + statistics.waiting + statistics.preempted == 0);
    RC_ASSERT(statistics.submitted == statistics.refused + statistics.finished + statistics.cancelled + statistics.expired);
    set_aside += statistics.set_aside;
    later += whims.num_later;
    preemptions += statistics.preemptions;
    cancelled += statistics.cancelled;
    expired += statistics.expired;
  }));
  EXPECT_GT(set_aside, 20);
  EXPECT_GT(later, 100);
  EXPECT_GT(preemptions, 20);
  EXPECT_GT(cancelled, 20);
  EXPECT_GT(expired, 20);
}

/// What a step does to memory, and who computes which certain tokens.
std::vector<std::int64_t> without_drafts(const ScheduledStep& step) {
  std::vector<std::int64_t> all;
  for (const RequestId id : step.expired) all.push_back(static_cast<std::int64_t>(id));
  all.push_back(-1);
  for (const RequestId id : step.preempted) all.push_back(static_cast<std::int64_t>(id));
  all.push_back(-2);
  for (const Admission& a : step.admitted) all.insert(all.end(), {static_cast<std::int64_t>(a.id), a.resume_at, a.room});
  all.push_back(-3);
  for (const ScheduledSlice& s : step.slices)
    all.insert(all.end(), {static_cast<std::int64_t>(s.id), s.begin, s.count - s.drafts, s.wants_logits});
  return all;
}

/// Steps of a schedule with drafts are decided once more, from the same state, with none proposed.
TEST(Schedules, DraftsChangeNothingElseOfTheStepThatVerifiesThem) {
  enum Kind : std::size_t { PreemptsFirst, Preempts, Admits, LetsWait, kNumKinds };
  std::array<std::int64_t, kNumKinds> seen{};
  EXPECT_TRUE(rc::check("", [&] {
    const Scene s = scene();
    const auto events = *rc::gen::scale(2.0, rc::gen::container<std::vector<Event>>(event()));
    const DraftScript guesses{*rc::gen::inRange<std::uint64_t>(1, UINT64_MAX)};
    std::array<std::map<std::int64_t, std::vector<std::int64_t>>, kNumKinds> steps;
    Runner first = runner_of(s);
    guesses.drive(first);
    bool waited = false;
    first.proposes = [&](RequestId id) {
      waited = first.scheduler().statistics().waiting > 0;
      return guesses.proposed(first, id);
    };
    first.decided = [&](const ScheduledStep& step) {
      const auto verifies = [](const ScheduledSlice& slice) { return slice.drafts > 0; };
      const Kind kind = !step.preempted.empty()  ? (waited ? Preempts : PreemptsFirst)
                        : !step.admitted.empty() ? Admits
                                                 : LetsWait;
      const bool waits = first.scheduler().statistics().waiting > 0;
      if (kind == LetsWait && !(waits && std::any_of(step.slices.begin(), step.slices.end(), verifies))) return;
      steps[kind][first.steps()] = without_drafts(step);
    };
    play(first, events);
    for (std::size_t kind = 0; kind < kNumKinds; ++kind) {
      for (int n = 0; n < 3 && !steps[kind].empty(); ++n) {
        const auto chosen = std::next(steps[kind].begin(), *rc::gen::inRange<std::ptrdiff_t>(0, std::ssize(steps[kind])));
        Runner second = runner_of(s);
        guesses.drive(second);
        second.proposes = [&](RequestId id) { return second.steps() == chosen->first ? 0 : guesses.proposed(second, id); };
        std::vector<std::int64_t> without;
        second.decided = [&](const ScheduledStep& step) {
          if (second.steps() == chosen->first) without = without_drafts(step);
        };
        play(second, events);
        RC_ASSERT(without == chosen->second);
        ++seen[kind];
        steps[kind].erase(chosen);
      }
    }
  }));
  // The first kind is rare: ADecodeIsNotPreemptedForTheDraftsOfAnOlderOne makes one.
  for (std::size_t kind = Preempts; kind < kNumKinds; ++kind) EXPECT_GT(seen[kind], 20) << kind;
}

/// Where there is memory for all, clients take turns as if there were no drafts.
TEST(Schedules, DraftsThatAreAlwaysWrongChangeNothing) {
  std::int64_t in_vain = 0;
  EXPECT_TRUE(rc::check("", [&] {
    Scene s = scene();
    s.spare_blocks = 1000;
    s.limits.max_running = std::min<std::int64_t>(s.limits.max_running, 3);  // what they wait for
    const auto events = *rc::gen::scale(2.0, rc::gen::container<std::vector<Event>>(event()));
    const DraftScript guesses{*rc::gen::inRange<std::uint64_t>(1, UINT64_MAX)};
    Runner with = runner_of(s), without = runner_of(s);
    guesses.drive(with);
    with.accepts = nullptr;
    play(with, events);
    play(without, events);
    RC_ASSERT(with.complaint() == "");
    RC_ASSERT(with.digest() == without.digest());
    RC_ASSERT(with.steps() == without.steps());
    const ScheduleStatistics of_with = with.scheduler().statistics(), of_without = without.scheduler().statistics();
    RC_ASSERT(of_with.computed_tokens == of_without.computed_tokens);
    in_vain += of_with.draft_rows;
  }));
  EXPECT_GT(in_vain, 1000);
}

TEST(Schedules, AreAFunctionOfWhatHappened) {
  EXPECT_TRUE(rc::check("", [] {
    const Scene s = scene();
    const auto events = *rc::gen::container<std::vector<Event>>(event());
    Runner first = runner_of(s);
    // Other addresses, other order in hash tables of pointers.
    const std::vector<std::vector<char>> clutter(100, std::vector<char>(777));
    Runner second = runner_of(s);
    const DraftScript guesses = drafts();
    guesses.drive(first);
    guesses.drive(second);
    play(first, events);
    play(second, events);
    RC_ASSERT(first.digest() == second.digest());
    RC_ASSERT(first.steps() == second.steps());
  }));
}

}  // namespace
}  // namespace calandra
