// The tree against a list of what was stored; segments against tokens that stand for them.

#include "cache/prefix_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <vector>

namespace calandra {
namespace {

using Tokens = std::vector<std::int32_t>;

std::int64_t common(const Tokens& a, const Tokens& b) { return std::ranges::mismatch(a, b).in1 - a.begin(); }

/// What the tree is for, without a tree.
class Listed {
 public:
  void add(Tokens tokens, int value) { values_.emplace(std::move(tokens), value); }
  void remove(const Tokens& tokens) { values_.erase(tokens); }
  std::vector<int> on_the_way(const Tokens& key) const {
    std::vector<int> found;
    for (std::size_t length = 0; length <= key.size(); ++length) {
      const auto at = values_.find(Tokens(key.begin(), key.begin() + static_cast<std::ptrdiff_t>(length)));
      if (at != values_.end()) found.push_back(at->second);
    }
    return found;
  }
  std::int64_t shared(const Tokens& key) const {
    std::int64_t longest = 0;
    for (const auto& [tokens, value] : values_) longest = std::max(longest, common(tokens, key));
    return longest;
  }
  const std::map<Tokens, int>& values() const { return values_; }

 private:
  std::map<Tokens, int> values_;
};

template <class Tree, class Key>
std::vector<int> values_on_the_way(const Tree& tree, const Key& key) {
  std::vector<int> found;
  for (auto* node : tree.match(key).nodes) found.push_back(node->value());
  return found;
}

/// Few different tokens: keys share much.
rc::Gen<Tokens> any_tokens() { return rc::gen::container<Tokens>(rc::gen::inRange(0, 3)); }

TEST(PrefixTree, FindsWhatAListFinds) {
  EXPECT_TRUE(rc::check("", [] {
    PrefixTree<TokenKey, int> tree;
    Listed listed;
    std::map<Tokens, PrefixTree<TokenKey, int>::Node*> nodes;
    const auto steps = *rc::gen::container<std::vector<std::pair<Tokens, bool>>>(
        rc::gen::pair(any_tokens(), rc::gen::map(rc::gen::inRange(0, 4), [](int i) { return i == 0; })));
    int value = 0;
    for (const auto& [tokens, removes] : steps) {
      if (removes && !nodes.empty()) {
        // The last one stored at or before these tokens.
        auto at = nodes.upper_bound(tokens);
        if (at != nodes.begin()) --at;
        RC_ASSERT(tree.take(at->second) == listed.values().at(at->first));
        listed.remove(at->first);
        nodes.erase(at);
      } else {
        const auto [node, fresh] = tree.emplace(TokenKey(tokens), std::ssize(tokens), ++value);
        RC_ASSERT(fresh == !nodes.contains(tokens));
        RC_ASSERT(node->position() == std::ssize(tokens));
        if (fresh) listed.add(tokens, value);
        nodes.emplace(tokens, node);
      }
      RC_ASSERT(tree.size() == nodes.size());
      const Tokens asked = *any_tokens();
      RC_ASSERT(values_on_the_way(tree, TokenKey(asked)) == listed.on_the_way(asked));
      RC_ASSERT(tree.match(TokenKey(asked)).common == listed.shared(asked));
      for (const auto& [stored, node] : nodes) RC_ASSERT(node->value() == listed.values().at(stored));
    }
  }));
}

TEST(PrefixTree, KnowsTheValuesBeforeAndAfterOne) {
  PrefixTree<TokenKey, int> tree;
  const auto add = [&](const Tokens& tokens, int value) {
    return tree.emplace(TokenKey(tokens), std::ssize(tokens), value).first;
  };
  auto* const deep = add({1, 2, 3, 4, 5}, 5);
  auto* const fork = add({1, 2, 3, 9}, 4);
  auto* const middle = add({1, 2}, 2);
  EXPECT_EQ(deep->before(), middle);
  EXPECT_EQ(fork->before(), middle);
  EXPECT_EQ(middle->before(), nullptr);
  std::vector<int> after;
  middle->for_each_after([&](auto* node) { after.push_back(node->value()); });
  EXPECT_THAT(after, testing::UnorderedElementsAre(5, 4));
}

TEST(PrefixTree, SegmentsBehaveAsTheTokensTheyStandFor) {
  EXPECT_TRUE(rc::check("", [] {
    using Segments = std::vector<SegmentKey::Segment>;
    const auto any_segments = rc::gen::map(rc::gen::container<std::vector<std::pair<std::uint32_t, std::uint32_t>>>(rc::gen::pair(
                                               rc::gen::inRange<std::uint32_t>(0, 3), rc::gen::inRange<std::uint32_t>(1, 5))),
                                           [](const auto& pairs) {
                                             Segments segments;
                                             for (const auto& [id, length] : pairs) segments.push_back({id, length});
                                             return segments;
                                           });
    const auto spelled = [](const Segments& segments) {
      Tokens tokens;
      for (const SegmentKey::Segment& segment : segments) {
        for (std::uint32_t i = 0; i < segment.length; ++i) tokens.push_back(static_cast<std::int32_t>(segment.id * 100 + i));
      }
      return tokens;
    };
    PrefixTree<SegmentKey, int> of_segments;
    PrefixTree<TokenKey, int> of_tokens;
    for (int value = 0; value < 12; ++value) {
      const Segments segments = *any_segments;
      const Tokens tokens = spelled(segments);
      const auto length = *rc::gen::inRange<std::int64_t>(0, std::ssize(tokens) + 1);
      auto* const node = of_segments.emplace(SegmentKey(segments), length, value).first;
      auto* const same = of_tokens.emplace(TokenKey(tokens), length, value).first;
      RC_ASSERT(node->value() == same->value());
      if (value % 4 == 3) {
        of_segments.take(node);
        of_tokens.take(same);
      }
      const Segments asked = *any_segments;
      RC_ASSERT(values_on_the_way(of_segments, SegmentKey(asked)) == values_on_the_way(of_tokens, TokenKey(spelled(asked))));
      RC_ASSERT(of_segments.match(SegmentKey(asked)).common == of_tokens.match(TokenKey(spelled(asked))).common);
    }
  }));
}

}  // namespace
}  // namespace calandra
