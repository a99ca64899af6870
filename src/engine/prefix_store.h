#pragma once
// Where the sequences of an engine begin, and what stays of them: the cache in the pool, and a tier behind it if there is one. Of the
// engine's thread but for name() and tier_statistics(), which any may call.

#include "cache/boundary_plan.h"
#include "cache/boundary_tier.h"
#include "cache/prefix_cache.h"
#include "engine/model.h"
#include "schedule/prefixes.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

struct PrefixStoreOptions {
  bool keeps = true;                     // false: every request starts from nothing, and nothing stays
  std::shared_ptr<ObjectStore> objects;  // of the tier; none: nothing outlives the process
  std::int64_t object_bytes = 0;         // the tier's limit
  double verify_rate = 0;                // share of hits that are computed once more when nothing else is to do, and compared
  std::function<void(std::string_view what)> note = {};  // TierOptions::note
};

/// What is kept, of the boundaries in memory at most a number, and what was thrown away.
struct PrefixSurvey {
  CacheSurvey memory;
  TierShare tier;
};
struct PrefixFlush {
  CacheFlush memory;
  TierShare tier;
};

/// Boundaries that were computed once more and compared, byte by byte.
struct PrefixVerifications {
  std::int64_t same = 0;
  std::int64_t different = 0;
  std::int64_t gone = 0;  // given away meanwhile
};

/// What the store knows of one request.
struct PrefixUser {
  std::string space;                // who shares with whom
  std::vector<std::int64_t> marks;  // positions asked for, ascending
  bool only_marks = false;          // nothing else of it may stay
  bool computes_all = false;        // every row of it is wanted: nothing is skipped
  std::int64_t verifies = 0;        // is no request: computes all only to compare what is kept at this position

  TokenChain chain = {};                               // with a tier
  PrefixCache<TokenKey>::Claim claim = {};             // from its admission until there is memory
  std::int64_t common = 0;                             // tokens that it shared with others when it was admitted
  std::int64_t tier_position = 0;                      // where the tier takes it, or 0
  std::shared_ptr<BoundaryReading> reading = nullptr;  // while it does
  std::vector<PlannedBoundary> plan = {};              // boundaries that are ahead, ascending
  std::int64_t distrusts = 0;                          // PrefixStore::distrusts_, when it was admitted
  std::int64_t kept = 0;                               // the last of its plan that is kept
  std::int64_t kept_mark = 0;                          // the last of these that was asked for
};

/// A boundary that a pass is going to fill.
struct BoundaryAhead {
  BoundaryKind kind{};
  std::unique_ptr<Boundary> boundary;
};

class PrefixStore {
 public:
  /// `arrival` is called from another thread when something that was being read has come, or will not.
  PrefixStore(MemoryPool& pool, const Model& model, const PrefixStoreOptions& options, std::function<void()> arrival);

  /// Names the beginnings of a request of these tokens. From any thread.
  void name(PrefixUser& user, std::span<const std::int32_t> tokens) const;
  /// That request is coming: what it will want from the tier is made ready.
  void expect(const PrefixUser& user, std::span<const std::int32_t> tokens);

  /// Where a request of these tokens could go on once the other, of which these are known, has passed by; 0 if nowhere.
  std::int64_t coming(const PrefixUser& user, std::span<const std::int32_t> tokens, const PrefixUser& other,
                      std::span<const std::int32_t> others) const;
  /// Whether that spares enough to be waited for.
  bool is_worth_waiting(PrefixUser& user, std::span<const std::int32_t> tokens, std::int64_t position) const;

  /// What a request of these tokens goes on from, as Prefixes::resume(), and its plan.
  Resumption resume(PrefixUser& user, std::span<const std::int32_t> tokens, std::int64_t spare_blocks);

  /// Its memory, with room up to `room`: now where resume() said, or, if that was said to come later, being read. Throws Error if the pool is dry.
  std::unique_ptr<SequenceMemory> make(PrefixUser& user, std::span<const std::int32_t> tokens, std::int64_t room);

  /// Whether what is read has come, or will not; `memory` is at its position then, which is 0 if it will not.
  bool arrived(PrefixUser& user, std::span<const std::int32_t> tokens, std::unique_ptr<SequenceMemory>& memory,
               std::int64_t room);

  /// Which boundaries to take of a prompt that goes on from its memory's position.
  void plan(PrefixUser& user, std::span<const std::int32_t> prompt, std::int64_t position);

  /// Memory for those that a pass over [begin, end) goes by: of what is left, and of others that are worth less.
  std::vector<BoundaryAhead> ahead(PrefixUser& user, const SequenceMemory& memory, std::int64_t begin, std::int64_t end);

  /// Keeps a boundary of the plan.
  void store(PrefixUser& user, std::span<const std::int32_t> tokens, std::unique_ptr<Boundary> boundary, BoundaryKind kind);

  /// Whether anything of that memory stays when the request gives it away.
  bool keeps(const PrefixUser& user, const SequenceMemory& memory) const {
    return keeps_ && !user.only_marks && memory.position() > 0;
  }
  /// The request gives its memory away, or never had any. It stays for whoever goes on from there, if it is `whole`: at the position it says.
  void leave(PrefixUser& user, std::span<const std::int32_t> tokens, std::unique_ptr<SequenceMemory> memory, bool whole);

  /// Returns when the tier has written what it can.
  void finish();

  PrefixSurvey survey(const SpaceFilter& shows, std::int64_t most) const;
  PrefixFlush flush(const SpaceFilter& meant);

  /// An admission that goes on from the tier is a hit, too, once what it waits for has come.
  PrefixCacheStatistics statistics() const;
  PrefixVerifications verifications() const { return verifications_; }
  /// Zeros without a tier.
  TierStatistics tier_statistics() const { return tier_ ? tier_->statistics() : TierStatistics{}; }

 private:
  struct Lookups {
    std::int64_t hits = 0, misses = 0;
    void count(bool is_hit) { ++(is_hit ? hits : misses); }
  };

  bool uses_tier(const PrefixUser& user) const;
  std::int64_t deepest_in_memory(const PrefixUser& user, std::span<const std::int32_t> tokens) const;
  void distrust();
  void verify(const PrefixUser& user, std::span<const std::int32_t> tokens, const Boundary& computed);
  void keep(const PrefixUser& user, std::span<const std::int32_t> tokens, std::unique_ptr<Boundary> boundary, BoundaryKind kind);

  MemoryPool& pool_;
  const bool keeps_;
  const std::vector<std::int32_t> message_ends_;  // tokens
  const std::function<void()> arrival_;
  const std::function<void(std::string_view)> note_;
  PrefixVerifications verifications_;
  std::int64_t distrusts_ = 0;     // times that a verification has found a difference
  bool distrusts_pinned_ = false;  // since the last of them something was pinned, and is still there
  // Sequences that the tier was to bring to a position: as the cache has counted them, and what came of those that are decided.
  Lookups sent_to_tier_, decided_;
  PrefixCache<TokenKey> cache_;
  std::unique_ptr<BoundaryTier> tier_;  // after the cache: it reads boundaries until it is gone
};

}  // namespace calandra
