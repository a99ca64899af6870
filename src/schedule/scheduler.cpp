#include "schedule/scheduler.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace calandra {
namespace {

// What a refused client is told to wait: the time in which this share of the queue moves on, within reason.
constexpr std::int64_t kQueueShare = 8;
constexpr double kLeastRetrySeconds = 1, kMostRetrySeconds = 60;

// Weight of the newest interval in the mean between admissions.
constexpr double kNewestInterval = 1.0 / 8;

// More tokens than any pool has rows for: lengths are cut to it before they are added.
constexpr std::int64_t kEndless = std::int64_t{1} << 60;

void check_limit(std::string_view name, std::int64_t value) {
  if (value < 1) fail("{}: found {}, expected at least 1", name, value);
}

}  // namespace

Scheduler::Scheduler(const MemoryLayout& layout, std::int64_t pool_blocks, const ScheduleLimits& limits, Prefixes* prefixes)
    : layout_(layout), pool_blocks_(pool_blocks), limits_(limits), prefixes_(prefixes) {
  check_limit("pool_blocks", pool_blocks);
  check_limit("max_running", limits.max_running);
  check_limit("max_waiting", limits.max_waiting);
  check_limit("prefill_tokens", limits.prefill_tokens);
  check_limit("prefill_tokens_beside_decodes", limits.prefill_tokens_beside_decodes);
  check_limit("reserved_new_tokens", limits.reserved_new_tokens);
}

// ---- A request's life.

Submission Scheduler::submit(const Request& request) {
  check_limit("prompt_tokens", request.prompt_tokens);
  check_limit("max_new_tokens", request.max_new_tokens);
  if (!(request.weight > 0) || !std::isfinite(request.weight)) fail("weight: found {}, expected more than 0", request.weight);
  ++counters_.submitted;
  Sequence s;
  s.request = request;
  s.request.max_new_tokens = std::min(request.max_new_tokens, kEndless);
  s.known = s.request.prompt_tokens = std::min(request.prompt_tokens, kEndless);
  if (const std::int64_t blocks = layout_.sequence_blocks(s.last_position()); blocks > pool_blocks_) {
    ++counters_.refused;
    return LargerThanPool{s.last_position() + 1, blocks, pool_blocks_};
  }
  if (const std::int64_t waiting = num_waiting(); waiting - num_preempted_ >= limits_.max_waiting) {
    ++counters_.refused;
    return QueueFull{waiting, retry_after()};
  }
  s.id = RequestId{++last_id_};
  s.waits_since = request.arrival;
  s.client = &queue(s).join(request.client, request.weight);
  queue(s).push(*s.client, s.id);
  if (request.deadline) deadlines_.emplace(*request.deadline, s.id);
  sequences_.emplace(s.id, s);
  return s.id;
}

bool Scheduler::append_tokens(RequestId id, std::int64_t count) {
  Sequence* s = find(id);
  if (s == nullptr) return false;
  if (under_way_ || !s->running() || s->pending() > 0)
    fail("request {}: a token is appended at position {} of {}, expected all computed", static_cast<std::uint64_t>(id),
         s->position, s->known);
  // A slice has no more drafts than the request may make tokens less one: with this, never more tokens than it may make.
  if (count < 1 || count > s->verified + 1)
    fail("request {}: found {} tokens to append, expected 1 to {}", static_cast<std::uint64_t>(id), count, s->verified + 1);
  const std::int64_t accepted = count - 1;
  s->verified = 0;
  s->known += count;
  s->position += accepted;
  s->reached = s->position;
  if (accepted > 0) queue(*s).charge(*s->client, accepted);
  counters_.computed_tokens += accepted;
  counters_.accepted_drafts += accepted;
  if (s->generated() < s->request.max_new_tokens) return true;
  end(id, &ScheduleCounters::finished);
  return false;
}

void Scheduler::propose(RequestId id, std::int64_t drafts) {
  if (drafts < 0) fail("drafts: found {}, expected at least 0", drafts);
  if (Sequence* s = find(id); s != nullptr && s->running()) s->proposed = drafts;
}

bool Scheduler::finish(RequestId id) { return end(id, &ScheduleCounters::finished); }

bool Scheduler::cancel(RequestId id) { return end(id, &ScheduleCounters::cancelled); }

bool Scheduler::end(RequestId id, std::int64_t ScheduleCounters::*counter) {
  Sequence* s = find(id);
  if (s == nullptr) return false;
  if (s->running()) {
    stop(*s);
  } else {
    if (s->state == State::Preempted) --num_preempted_;
    if (aside_.erase(id) == 0) queue(*s).remove(*s->client, id);
  }
  if (s->request.deadline) deadlines_.erase({*s->request.deadline, id});
  queue(*s).leave(*s->client);
  sequences_.erase(id);
  ++(counters_.*counter);
  return true;
}

Scheduler::Sequence* Scheduler::find(RequestId id) {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : &found->second;
}

// ---- A step.

const ScheduledStep& Scheduler::next_step(Instant now) {
  if (under_way_) fail("next_step: a step is under way, expected complete_step() before");
  now_ = now;
  step_.expired.clear();
  step_.preempted.clear();
  step_.admitted.clear();
  step_.slices.clear();
  held_blocks_ = 0;
  expire();
  bring_back();
  make_way();
  decode_rows_ = schedule_decodes();
  prefill_rows_ = schedule_prefills(decode_rows_ > 0 ? limits_.prefill_tokens_beside_decodes : limits_.prefill_tokens);
  decode_rows_ += schedule_drafts();
  under_way_ = !step_.slices.empty();
  if (under_way_) ++counters_.steps;
  return step_;
}

void Scheduler::complete_step() {
  if (!under_way_) fail("complete_step: no step is under way");
  under_way_ = false;
  for (const ScheduledSlice& slice : step_.slices) {
    Sequence* s = find(slice.id);
    if (s == nullptr) continue;
    s->position += slice.count - slice.drafts;
    s->verified = slice.drafts;
  }
}

void Scheduler::expire() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_) {
    const RequestId id = deadlines_.begin()->second;
    step_.expired.push_back(id);
    end(id, &ScheduleCounters::expired);
  }
}

/// Who need not wait any longer for what another computes.
void Scheduler::bring_back() {
  for (auto next = aside_.begin(); next != aside_.end();) {
    Sequence& s = *find(*next);
    const Sequence* from = find(s.coming.from);
    const bool gets_on = from != nullptr && from->running() && from->position > s.coming_at;
    if (gets_on && from->position < s.coming.position) {
      s.coming_at = from->position;
      ++next;
    } else {
      s.state = State::Waiting;
      queue(s).push(*s.client, s.id);
      next = aside_.erase(next);
    }
  }
}

/// If the head of the queues would fit without running requests of lower classes, as many of these are preempted as it takes.
/// Before anything is scheduled, so that no slice is taken back.
void Scheduler::make_way() {
  const Sequence* head = head_of_queues();
  if (head == nullptr || fits(*head)) return;
  std::int64_t slots = 0, blocks = 0;
  for (auto lower = running_.rbegin(); lower != running_.rend() && lower->first.first > head->request.priority; ++lower) {
    ++slots;
    blocks += blocks_of(*lower->second);
  }
  if (!fits(*head, slots, blocks)) return;
  while (!fits(*head)) preempt(*running_.rbegin()->second);
}

std::int64_t Scheduler::schedule_decodes() {
  std::int64_t rows = 0;
  // Oldest first: who is preempted for a block has had no slice yet, since only younger ones are, or the one that grows.
  for (const auto& [rank, sequence] : running_) {
    Sequence& s = *sequence;
    if (!s.decodes()) continue;
    if (!grow(s, s.position + 1)) break;
    add_slice(s, 1);
    ++rows;
  }
  return rows;
}

std::int64_t Scheduler::schedule_prefills(const std::int64_t budget) {
  prefills_.clear();
  for (const auto& [rank, s] : running_) {
    if (s->prefills()) prefills_.emplace_back(turn(*s), s);
  }
  std::sort(prefills_.begin(), prefills_.end());
  auto next = prefills_.begin();
  std::int64_t left = budget;
  bool admits = true;
  while (left > 0) {
    Sequence* head = admits ? head_of_queues() : nullptr;
    Sequence* chosen = nullptr;
    if (head != nullptr && !fits(*head)) {
      admits = false;  // nobody is taken in its place: what becomes free is for the head
      continue;
    }
    if (head != nullptr && (next == prefills_.end() || turn(*head) < next->first)) {
      if (set_aside(*head)) continue;
      chosen = head;
      admit(*chosen);
      if (chosen->expected) continue;
    } else if (next != prefills_.end()) {
      chosen = next->second;
      ++next;
    } else {
      break;
    }
    const std::int64_t count = std::min(left, chosen->pending());
    add_slice(*chosen, count);
    left -= count;
  }
  return budget - left;
}

/// Last of all: what is spare now, nobody else has a use for in this step.
std::int64_t Scheduler::schedule_drafts() {
  std::int64_t rows = 0;
  for (ScheduledSlice& slice : step_.slices) {
    Sequence& s = *find(slice.id);
    const std::int64_t proposed = std::exchange(s.proposed, 0);
    if (!s.decodes()) continue;
    slice.drafts = drafts_with_memory(s, std::min(proposed, s.last_position() - s.known));
    grow(s, s.known + slice.drafts);
    slice.count += slice.drafts;
    slice.room = s.room;
    rows += slice.drafts;
  }
  counters_.draft_rows += rows;
  return rows;
}

/// What is spare is for those who wait, now or once there is more of it.
std::int64_t Scheduler::drafts_with_memory(const Sequence& s, std::int64_t most) const {
  const std::int64_t blocks = layout_.sequence_blocks(s.room) + (num_waiting() > 0 ? 0 : spare_blocks());
  std::int64_t drafts = 0;
  while (drafts < most && layout_.sequence_blocks(s.known + drafts + 1) <= blocks) ++drafts;
  return drafts;
}

void Scheduler::add_slice(Sequence& s, std::int64_t count) {
  const std::int64_t end = s.position + count;
  step_.slices.push_back({s.id, s.position, count, s.room, 0, end == s.known});
  const std::int64_t first_time = std::max<std::int64_t>(0, end - std::max(s.position, s.reached));
  if (first_time > 0) queue(s).charge(*s.client, first_time);
  s.reached = std::max(s.reached, end);
  counters_.computed_tokens += count;
  counters_.recomputed_tokens += count - first_time;
}

Scheduler::Turn Scheduler::turn(const Sequence& s) {
  return {s.request.priority, static_cast<std::int64_t>(s.client->served() / static_cast<double>(kPrefillTurnTokens)), s.id};
}

Scheduler::Sequence* Scheduler::head_of_queues() {
  for (FairQueue& queue : queues_) {
    if (const auto id = queue.head()) return find(*id);
  }
  return nullptr;
}

// ---- What moves blocks.

std::int64_t Scheduler::room_to_admit(const Sequence& s) const {
  return s.known + std::min(limits_.reserved_new_tokens, s.last_position() - s.known);
}

bool Scheduler::fits(const Sequence& s, std::int64_t more_slots, std::int64_t more_blocks) const {
  return std::ssize(running_) - more_slots < limits_.max_running &&
         layout_.sequence_blocks(room_to_admit(s)) <= spare_blocks() + more_blocks;
}

/// Whether the head of the queues waits for what a running request computes, out of the others' way.
bool Scheduler::set_aside(Sequence& s) {
  if (prefixes_ == nullptr || s.state != State::Waiting || std::exchange(s.has_asked, true)) return false;
  const std::optional<ComingPrefix> coming = prefixes_->coming(s.id, s.known);
  if (!coming) return false;
  const Sequence* from = find(coming->from);
  if (from == nullptr || !from->running() || !from->prefills() || from->position >= coming->position) return false;
  queue(s).remove(*s.client, s.id);
  s.state = State::SetAside;
  s.coming = *coming;
  s.coming_at = from->position;
  aside_.insert(s.id);
  ++counters_.set_aside;
  return true;
}

void Scheduler::admit(Sequence& s) {
  queue(s).remove(*s.client, s.id);
  if (s.state == State::Preempted) {
    --num_preempted_;
  } else {
    note_admission();
  }
  s.state = State::Running;
  s.room = room_to_admit(s);
  used_blocks_ += layout_.sequence_blocks(s.room);
  running_.emplace(rank(s), &s);
  const Resumption found = prefixes_ == nullptr ? Resumption{} : prefixes_->resume(s.id, s.known, spare_blocks());
  if (found.tokens < 0 || found.tokens >= s.known)
    fail("prefixes: request {} resumes at {}, expected 0 to {}", static_cast<std::uint64_t>(s.id), found.tokens, s.known - 1);
  if (found.more_blocks < 0 || found.held_blocks < 0 || found.more_blocks + found.held_blocks > spare_blocks())
    fail("prefixes: request {} takes {} blocks and holds {}, expected at most {}", static_cast<std::uint64_t>(s.id),
         found.more_blocks, found.held_blocks, spare_blocks());
  s.more_blocks = found.more_blocks;
  used_blocks_ += found.more_blocks;
  held_blocks_ += found.held_blocks;
  s.expected = found.later;
  s.position = 0;
  if (!s.expected) resume(s, found.tokens);
  ++counters_.admissions;
  step_.admitted.push_back({s.id, found.tokens, s.room, now_ - s.waits_since});
}

void Scheduler::resume(Sequence& s, std::int64_t position) {
  s.position = position;
  s.reached = std::max(s.reached, position);
  counters_.resumed_tokens += position;
}

void Scheduler::arrived(RequestId id, std::int64_t position) {
  Sequence* s = find(id);
  if (s == nullptr || !s->expected) return;
  if (under_way_) fail("arrived: a step is under way, expected complete_step() before");
  if (position < 0 || position >= s->known)
    fail("arrived: request {} resumes at {}, expected 0 to {}", static_cast<std::uint64_t>(id), position, s->known - 1);
  s->expected = false;
  resume(*s, position);
}

/// Room up to `room`, taken from the last in rank if it must be; false if that is `s` itself.
bool Scheduler::grow(Sequence& s, std::int64_t room) {
  if (room <= s.room) return true;
  const std::int64_t more = layout_.sequence_blocks(room) - layout_.sequence_blocks(s.room);
  while (more > spare_blocks()) {
    Sequence& last = *running_.rbegin()->second;
    preempt(last);
    if (&last == &s) return false;
  }
  used_blocks_ += more;
  s.room = room;
  return true;
}

void Scheduler::preempt(Sequence& s) {
  stop(s);
  s.state = State::Preempted;
  s.position = 0;
  s.waits_since = now_;
  queue(s).push_preempted(s.id);
  ++num_preempted_;
  ++counters_.preemptions;
  step_.preempted.push_back(s.id);
}

void Scheduler::stop(Sequence& s) {
  used_blocks_ -= blocks_of(s);
  s.more_blocks = 0;
  s.proposed = s.verified = 0;
  s.expected = false;
  running_.erase(rank(s));
}

// ---- What others ask.

void Scheduler::note_admission() {
  if (backlog_since_) {
    const double seconds = std::chrono::duration<double>(now_ - *backlog_since_).count();
    seconds_an_admission_ += kNewestInterval * (seconds - seconds_an_admission_);
  }
  backlog_since_.reset();
  if (num_waiting() > 1) backlog_since_ = now_;
}

std::chrono::seconds Scheduler::retry_after() const {
  const double seconds = seconds_an_admission_ * static_cast<double>(limits_.max_waiting) / kQueueShare;
  return std::chrono::seconds(std::lround(std::ceil(std::clamp(seconds, kLeastRetrySeconds, kMostRetrySeconds))));
}

std::optional<Instant> Scheduler::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

ScheduleStatistics Scheduler::statistics() const {
  ScheduleStatistics statistics{counters_};
  statistics.running = std::ssize(running_);
  statistics.waiting = num_waiting();
  statistics.preempted = num_preempted_;
  statistics.blocks_used = used_blocks_;
  statistics.blocks_total = pool_blocks_;
  statistics.decode_rows = decode_rows_;
  statistics.prefill_rows = prefill_rows_;
  return statistics;
}

std::string QueueFull::message() const {
  return fmt::format("queue: {} requests wait, expected a request when fewer do (in {} s)", waiting, retry_after.count());
}

std::string LargerThanPool::message() const {
  return fmt::format("request of {} tokens: needs {} blocks of memory, expected at most the pool's {}", tokens, blocks,
                     pool_blocks);
}

}  // namespace calandra
