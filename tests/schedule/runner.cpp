#include "schedule/runner.h"

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>
#include <utility>
#include <variant>

namespace calandra {
namespace {

const std::array<float, 8> kHidden{};

}  // namespace

Runner::Runner(const MemoryLayout& layout, std::int64_t pool_blocks, const ScheduleLimits& limits, Prefixes* prefixes)
    : layout_(layout), pool_(layout, pool_blocks), limits_(limits), scheduler_(layout, pool_blocks, limits, prefixes) {}

void Runner::check(bool good, RequestId id, const std::string& what) {
  if (good || !complaint_.empty()) return;
  complaint_ = "step " + std::to_string(steps_) + ", request " + std::to_string(static_cast<std::uint64_t>(id)) + ": " + what;
}

Submission Runner::submit(const Request& request, std::int64_t answer) {
  const Submission submission = scheduler_.submit(request);
  if (const auto* id = std::get_if<RequestId>(&submission)) {
    Life life;
    life.request = request;
    life.known = request.prompt_tokens;
    life.answer = std::min(answer, request.max_new_tokens);
    lives_[*id] = std::move(life);
  }
  return submission;
}

RequestId Runner::take(const Request& request, std::int64_t answer) {
  const Submission submission = submit(request, answer);
  if (!std::holds_alternative<RequestId>(submission)) throw std::runtime_error("a request was refused");
  return std::get<RequestId>(submission);
}

void Runner::cancel(RequestId id) {
  const bool was_alive = lives_.at(id).fate == Fate::Alive;
  check(scheduler_.cancel(id) == was_alive, id, "cancel() does not know whether it has ended");
  if (!was_alive) return;
  lives_.at(id).fate = Fate::Cancelled;
  drop(id);
}

void Runner::drop(RequestId id) {
  Life& life = lives_.at(id);
  life.memory.reset();
  life.position = life.room = life.proposed = 0;
}

std::int64_t Runner::num_alive() const {
  return std::count_if(lives_.begin(), lives_.end(), [](const auto& life) { return life.second.fate == Fate::Alive; });
}

void Runner::step(Instant now, const std::function<void()>& during) {
  ++steps_;
  let_arrive();
  propose();
  last_ = scheduler_.next_step(now);
  if (decided) decided(last_);
  for (const RequestId id : last_.expired) {
    check(lives_.at(id).request.deadline.value_or(Instant::max()) <= now, id, "expired before its deadline");
    lives_.at(id).fate = Fate::Expired;
    drop(id);
  }
  for (const auto& [id, life] : lives_) {
    const bool due = life.fate == Fate::Alive && life.request.deadline.value_or(Instant::max()) <= now;
    check(!due, id, "outlived its deadline");
  }
  check_who_was_preempted();
  for (const RequestId id : last_.preempted) {
    check(lives_.at(id).memory != nullptr, id, "preempted without having run");
    drop(id);
    ++lives_.at(id).preemptions;
    remember(static_cast<std::uint64_t>(id) + 7);
  }
  make_memory();
  check_who_was_admitted();
  check_streams();
  const auto expects = [](const auto& life) { return life.second.memory && life.second.expects; };
  const bool only_expects = std::any_of(lives_.begin(), lives_.end(), expects);
  check(last_.slices.empty() == (num_alive() == 0) || only_expects, {}, "a step without a slice while somebody waits");
  if (last_.slices.empty()) return;
  run_slices(during);
  append_tokens();
}

void Runner::run_dry(Instant now) {
  while (num_alive() > 0 && complaint_.empty()) {
    step(now);
    check(steps_ < 200'000, {}, "the schedule does not end");
  }
}

void Runner::propose() {
  if (!proposes) return;
  for (auto& [id, life] : lives_) {
    const std::int64_t drafts = proposes(id);
    if (drafts == 0) continue;
    scheduler_.propose(id, drafts);
    if (life.memory) life.proposed = drafts;
  }
}

/// The first in rank of those that run gets on, unless a waiting request of a class before it needs the memory.
void Runner::check_who_was_preempted() {
  const std::set<RequestId> preempted(last_.preempted.begin(), last_.preempted.end());
  for (const RequestId id : preempted) {
    const auto rank = [&](RequestId i) { return std::pair(lives_.at(i).request.priority, i); };
    bool somebody_before = false;
    for (const auto& [other, life] : lives_) {
      if (life.fate != Fate::Alive || other == id) continue;
      const bool runs = life.memory && !preempted.contains(other);
      somebody_before |= runs && rank(other) < rank(id);
      somebody_before |= life.request.priority < lives_.at(id).request.priority;
      check(!runs || rank(other) < rank(id), id, "preempted although a later one runs on");
    }
    check(somebody_before, id, "preempted for nobody");
  }
}

void Runner::check_who_was_admitted() {
  for (const Admission& admission : last_.admitted) {
    const Life& life = lives_.at(admission.id);
    for (const auto& [other, waiting] : lives_) {
      if (waiting.fate != Fate::Alive || waiting.memory || (may_be_passed && may_be_passed(other))) continue;
      check(waiting.request.priority >= life.request.priority, admission.id, "admitted before a class above it");
      const bool same = waiting.request.priority == life.request.priority && waiting.request.client == life.request.client;
      check(!same || other > admission.id, admission.id, "admitted before an older one of its client");
    }
  }
}

/// Before the step is run.
bool Runner::decodes(const Life& life) const {
  return !life.expects && life.generated() > 0 && life.known - life.position == 1 && life.admitted_at != steps_;
}

/// Every stream that runs has its next token computed, beside no more of prompts than was promised.
void Runner::check_streams() {
  std::set<RequestId> in_step;
  std::int64_t decodes = 0, prefill = 0;
  for (const ScheduledSlice& slice : last_.slices) {
    check(in_step.insert(slice.id).second, slice.id, "two slices in one step");
    const bool decode = this->decodes(lives_.at(slice.id));
    check(!decode || prefill == 0, slice.id, "a stream after a prompt");
    (decode ? decodes : prefill) += slice.count;
  }
  check(prefill <= (decodes > 0 ? limits_.prefill_tokens_beside_decodes : limits_.prefill_tokens), {}, "more prompt than budget");
  std::int64_t running = 0;
  for (const auto& [id, life] : lives_) {
    if (!life.memory) continue;
    ++running;
    check(!this->decodes(life) || in_step.contains(id), id, "a stream sits out a step");
  }
  check(running <= limits_.max_running, {}, "more sequences than may run");
  const ScheduleStatistics statistics = scheduler_.statistics();
  check(statistics.running == running, {}, "statistics: running");
  check(statistics.waiting == num_alive() - running, {}, "statistics: waiting");
  check(statistics.decode_rows == decodes && statistics.prefill_rows == prefill, {}, "statistics: rows");
}

void Runner::let_arrive() {
  for (auto& [id, life] : lives_) {
    if (!life.memory || !life.expects) continue;
    const std::uint64_t luck =
        (static_cast<std::uint64_t>(steps_) * 31 + static_cast<std::uint64_t>(id)) * 0x9E3779B97F4A7C15 >> 40;
    if (luck % 3 != 0) continue;
    life.expects = false;
    life.position = luck % 5 == 0 ? 0 : life.announced;
    if (life.position > 0) life.memory->advance(life.position, kHidden);
    scheduler_.arrived(id, life.position);
  }
}

void Runner::make_memory() {
  for (const Admission& admission : last_.admitted) {
    Life& life = lives_.at(admission.id);
    check(life.fate == Fate::Alive && !life.memory, admission.id, "admitted twice or after its end");
    life.memory = SequenceMemory::create(pool_);
    check(life.memory && life.memory->reserve(admission.room), admission.id, "admitted into a dry pool");
    const std::int64_t reserved = std::min(limits_.reserved_new_tokens, life.request.max_new_tokens - 1 - life.generated());
    check(admission.room == life.known + reserved, admission.id, "reserves something else");
    life.expects = comes_later && comes_later(admission.id);
    life.announced = admission.resume_at;
    life.position = life.expects ? 0 : admission.resume_at;
    life.room = admission.room;
    life.was_running = true;
    life.admitted_at = steps_;
    if (life.memory && life.position > 0) life.memory->advance(life.position, kHidden);
    remember(static_cast<std::uint64_t>(admission.id));
  }
}

/// As many as were proposed, as may be made before the last token, and as have memory that nobody else has a use for.
void Runner::check_drafts() {
  const auto blocks = [&](std::int64_t end) { return layout_.sequence_blocks(end); };
  const bool waits = scheduler_.statistics().waiting > 0;
  const std::int64_t left = waits ? 0 : pool_.blocks().num_free();
  for (const ScheduledSlice& slice : last_.slices) {
    Life& life = lives_.at(slice.id);
    const bool decode = decodes(life);
    const std::int64_t proposed = std::exchange(life.proposed, 0), room = std::exchange(life.room, slice.room);
    const std::int64_t most = decode ? std::min(proposed, life.request.max_new_tokens - 1 - life.generated()) : 0;
    check(slice.drafts >= 0 && slice.drafts <= most, slice.id, "more drafts than may be verified");
    check(!decode || slice.count == 1 + slice.drafts, slice.id, "a stream without its own row");
    const std::int64_t taken = blocks(slice.room) - blocks(std::max(room, slice.begin + 1));
    check(!decode || !waits || taken <= 0, slice.id, "drafts took a block while somebody waits");
    const std::int64_t one_more = blocks(slice.begin + slice.count + 1) - blocks(slice.room);
    check(slice.drafts == most || one_more > left, slice.id, "fewer drafts than have memory");
    draft_rows_ += slice.drafts;
  }
}

void Runner::run_slices(const std::function<void()>& during) {
  for (const ScheduledSlice& slice : last_.slices) {
    Life& life = lives_.at(slice.id);
    if (!life.memory) {
      check(false, slice.id, "a slice without memory");
      continue;
    }
    check(!life.expects, slice.id, "a slice before what it resumes from has come");
    check(life.memory->reserve(slice.room), slice.id, "the pool is dry");
    check(slice.begin == life.position && slice.count > 0, slice.id, "a gap, or a token computed twice");
    const std::int64_t certain = slice.count - slice.drafts, end = slice.begin + slice.count;
    check(slice.begin + certain <= life.known && end <= slice.room, slice.id, "tokens that do not exist, or have no room");
    check(end < life.request.prompt_tokens + life.request.max_new_tokens, slice.id, "the last token it may make is computed");
    check(slice.wants_logits == (slice.begin + certain == life.known), slice.id, "logits of the wrong row");
    remember(static_cast<std::uint64_t>(slice.id) * 1'000'003 + static_cast<std::uint64_t>(certain));
  }
  check_drafts();
  const std::int64_t taken = pool_.blocks().num_blocks() - pool_.blocks().num_free();
  check(taken == scheduler_.statistics().blocks_used, {},
        "the pool has handed out " + std::to_string(taken) + " blocks, the scheduler counts " +
            std::to_string(scheduler_.statistics().blocks_used));
  if (during) during();
  scheduler_.complete_step();
  for (const ScheduledSlice& slice : last_.slices) {
    Life& life = lives_.at(slice.id);
    if (life.fate != Fate::Alive || !life.memory) continue;
    life.memory->advance(slice.count - slice.drafts, kHidden);
    life.position += slice.count - slice.drafts;
    life.served = std::max(life.served, life.position);
  }
}

void Runner::append_tokens() {
  for (const ScheduledSlice& slice : last_.slices) {
    if (!slice.wants_logits) continue;
    Life& life = lives_.at(slice.id);
    const std::int64_t true_ones = slice.drafts > 0 && accepts ? accepts(slice.id, slice.drafts) : 0;
    if (life.fate != Fate::Alive) {
      check(!scheduler_.append_tokens(slice.id, 1 + true_ones), slice.id, "goes on after its end");
      continue;
    }
    // Its answer may end among them.
    const std::int64_t accepted = std::min(true_ones, life.answer - life.generated() - 1);
    life.known += 1 + accepted;
    life.position += accepted;
    if (accepted > 0) life.memory->advance(accepted, kHidden);
    life.served = std::max(life.served, life.position);
    accepted_drafts_ += accepted;
    const bool more = scheduler_.append_tokens(slice.id, 1 + accepted);
    check(more == (life.generated() < life.request.max_new_tokens), slice.id, "ends at another token than the last it may make");
    if (life.generated() < life.answer) continue;
    if (more) check(scheduler_.finish(slice.id), slice.id, "finish() does not know it");
    life.fate = Fate::Finished;
    drop(slice.id);
  }
  const std::int64_t taken = pool_.blocks().num_blocks() - pool_.blocks().num_free();
  const ScheduleStatistics statistics = scheduler_.statistics();
  check(taken == statistics.blocks_used, {}, "blocks after the step are not those counted");
  check(statistics.draft_rows == draft_rows_ && statistics.accepted_drafts == accepted_drafts_, {}, "statistics: drafts");
}

}  // namespace calandra
