#pragma once
// Masks of tokens. What a frame on top of the stack allows by itself is found once and kept: the tokens it takes whatever is
// below it, and the places in the trie where it returns, from where the frames below decide.

#include "text/grammar_machine.h"
#include "text/grammar_vocabulary.h"
#include "text/token_mask.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace calandra::grammar {

struct FrameMask {
  TokenMask tokens;
  struct Exit {
    std::int32_t result;
    TokenTrie continuations;
  };
  std::vector<Exit> exits;

  std::size_t bytes() const;
};

class MaskCache {
 public:
  struct Key {
    std::uint64_t frame = 0, limits = 0;
    bool operator==(const Key&) const = default;
  };

  std::shared_ptr<const FrameMask> find(const Key& key) const;
  void keep(const Key& key, std::shared_ptr<const FrameMask> mask);
  /// Of the masks kept now.
  std::size_t bytes() const;

 private:
  // When there is more, it starts anew. A mask is 20 KB, with the ways on where its frame returns up to some megabytes.
  static constexpr std::size_t kMostBytes = std::size_t{16} << 20;

  struct Hash {
    std::size_t operator()(const Key& key) const {
      return (key.frame * 0x9E3779B97F4A7C15u) ^ (key.limits * 0xC2B2AE3D27D4EB4Fu);
    }
  };
  mutable std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const FrameMask>, Hash> masks_;
  std::size_t bytes_ = 0;
};

/// Fills masks for positions of one program.
class Masker {
 public:
  Masker(const Program& program, Arena& arena, const GrammarVocabulary& vocabulary, MaskCache& masks)
      : program_(program), arena_(arena), machine_(program, arena), vocabulary_(vocabulary), masks_(masks) {}

  /// `mask` has the vocabulary's size and nothing in it. End tokens are not looked at.
  void fill(std::span<const Thread> threads, TokenMask& mask);

 private:
  struct Place;  // where a frame's mask is kept

  std::optional<Place> place_of(const Frame& frame) const;
  std::shared_ptr<const FrameMask> make_mask(const Frame& frame);
  void fill_thread(const Thread& thread, TokenMask& mask);
  void remove_seen_keys(const Frame& key, TokenMask& mask);

  template <class OnNode>
  void walk(const TokenTrie& trie, std::span<const Thread> start, bool with_exits, OnNode&& on_node);

  const Program& program_;
  Arena& arena_;
  Machine machine_;
  const GrammarVocabulary& vocabulary_;
  MaskCache& masks_;
};

}  // namespace calandra::grammar
