#include "text/grammar_mask.h"

#include <algorithm>
#include <map>

namespace calandra::grammar {
namespace {

// For one mask: a step of one thread is about 10 ns, the walk through a whole vocabulary some 500,000 steps.
constexpr std::uint64_t kMaxMaskWork = 100'000'000;

void set_all(TokenMask& mask, std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) mask.set(id);
}

}  // namespace

std::size_t FrameMask::bytes() const {
  std::size_t bytes = sizeof(FrameMask) + tokens.words().size_bytes();
  for (const Exit& exit : exits) bytes += sizeof(Exit) + exit.continuations.bytes();
  return bytes;
}

std::shared_ptr<const FrameMask> MaskCache::find(const Key& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = masks_.find(key);
  return found == masks_.end() ? nullptr : found->second;
}

void MaskCache::keep(const Key& key, std::shared_ptr<const FrameMask> mask) {
  const std::lock_guard lock(mutex_);
  const std::size_t bytes = mask->bytes();
  if (bytes_ + bytes > kMostBytes) {
    masks_.clear();
    bytes_ = 0;
  }
  if (masks_.emplace(key, std::move(mask)).second) bytes_ += bytes;
}

std::size_t MaskCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

/// Steps through the trie. `on_node(number, threads, exits)` says whether to go on below the node.
template <class OnNode>
void Masker::walk(const TokenTrie& trie, std::span<const Thread> start, bool with_exits, OnNode&& on_node) {
  const auto nodes = trie.nodes();
  std::vector<std::vector<Thread>> levels(trie.max_depth() + std::size_t{1});
  std::vector<Arena::Mark> marks(levels.size());
  std::vector<std::int32_t> exits;
  levels[0].assign(start.begin(), start.end());
  marks[0] = arena_.mark();
  for (std::uint32_t i = 1; i < nodes.size();) {
    const std::size_t depth = nodes[i].depth;
    arena_.rewind(marks[depth - 1]);
    exits.clear();
    machine_.step(levels[depth - 1], nodes[i].byte, levels[depth], with_exits ? &exits : nullptr);
    marks[depth] = arena_.mark();
    i = on_node(i, levels[depth], exits) ? i + 1 : nodes[i].end;
  }
  arena_.rewind(marks[0]);
}

struct Masker::Place {
  MaskCache* cache;
  MaskCache::Key key;
  Frame frame;  // without what has no influence
};

/// Nothing for frames whose masks are cheap or rarely the same.
std::optional<Masker::Place> Masker::place_of(const Frame& frame) const {
  if (frame.kind != FrameKind::String && frame.kind != FrameKind::Key && frame.kind != FrameKind::Rule &&
      frame.kind != FrameKind::Raw) {
    return std::nullopt;
  }
  if (frame.character != Character::Whole && frame.character != Character::Escape) return std::nullopt;
  // What a mark's beginning forbids: 0 where no mark is looked for.
  const std::uint64_t mark = !program_.is_of_calls()        ? 0
                             : frame.kind == FrameKind::Raw ? 1 + static_cast<std::uint64_t>(program_.raws[frame.spec].end)
                                                            : 1 + static_cast<std::uint64_t>(CallMark::ValueEnd);
  const auto kind = static_cast<std::uint64_t>(frame.kind) | static_cast<std::uint64_t>(frame.character) << 4 | mark << 8 |
                    std::uint64_t{frame.left} << 16;
  const MaskCache::Key of_state = {std::uint64_t{frame.spec} << 32 | kind, std::uint64_t{frame.text} << 32 | frame.state};
  switch (frame.kind) {
    case FrameKind::Rule: return Place{&masks_, of_state, frame};
    case FrameKind::Key: {
      if (!machine_.is_open(frame)) return std::nullopt;
      Frame plain = frame;
      plain.seen = 0;  // is open as well
      plain.text = kNoText;
      if (frame.state == Automaton::kDead) return Place{&vocabulary_.plain_masks(), {kind, 0}, plain};
      return Place{&masks_, {of_state.frame, frame.state}, plain};
    }
    default: break;
  }
  const bool is_raw = frame.kind == FrameKind::Raw;
  const StringSpec& string = is_raw ? program_.raws[frame.spec].string : program_.strings[frame.spec];
  if (string.automaton != kNone || (is_raw && frame.text != kGuardFree)) return Place{&masks_, of_state, frame};
  // Of the limits only what a token can reach matters.
  const std::uint32_t reach = vocabulary_.trie().max_depth();
  const std::uint32_t missing = string.min > frame.state ? std::min(string.min - frame.state, reach) : 0;
  const std::uint32_t room = string.max == kNoLimit ? reach : std::min(string.max - frame.state, reach);
  return Place{&vocabulary_.plain_masks(), {kind, std::uint64_t{missing} << 32 | room}, frame};
}

std::shared_ptr<const FrameMask> Masker::make_mask(const Frame& frame) {
  auto mask = std::make_shared<FrameMask>();
  mask->tokens.clear(vocabulary_.size());
  std::map<std::int32_t, std::vector<std::uint32_t>> exits;
  const TokenTrie& trie = vocabulary_.trie();
  const Thread start = {frame, kOutside};
  walk(trie, {&start, 1}, true,
       [&](std::uint32_t node, const std::vector<Thread>& threads, const std::vector<std::int32_t>& results) {
         for (const std::int32_t result : results) {
           std::vector<std::uint32_t>& nodes = exits[result];
           if (nodes.empty() || nodes.back() != node) nodes.push_back(node);
         }
         if (threads.empty()) return false;
         set_all(mask->tokens, trie.tokens(trie.nodes()[node]));
         return true;
       });
  for (const auto& [result, nodes] : exits) mask->exits.push_back({result, trie.continuations(nodes)});
  return mask;
}

void Masker::fill(std::span<const Thread> threads, TokenMask& mask) {
  machine_.allow_work(kMaxMaskWork);
  for (const Thread& thread : threads) {
    if (thread.frame.kind != FrameKind::Key || machine_.rest_of_seen_keys(thread.frame).empty()) {
      fill_thread(thread, mask);
      continue;
    }
    TokenMask own(vocabulary_.size());
    fill_thread(thread, own);
    remove_seen_keys(thread.frame, own);
    mask |= own;
  }
}

void Masker::fill_thread(const Thread& thread, TokenMask& mask) {
  std::vector<std::int32_t> doubtful;
  machine_.take_doubt();
  const auto walk_all = [&](const TokenTrie& trie, std::span<const Thread> start) {
    walk(trie, start, false, [&](std::uint32_t node, const std::vector<Thread>& threads, const std::vector<std::int32_t>&) {
      if (machine_.take_doubt()) {
        const auto ids = trie.tokens_below(node);
        doubtful.insert(doubtful.end(), ids.begin(), ids.end());
        return false;
      }
      if (threads.empty()) return false;
      set_all(mask, trie.tokens(trie.nodes()[node]));
      return true;
    });
  };
  if (const std::optional<Place> place = place_of(thread.frame)) {
    std::shared_ptr<const FrameMask> own = place->cache->find(place->key);
    if (own == nullptr) {
      own = make_mask(place->frame);
      place->cache->keep(place->key, own);
    }
    mask |= own->tokens;
    std::vector<Thread> resumed;
    const Arena::Mark mark = arena_.mark();
    for (const FrameMask::Exit& exit : own->exits) {
      // The text of a key is lost here. Whether it has come before is seen to by remove_seen_keys; one that comes twice
      // within one token is in doubt.
      machine_.resume(place->frame, thread.below, exit.result, resumed);
      if (!resumed.empty()) {
        set_all(mask, exit.continuations.tokens(exit.continuations.nodes()[0]));
        walk_all(exit.continuations, resumed);
      }
      arena_.rewind(mark);
    }
  } else {
    walk_all(vocabulary_.trie(), {&thread, 1});
  }
  for (const std::int32_t id : doubtful) {
    const Arena::Mark mark = arena_.mark();
    std::vector<Thread> from = {thread}, to;
    for (const char byte : vocabulary_.bytes(id)) {
      machine_.step(from, static_cast<std::uint8_t>(byte), to);
      std::swap(from, to);
    }
    arena_.rewind(mark);
    if (!from.empty()) mask.set(id);
  }
}

/// Takes out the tokens that end the key as one that has come before.
void Masker::remove_seen_keys(const Frame& key, TokenMask& mask) {
  const Automaton seen = automaton_of_words(machine_.rest_of_seen_keys(key));
  machine_.set_extra(&seen);
  Thread start = {key, kOutside};
  start.frame.kind = FrameKind::String;
  start.frame.spec = Machine::kExtraString;
  start.frame.state = 0;
  const TokenTrie& trie = vocabulary_.trie();
  walk(trie, {&start, 1}, true,
       [&](std::uint32_t node, const std::vector<Thread>& threads, const std::vector<std::int32_t>& results) {
         if (results.empty()) return !threads.empty();
         for (const std::int32_t id : trie.tokens_below(node)) mask.reset(id);
         return false;
       });
  machine_.set_extra(nullptr);
}

}  // namespace calandra::grammar
