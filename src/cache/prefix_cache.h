#pragma once
// Boundaries kept for requests to come, in what running sequences leave of the pool. A hit is the deepest boundary that is a prefix
// of the request; what does not fit goes by worth: the tokens that a boundary spares, how likely they are asked for again, and the
// blocks that it holds. Keys of one space never meet those of another, so what a tenant stores another cannot find. One thread at a time.

#include "cache/prefix_tree.h"
#include "memory/sequence_memory.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace calandra {

/// Why a boundary is kept, the weakest reason first.
enum class BoundaryKind : std::uint8_t {
  Spaced,   // somewhere inside a long prompt
  Message,  // between messages: where templates change what came before
  Fork,     // where a second request has left the path of a first
  End,      // of a prompt or an answer: where the next turn goes on
  Asked,    // the client has marked it
};

/// How likely a boundary is asked for that nobody has asked for yet.
constexpr double likelihood(BoundaryKind kind) {
  switch (kind) {
    case BoundaryKind::Spaced: return 0.05;
    case BoundaryKind::Message: return 0.25;
    case BoundaryKind::Fork:
    case BoundaryKind::End: return 1;
    case BoundaryKind::Asked: return 2;
  }
  return 0;
}

struct PrefixCacheStatistics {
  std::int64_t boundaries = 0;
  std::int64_t stored = 0;   // since the start
  std::int64_t evicted = 0;  // of these
  std::int64_t hits = 0;     // admissions that resumed
  std::int64_t misses = 0;
  std::int64_t blocks = 0;  // that the boundaries hold now; what several share counts once
};

/// Which spaces are meant.
using SpaceFilter = std::function<bool(const std::string& space)>;

/// What a cache holds, for whoever looks: where, and nothing of what is there.
struct CacheSurvey {
  struct Boundary {
    std::int64_t parent = -1;  // of this list, the one on whose path it lies
    std::int64_t position = 0;
    BoundaryKind kind{};
    std::int64_t hits = 0;
    std::int64_t blocks = 0;  // that it holds and the one before it does not
    bool is_pinned = false;
    double idle_seconds = 0;  // since it was stored or asked for
  };
  /// Of each space, parents before those behind them.
  std::vector<std::vector<Boundary>> spaces;
  std::int64_t left_off = 0;  // boundaries that are there, but worth less than all these
  std::int64_t block_bytes = 0;
};

/// What has been thrown away.
struct CacheFlush {
  std::int64_t boundaries = 0;
  std::int64_t bytes = 0;   // that are free now: pages that a running sequence shares are not
  std::int64_t pinned = 0;  // boundaries that had to stay
};

template <PrefixKey Key>
class PrefixCache {
  struct Stored {
    std::unique_ptr<Boundary> boundary;
    BoundaryKind kind{};
    std::int64_t hits = 0;
    std::int64_t pins = 0;
    std::int64_t blocks = 0;                     // that it holds alone, of statistics_.blocks
    std::chrono::steady_clock::time_point used;  // for people: what goes is decided by the clock of the cache
    double since = 0;                            // the cache's clock when it was last asked for
    std::pair<double, std::uint64_t> place;      // in by_worth_: what it is worth; the older first
    std::pair<const std::string, PrefixTree<Key, Stored>>* tree = nullptr;
  };
  using Tree = PrefixTree<Key, Stored>;
  using Node = typename Tree::Node;

 public:
  /// A boundary that stays where it is for as long as this lives. Must not outlive the cache.
  class Pin {
   public:
    Pin() = default;
    Pin(PrefixCache& cache, Node& node) : cache_(&cache), node_(&node) { ++node.value().pins; }
    Pin(Pin&& other) noexcept : cache_(other.cache_), node_(std::exchange(other.node_, nullptr)) {}
    Pin& operator=(Pin&& other) noexcept {
      std::swap(cache_, other.cache_);
      std::swap(node_, other.node_);
      return *this;
    }
    ~Pin() {
      if (node_ != nullptr) --node_->value().pins;
    }
    explicit operator bool() const { return node_ != nullptr; }
    const Boundary& operator*() const { return *node_->value().boundary; }
    const Boundary* operator->() const { return node_->value().boundary.get(); }
    bool alone() const { return node_->value().pins == 1; }
    /// The boundary, out of the cache. Only of one that is alone.
    std::unique_ptr<Boundary> take() { return cache_->drop(std::exchange(node_, nullptr)); }

   private:
    PrefixCache* cache_ = nullptr;
    Node* node_ = nullptr;
  };

  struct Match {
    Pin boundary;             // the deepest at `limit` or before, or nothing
    std::int64_t common = 0;  // units that the request shares with what is stored, boundary or not
  };

  /// What a request goes on from. Its memory is made once, by make().
  class Claim {
   public:
    /// 0: from nothing.
    std::int64_t position() const { return position_; }
    std::int64_t common() const { return common_; }
    /// Blocks beyond what its length says, as long as the sequence lives, and those of the boundary, until make() has been called.
    std::int64_t more_blocks() const { return more_blocks_; }
    std::int64_t held_blocks() const { return pin_ ? held_blocks_ : 0; }

    /// The sequence at position(), or nothing if the pool is dry.
    std::unique_ptr<SequenceMemory> make(MemoryPool& pool) {
      if (own_) return SequenceMemory::thaw(pool, std::move(own_));
      if (!pin_) return SequenceMemory::create(pool);
      auto memory = SequenceMemory::resume(pool, *pin_);
      pin_ = Pin();
      return memory;
    }

   private:
    friend class PrefixCache;
    Pin pin_;
    std::unique_ptr<Boundary> own_;
    std::int64_t position_ = 0, common_ = 0, more_blocks_ = 0, held_blocks_ = 0;
  };

  /// Told of a boundary that is about to leave the cache.
  using Leaves = std::function<void(const Boundary& boundary)>;

  /// The pool asks this cache when it is dry, until the cache is gone.
  explicit PrefixCache(MemoryPool& pool, Leaves leaves = {}) : pool_(pool), leaves_(std::move(leaves)) {
    pool_.blocks().set_reclaim([this](std::int64_t blocks) { reclaim(blocks); });
  }
  ~PrefixCache() { pool_.blocks().set_reclaim(nullptr); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// For a request that begins with `key` and wants its boundary at `limit` units at most. Counts a hit or a miss.
  Match match(const std::string& space, const Key& key, std::int64_t limit);

  /// The boundary that match() would find, or nullptr, without asking for it.
  const Boundary* deepest(const std::string& space, const Key& key, std::int64_t limit) const;

  /// The same for a request that will have its memory in this step, while `spare_blocks` of the pool are nobody's. Where these are too few
  /// to keep the boundary beside the sequence, it becomes the sequence.
  Claim claim(const std::string& space, const Key& key, std::int64_t limit, std::int64_t spare_blocks);

  /// Whether a boundary there would be worth more than what it would push out. `before`: where the sequence has its last one.
  bool admits(BoundaryKind kind, std::int64_t position, std::int64_t before) const;

  /// Keeps `boundary` of a sequence that begins with `key`, and says where. If there is one already that stays: nullptr.
  const Boundary* store(const std::string& space, const Key& key, std::unique_ptr<Boundary> boundary, BoundaryKind kind);

  /// Gives back what is worth least until the pool has that many free blocks, or all that is left is pinned.
  void reclaim(std::int64_t blocks);

  PrefixCacheStatistics statistics() const;

  /// The boundaries of these spaces that are worth most, `most` at most. O(n log n) in all that are there.
  CacheSurvey survey(const SpaceFilter& shows, std::int64_t most) const;

  /// Throws away what is not pinned of these spaces.
  CacheFlush flush(const SpaceFilter& meant);

 private:
  /// Blocks that a boundary holds and the one before it does not.
  std::int64_t own_blocks(std::int64_t position, std::int64_t before) const {
    const MemoryLayout& layout = pool_.layout();
    return layout.sequence_blocks(position) - layout.sequence_blocks(before) + layout.fixed_blocks();
  }
  /// Tokens it spares for every block it holds alone, times how likely that is, on top of the clock of its last use.
  double worth(BoundaryKind kind, std::int64_t hits, double since, std::int64_t position, std::int64_t before) const {
    const double spared = static_cast<double>(position - before);
    const double blocks = static_cast<double>(own_blocks(position, before));
    return since + likelihood(kind) * static_cast<double>(1 + hits) * spared / blocks;
  }
  void place(Node* node);
  std::unique_ptr<Boundary> drop(Node* node);

  MemoryPool& pool_;
  const Leaves leaves_;
  std::map<std::string, Tree> trees_;
  double clock_ = 0;  // worth of the last one evicted: those not asked for since are overtaken by newer ones
  using ByWorth = std::map<std::pair<double, std::uint64_t>, Node*>;
  ByWorth by_worth_;
  PrefixCacheStatistics statistics_;
};

template <PrefixKey Key>
auto PrefixCache<Key>::match(const std::string& space, const Key& key, std::int64_t limit) -> Match {
  Match found;
  const auto tree = trees_.find(space);
  if (tree != trees_.end()) {
    const auto path = tree->second.match(key);
    found.common = path.common;
    for (auto node = path.nodes.rbegin(); node != path.nodes.rend() && !found.boundary; ++node) {
      if ((*node)->position() > limit) continue;
      ++(*node)->value().hits;
      (*node)->value().since = clock_;
      (*node)->value().used = std::chrono::steady_clock::now();
      place(*node);
      found.boundary = Pin(*this, **node);
    }
  }
  ++(found.boundary ? statistics_.hits : statistics_.misses);
  return found;
}

template <PrefixKey Key>
const Boundary* PrefixCache<Key>::deepest(const std::string& space, const Key& key, std::int64_t limit) const {
  const Boundary* deepest = nullptr;
  const auto tree = trees_.find(space);
  if (tree == trees_.end()) return deepest;
  for (const Node* node : tree->second.match(key).nodes) {
    if (node->position() <= limit) deepest = node->value().boundary.get();
  }
  return deepest;
}

template <PrefixKey Key>
auto PrefixCache<Key>::claim(const std::string& space, const Key& key, std::int64_t limit, std::int64_t spare_blocks) -> Claim {
  Match found = match(space, key, limit);
  Claim claim;
  claim.common_ = found.common;
  if (!found.boundary) return claim;
  const std::int64_t more = found.boundary->scattered_blocks(), held = found.boundary->held_blocks();
  if (more > spare_blocks || (more + held > spare_blocks && !found.boundary.alone())) {
    --statistics_.hits;
    ++statistics_.misses;
    return claim;
  }
  claim.position_ = found.boundary->position();
  claim.more_blocks_ = more;
  claim.held_blocks_ = held;
  if (more + held > spare_blocks) {
    claim.own_ = found.boundary.take();
  } else {
    claim.pin_ = std::move(found.boundary);
  }
  return claim;
}

template <PrefixKey Key>
bool PrefixCache<Key>::admits(BoundaryKind kind, std::int64_t position, std::int64_t before) const {
  const double value = worth(kind, 0, clock_, position, before);
  std::int64_t missing = pool_.layout().fixed_blocks() - pool_.blocks().num_free();
  for (auto least = by_worth_.begin(); missing > 0; ++least) {
    if (least == by_worth_.end() || least->first.first >= value) return false;
    if (least->second->value().pins == 0) missing -= pool_.layout().fixed_blocks();
  }
  return true;
}

template <PrefixKey Key>
const Boundary* PrefixCache<Key>::store(const std::string& space, const Key& key, std::unique_ptr<Boundary> boundary,
                                        BoundaryKind kind) {
  const auto [node, fresh] = trees_[space].emplace(key, boundary->position());
  Stored& stored = node->value();
  stored.kind = std::max(stored.kind, kind);
  stored.since = clock_;
  stored.used = std::chrono::steady_clock::now();
  if (fresh) {
    stored.boundary = std::move(boundary);
    stored.tree = &*trees_.find(space);
    stored.place.second = static_cast<std::uint64_t>(++statistics_.stored);
  }
  place(node);
  if (!fresh) return nullptr;
  node->for_each_after([this](Node* after) { place(after); });
  return stored.boundary.get();
}

template <PrefixKey Key>
void PrefixCache<Key>::reclaim(std::int64_t blocks) {
  for (auto least = by_worth_.begin(); least != by_worth_.end() && pool_.blocks().num_free() < blocks;) {
    if (least->second->value().pins > 0) {
      ++least;
    } else {
      clock_ = std::max(clock_, least->first.first);
      ++statistics_.evicted;
      drop(least->second);
      least = by_worth_.begin();  // those after it on its path have another place now
    }
  }
}

template <PrefixKey Key>
void PrefixCache<Key>::place(Node* node) {
  Stored& stored = node->value();
  by_worth_.erase(stored.place);
  const Node* const last = node->before();
  const std::int64_t before = last == nullptr ? 0 : last->position();
  stored.place.first = worth(stored.kind, stored.hits, stored.since, node->position(), before);
  statistics_.blocks -= std::exchange(stored.blocks, own_blocks(node->position(), before));
  statistics_.blocks += stored.blocks;
  by_worth_.emplace(stored.place, node);
}

/// Takes a boundary out of the cache.
template <PrefixKey Key>
std::unique_ptr<Boundary> PrefixCache<Key>::drop(Node* node) {
  if (leaves_) leaves_(*node->value().boundary);
  by_worth_.erase(node->value().place);
  statistics_.blocks -= node->value().blocks;
  const auto tree = node->value().tree;
  std::vector<Node*> after;
  node->for_each_after([&](Node* next) { after.push_back(next); });
  std::unique_ptr<Boundary> boundary = tree->second.take(node).boundary;
  if (tree->second.size() == 0) trees_.erase(tree->first);
  for (Node* next : after) place(next);
  return boundary;
}

template <PrefixKey Key>
PrefixCacheStatistics PrefixCache<Key>::statistics() const {
  PrefixCacheStatistics now = statistics_;
  now.boundaries = std::ssize(by_worth_);
  return now;
}

template <PrefixKey Key>
CacheSurvey PrefixCache<Key>::survey(const SpaceFilter& shows, std::int64_t most) const {
  CacheSurvey survey;
  survey.block_bytes = pool_.layout().block_bytes;
  std::map<std::string, std::vector<const Node*>> chosen;
  for (auto at = by_worth_.rbegin(); at != by_worth_.rend(); ++at) {
    const std::string& space = at->second->value().tree->first;
    if (!shows(space)) continue;
    if (most-- > 0) {
      chosen[space].push_back(at->second);
    } else {
      ++survey.left_off;
    }
  }
  const auto now = std::chrono::steady_clock::now();
  for (auto& [space, nodes] : chosen) {
    std::ranges::sort(nodes, {}, &Node::position);
    std::unordered_map<const Node*, std::int64_t> indices;
    std::vector<CacheSurvey::Boundary>& boundaries = survey.spaces.emplace_back();
    for (const Node* node : nodes) {
      const Stored& stored = node->value();
      const Node* parent = node->before();
      while (parent != nullptr && !indices.contains(parent)) parent = parent->before();
      indices.emplace(node, std::ssize(boundaries));
      boundaries.push_back({parent == nullptr ? -1 : indices.at(parent), node->position(), stored.kind, stored.hits,
                            stored.blocks, stored.pins > 0, std::chrono::duration<double>(now - stored.used).count()});
    }
  }
  return survey;
}

template <PrefixKey Key>
CacheFlush PrefixCache<Key>::flush(const SpaceFilter& meant) {
  CacheFlush flush;
  std::vector<Node*> going;
  for (const auto& [place, node] : by_worth_) {
    if (!meant(node->value().tree->first)) continue;
    if (node->value().pins > 0) {
      ++flush.pinned;
    } else {
      going.push_back(node);
    }
  }
  const std::int64_t free_before = pool_.blocks().num_free();
  for (Node* node : going) drop(node);
  flush.boundaries = std::ssize(going);
  flush.bytes = (pool_.blocks().num_free() - free_before) * pool_.layout().block_bytes;
  return flush;
}

}  // namespace calandra
