#pragma once
// A tier behind the memory: boundaries of this and of earlier processes, as objects of a store. The rows of every whole run of tokens are one
// object, shared by all boundaries behind it; a boundary is one more, and there only if all its runs are. The index is in memory,
// made from the objects' headers.
//
// Writing comes behind: a boundary waits in the pool for its turn, and may be forgotten at any time. Reading goes straight into the
// memory of a sequence, by a thread of its own, while others compute. Whatever is not exactly what was written is dropped, counted,
// and computed again; no failure of the store is more than a miss.

#include "cache/stored_object.h"
#include "cache/token_chain.h"
#include "memory/sequence_memory.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace calandra {

struct TierOptions {
  Digest model;                  // whose numbers these are: objects of others are left alone until they are the oldest
  std::int64_t limit_bytes = 0;  // of all objects together
  std::int64_t hidden = 0;       // numbers of a hidden row
  /// A boundary is written only if it spares that many tokens more than one that is there.
  std::int64_t least_tokens = 64;
  /// Told, from any thread, why something was dropped or could not be written. May be missing; must not throw.
  std::function<void(std::string_view what)> note = {};
};

struct TierStatistics {
  std::int64_t boundaries = 0, objects = 0, bytes = 0;  // there now
  std::int64_t waiting = 0;                             // to be written
  // Since the start.
  std::int64_t written = 0, written_bytes = 0;  // boundaries
  std::int64_t read = 0, read_bytes = 0;
  std::int64_t evicted = 0;  // boundaries, for the limit
  std::int64_t lost = 0;     // boundaries that memory had no room for before they were written, or that are larger than the limit
  std::int64_t refused = 0;  // objects that were not whole, or not what their name says
  std::int64_t read_errors = 0;
  std::int64_t write_errors = 0;
  std::string last_error;  // what the store said last
};

struct TierShare {
  std::int64_t boundaries = 0;
  std::int64_t bytes = 0;
};

inline constexpr std::size_t kLongestSpace = std::tuple_size_v<decltype(ObjectHeader::space)>;

/// A boundary on its way into the memory of a sequence.
class BoundaryReading {
 public:
  enum class State : std::uint8_t { Reading, Done, Failed };
  State state() const;
  /// Nothing is written to the sequence after this returns.
  void cancel();

 private:
  friend class BoundaryTier;
  struct Part {
    ObjectHeader expected;
    PartsToFill parts;
  };

  mutable std::mutex mutex_;  // held while bytes are written to the sequence
  State state_ = State::Reading;
  bool cancelled_ = false;
  std::vector<Part> objects_;
  std::function<void()> done_;
};

class BoundaryTier {
 public:
  /// Reads the index: opens every object. Throws Error if the store cannot be read.
  BoundaryTier(std::shared_ptr<ObjectStore> store, TierOptions options);
  /// What waits is not written; finish() comes before.
  ~BoundaryTier();
  BoundaryTier(const BoundaryTier&) = delete;
  BoundaryTier& operator=(const BoundaryTier&) = delete;

  /// The chain of no tokens, of one who shares with others of the space: at most kLongestSpace characters. Throws Error for more.
  TokenChain chain(const std::string& space) const;

  /// Position of the deepest boundary at `limit` tokens or before that is a prefix of `tokens`, whose chain is `chain`; 0 if there is none.
  std::int64_t find(const TokenChain& chain, std::span<const std::int32_t> tokens, std::int64_t limit) const;

  /// The boundary found at `position` will be read soon.
  void expect(const TokenChain& chain, std::span<const std::int32_t> tokens, std::int64_t position);

  /// The boundary found at `position` was of use, though memory had what it would give: it is not the oldest any more.
  void use(const TokenChain& chain, std::span<const std::int32_t> tokens, std::int64_t position);

  /// Brings `memory`, which has room, from a boundary of the same tokens or from nothing to the one at `position`: whoever asked calls
  /// memory.arrive() when that is Done. `done` is called once, from another thread, also after a cancel().
  std::shared_ptr<BoundaryReading> read(const TokenChain& chain, std::span<const std::int32_t> tokens, std::int64_t position,
                                        SequenceMemory& memory, std::function<void()> done);

  /// To be written in its turn, the more urgent ones first. `tokens` are those up to its position.
  void write(const TokenChain& chain, std::span<const std::int32_t> tokens, const Boundary& boundary, int urgency);
  /// The boundary is about to change or go. Does nothing for those not known.
  void forget(const Boundary& boundary);

  /// Returns when all that waits is written, the store fails, or that time is over.
  void finish(std::chrono::seconds limit = std::chrono::hours(24));
  /// What is there of these spaces, of this model: boundaries, and bytes of objects that only they need.
  TierShare share(const std::function<bool(const std::string& space)>& meant) const;
  /// Removes it, and says what it was.
  TierShare clear(const std::function<bool(const std::string& space)>& meant);

  TierStatistics statistics() const;

 private:
  struct Run {
    Digest parent;
    std::int64_t begin = 0, bytes = 0;
    std::int64_t users = 0;  // runs and ends right behind it, and the boundary being written
  };
  struct End {
    Digest parent;
    std::int64_t begin = 0, end = 0, bytes = 0, used = 0;
    std::string space;
    bool ours = true;                                       // of this model
    std::chrono::steady_clock::time_point not_before = {};  // it is asked for, since the store has failed to read it
  };
  /// A boundary to be written.
  struct Job {
    const Boundary* boundary = nullptr;
    std::int64_t position = 0;
    TokenChain chain;
    std::vector<std::int32_t> tail;  // tokens after its last whole run
  };
  using Turn = std::pair<int, std::uint64_t>;  // urgent ones first, then the older

  ObjectHeader run_header(const TokenChain& chain, std::int64_t run) const;
  ObjectHeader end_header(const TokenChain& chain, std::span<const std::int32_t> tail, std::int64_t position) const;

  // Under mutex_. What is taken out of the index is added to `gone`, to be removed from the store without the lock.
  using Gone = std::vector<ObjectName>;
  void read_index();
  void add(const ObjectHeader& header, std::int64_t used, std::int64_t users);
  void drop_end(const Digest& name, Gone& gone);
  void release(const Digest& run, Gone& gone);
  bool follows(std::int64_t begin, const Digest& parent) const;
  void sweep(Gone& gone);
  bool note_use(const Digest& end);
  bool make_room(std::int64_t bytes, Gone& gone);
  bool has_near(const Job& job) const;

  void remove(const Gone& gone);
  void remove_beside_the_writer(const Gone& gone);
  void write_all();
  void write(const Job& job);
  std::optional<std::int64_t> bytes_with_path();
  bool write_object(ObjectHeader header, const std::function<StoredParts(const Boundary&)>& parts_of);
  void read_all();
  void touch(const ObjectName& end);
  bool read(BoundaryReading& reading);
  void note_error(const std::string& what);

  const std::shared_ptr<ObjectStore> store_;
  const TierOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable wake_writer_, wake_reader_, written_, removed_;
  std::unordered_map<Digest, Run, DigestHash> runs_;
  std::unordered_map<Digest, End, DigestHash> ends_;
  std::unordered_map<Digest, std::map<std::int64_t, std::int64_t>, DigestHash> tails_;  // by parent: how many ends of each length
  std::set<std::pair<std::int64_t, Digest>> by_use_;                                    // ends, the oldest first
  std::map<Turn, Job> jobs_;
  std::unordered_map<const Boundary*, Turn> turns_;
  std::uint64_t last_job_ = 0;
  bool writing_ = false, failed_ = false, stopping_ = false;
  std::string space_written_;     // while writing_
  bool written_in_vain_ = false;  // that space has been cleared since
  int removals_ = 0;              // threads that have taken objects out of the index and not yet out of the store
  std::deque<std::shared_ptr<BoundaryReading>> readings_;
  std::deque<ObjectName> expected_, used_;  // for the reader to tell the store, once nothing is to be read
  TierStatistics statistics_;

  std::mutex copy_mutex_;                // after mutex_; held while bytes of `source_` are copied
  const Boundary* source_ = nullptr;     // being written
  std::vector<std::byte> write_buffer_;  // of the writer
  std::vector<std::byte> read_buffer_;   // of the reader
  std::thread writer_, reader_;
};

}  // namespace calandra
