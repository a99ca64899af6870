#pragma once
// The tokens of a vocabulary by their bytes, as a tree in one array: what begins alike is walked once, and what cannot go on
// is skipped with all that begins so.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra {

class TokenTrie {
 public:
  /// In the order of a walk: a node is followed by all that continue it, up to `end`. The first is the root.
  struct Node {
    std::uint32_t end;
    std::uint16_t depth;  // bytes from the root
    std::uint8_t byte;    // the last of them
    std::uint32_t tokens_begin, tokens_end;
  };

  TokenTrie() = default;
  /// Bytes and ids. Empty ones and those of more than 65,535 bytes are left out.
  explicit TokenTrie(std::vector<std::pair<std::string_view, std::int32_t>> tokens);

  /// What follows the given nodes of this trie, all put together; their own tokens are those of its root.
  TokenTrie continuations(std::span<const std::uint32_t> nodes) const;

  /// The node that these bytes lead to, if any token begins with them.
  std::optional<std::uint32_t> find(std::string_view bytes) const;

  std::span<const Node> nodes() const { return nodes_; }
  std::span<const std::int32_t> tokens(const Node& node) const {
    return {tokens_.data() + node.tokens_begin, node.tokens_end - node.tokens_begin};
  }
  /// Tokens of the node and of all below it.
  std::span<const std::int32_t> tokens_below(std::uint32_t node) const {
    const std::uint32_t end = nodes_[node].end;
    return {tokens_.data() + nodes_[node].tokens_begin, nodes_[end - 1].tokens_end - nodes_[node].tokens_begin};
  }
  std::uint16_t max_depth() const { return max_depth_; }
  std::size_t bytes() const { return nodes_.capacity() * sizeof(Node) + tokens_.capacity() * sizeof(std::int32_t); }

 private:
  void add_node(std::uint8_t byte, std::uint16_t depth);
  void end_nodes(std::uint16_t depth);

  std::vector<Node> nodes_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::uint32_t> open_;  // while it is made: the nodes from the root to the last
  std::uint16_t max_depth_ = 0;
};

}  // namespace calandra
