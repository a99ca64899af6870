#include "engine/prefix_store.h"

#include "base/error.h"
#include "engine/fingerprint.h"
#include "engine/generate.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace calandra {
namespace {

// The tier is asked for what spares that many tokens more than memory does: less is computed as quickly.
constexpr std::int64_t kLeastFromTier = 64;
// And what another request computes is waited for if it spares so many.
constexpr std::int64_t kLeastToWaitFor = 64;

// For what waits to be written when the engine ends.
constexpr std::chrono::seconds kLastWrites{20};

std::span<const std::int32_t> first(std::span<const std::int32_t> tokens, std::int64_t count) {
  return tokens.first(static_cast<std::size_t>(count));
}

/// It has nothing to do with what is kept.
bool is_out(const PrefixUser& user) { return user.only_marks && user.marks.empty(); }

std::unique_ptr<SequenceMemory> with_room(std::unique_ptr<SequenceMemory> memory, std::int64_t room) {
  if (!memory || !memory->reserve(room)) fail("memory pool is full, although the scheduler counted room");
  return memory;
}

}  // namespace

PrefixStore::PrefixStore(MemoryPool& pool, const Model& model, const PrefixStoreOptions& options, std::function<void()> arrival)
    : pool_(pool),
      keeps_(options.keeps),
      message_ends_(stop_ids_of(model)),
      arrival_(std::move(arrival)),
      note_(options.note),
      cache_(pool, [this](const Boundary& boundary) {
        if (tier_) tier_->forget(boundary);
      }) {
  if (!keeps_ || !options.objects) return;
  TierOptions tier;
  tier.model = fingerprint_of(model);
  tier.limit_bytes = options.object_bytes;
  tier.hidden = model.config().hidden;
  tier.least_tokens = kLeastFromTier;
  tier.note = options.note;
  tier_ = std::make_unique<BoundaryTier>(options.objects, std::move(tier));
}

bool PrefixStore::uses_tier(const PrefixUser& user) const { return tier_ && !user.computes_all && !is_out(user); }

void PrefixStore::name(PrefixUser& user, std::span<const std::int32_t> tokens) const {
  if (!uses_tier(user)) return;
  user.chain = tier_->chain(user.space);
  user.chain.extend(tokens);
}

void PrefixStore::expect(const PrefixUser& user, std::span<const std::int32_t> tokens) {
  if (!uses_tier(user)) return;
  const std::int64_t position = tier_->find(user.chain, tokens, std::ssize(tokens) - 1);
  if (position >= kLeastFromTier && position >= deepest_in_memory(user, tokens) + kLeastFromTier)
    tier_->expect(user.chain, tokens, position);
}

/// Where a request of these tokens could go on without the tier.
std::int64_t PrefixStore::deepest_in_memory(const PrefixUser& user, std::span<const std::int32_t> tokens) const {
  const Boundary* const kept = cache_.deepest(user.space, TokenKey(tokens), std::ssize(tokens) - 1);
  return kept == nullptr ? 0 : kept->position();
}

PrefixCacheStatistics PrefixStore::statistics() const {
  PrefixCacheStatistics now = cache_.statistics();
  now.hits += decided_.hits - sent_to_tier_.hits;
  now.misses += decided_.misses - sent_to_tier_.misses;
  return now;
}

std::int64_t PrefixStore::coming(const PrefixUser& user, std::span<const std::int32_t> tokens, const PrefixUser& other,
                                 std::span<const std::int32_t> others) const {
  if (user.computes_all || is_out(user) || user.space != other.space || other.plan.empty()) return 0;
  const std::int64_t common = std::ranges::mismatch(tokens, others).in1 - tokens.begin();
  const auto behind =
      std::ranges::upper_bound(other.plan, std::min(common, std::ssize(tokens) - 1), {}, &PlannedBoundary::position);
  return behind == other.plan.begin() ? 0 : std::prev(behind)->position;
}

bool PrefixStore::is_worth_waiting(PrefixUser& user, std::span<const std::int32_t> tokens, std::int64_t position) const {
  std::int64_t there = deepest_in_memory(user, tokens);
  if (tier_) {
    user.chain.extend(tokens);
    there = std::max(there, tier_->find(user.chain, tokens, std::ssize(tokens) - 1));
  }
  return position >= there + kLeastToWaitFor;
}

Resumption PrefixStore::resume(PrefixUser& user, std::span<const std::int32_t> tokens, std::int64_t spare_blocks) {
  const std::int64_t limit = std::ssize(tokens) - 1;
  user.claim = {};
  user.common = user.tier_position = 0;
  user.distrusts = distrusts_;
  if (distrusts_pinned_) distrust();
  if (!keeps_ || user.computes_all || is_out(user)) return {};
  user.claim = cache_.claim(user.space, TokenKey(tokens), limit, spare_blocks);
  user.common = user.claim.common();
  Resumption found{user.claim.position(), user.claim.more_blocks(), user.claim.held_blocks(), false};
  if (tier_) {
    user.chain.extend(tokens);
    const std::int64_t position = tier_->find(user.chain, tokens, limit);
    if (position >= found.tokens + kLeastFromTier) {
      user.tier_position = found.tokens = position;
      found.later = true;
    } else if (position > 0) {
      tier_->use(user.chain, tokens, position);
    }
  }
  return found;
}

std::unique_ptr<SequenceMemory> PrefixStore::make(PrefixUser& user, std::span<const std::int32_t> tokens, std::int64_t room) {
  std::unique_ptr<SequenceMemory> memory = with_room(user.claim.make(pool_), room);
  if (user.tier_position > 0) {
    sent_to_tier_.count(user.claim.position() > 0);
    user.reading = tier_->read(user.chain, tokens, user.tier_position, *memory, arrival_);
  }
  return memory;
}

bool PrefixStore::arrived(PrefixUser& user, std::span<const std::int32_t> tokens, std::unique_ptr<SequenceMemory>& memory,
                          std::int64_t room) {
  const BoundaryReading::State state = user.reading->state();
  if (state == BoundaryReading::State::Reading) return false;
  user.reading.reset();
  decided_.count(state == BoundaryReading::State::Done);
  if (state == BoundaryReading::State::Failed) {
    memory.reset();
    memory = with_room(SequenceMemory::create(pool_), room);
    return true;
  }
  memory->arrive(user.tier_position);
  // Others who come from there need not go to the tier.
  if (user.distrusts == distrusts_ && cache_.admits(BoundaryKind::End, user.tier_position, 0)) {
    if (auto boundary = memory->snapshot())
      cache_.store(user.space, TokenKey(first(tokens, user.tier_position)), std::move(boundary), BoundaryKind::End);
  }
  return true;
}

void PrefixStore::plan(PrefixUser& user, std::span<const std::int32_t> prompt, std::int64_t position) {
  if (!keeps_ || user.verifies > 0) return;
  std::vector<std::int64_t> messages;
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (std::ranges::find(message_ends_, prompt[i]) != message_ends_.end()) messages.push_back(static_cast<std::int64_t>(i) + 1);
  }
  user.plan = plan_boundaries({.tokens = std::ssize(prompt),
                               .resumed_at = position,
                               .common = user.common,
                               .messages = messages,
                               .asked = user.marks,
                               .only_asked = user.only_marks},
                              {});
}

std::vector<BoundaryAhead> PrefixStore::ahead(PrefixUser& user, const SequenceMemory& memory, std::int64_t begin,
                                              std::int64_t end) {
  std::vector<BoundaryAhead> ahead;
  std::int64_t before = begin;
  auto planned = user.plan.begin();
  for (; planned != user.plan.end() && planned->position <= end; ++planned) {
    if (!cache_.admits(planned->kind, planned->position, before)) continue;
    auto boundary = memory.boundary_ahead(planned->position);
    if (!boundary) continue;
    before = planned->position;
    ahead.push_back({planned->kind, std::move(boundary)});
  }
  user.plan.erase(user.plan.begin(), planned);
  return ahead;
}

void PrefixStore::store(PrefixUser& user, std::span<const std::int32_t> tokens, std::unique_ptr<Boundary> boundary,
                        BoundaryKind kind) {
  user.kept = std::max(user.kept, boundary->position());
  if (std::ranges::binary_search(user.marks, boundary->position()))
    user.kept_mark = std::max(user.kept_mark, boundary->position());
  keep(user, tokens, std::move(boundary), kind);
}

void PrefixStore::keep(const PrefixUser& user, std::span<const std::int32_t> tokens, std::unique_ptr<Boundary> boundary,
                       BoundaryKind kind) {
  if (user.distrusts != distrusts_) return;  // it may have gone on from what was wrong
  const std::span<const std::int32_t> behind = first(tokens, boundary->position());
  const Boundary* const kept = cache_.store(user.space, TokenKey(behind), std::move(boundary), kind);
  if (tier_ && kept != nullptr && kept->position() >= kLeastFromTier) {
    TokenChain chain = user.computes_all ? tier_->chain(user.space) : user.chain;
    chain.extend(behind);
    tier_->write(chain, behind, *kept, static_cast<int>(kind));
  }
}

void PrefixStore::leave(PrefixUser& user, std::span<const std::int32_t> tokens, std::unique_ptr<SequenceMemory> memory,
                        bool whole) {
  // Who is preempted and admitted by one step has the claim of its admission already, and its memory of before.
  if (!memory) user.claim = {};
  user.plan.clear();
  const bool arriving = user.reading != nullptr;
  if (arriving) {
    user.reading->cancel();
    decided_.count(false);
  }
  user.reading.reset();
  if (!memory) return;
  if (!whole || arriving || !keeps(user, *memory)) return;
  auto boundary = SequenceMemory::freeze(std::move(memory));
  if (user.verifies == 0) {
    keep(user, tokens, std::move(boundary), BoundaryKind::End);
  } else if (boundary->position() == user.verifies) {
    verify(user, tokens, *boundary);
  }
}

void PrefixStore::verify(const PrefixUser& user, std::span<const std::int32_t> tokens, const Boundary& computed) {
  const std::int64_t position = computed.position();
  const Boundary* const kept = cache_.deepest(user.space, TokenKey(first(tokens, position)), position);
  if (kept == nullptr || kept->position() != position) {
    ++verifications_.gone;
    return;
  }
  const auto same = [](const StoredParts& one, const StoredParts& other) {
    return std::ranges::equal(one, other, [](const auto& a, const auto& b) { return std::ranges::equal(a, b); });
  };
  if (same(kept->fixed(), computed.fixed()) && same(kept->rows(0, position), computed.rows(0, position))) {
    ++verifications_.same;
    return;
  }
  ++verifications_.different;
  ++distrusts_;
  distrust();
  if (note_) note_(fmt::format("what was kept of a prompt at {} tokens is not what is computed: all is thrown away", position));
}

/// No use may be made of what is kept: what is wrong may be anywhere.
void PrefixStore::distrust() {
  distrusts_pinned_ = flush([](const std::string&) { return true; }).memory.pinned > 0;
}

PrefixSurvey PrefixStore::survey(const SpaceFilter& shows, std::int64_t most) const {
  return {cache_.survey(shows, most), tier_ ? tier_->share(shows) : TierShare{}};
}

PrefixFlush PrefixStore::flush(const SpaceFilter& meant) {
  // In this order: what waits to be written is forgotten before what is there goes.
  const CacheFlush memory = cache_.flush(meant);
  return {memory, tier_ ? tier_->clear(meant) : TierShare{}};
}

void PrefixStore::finish() {
  if (tier_) tier_->finish(kLastWrites);
}

}  // namespace calandra
