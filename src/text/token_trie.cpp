#include "text/token_trie.h"

#include <algorithm>
#include <iterator>

namespace calandra {

void TokenTrie::add_node(std::uint8_t byte, std::uint16_t depth) {
  end_nodes(depth);
  open_.push_back(static_cast<std::uint32_t>(nodes_.size()));
  const auto tokens = static_cast<std::uint32_t>(tokens_.size());
  nodes_.push_back({0, depth, byte, tokens, tokens});
  max_depth_ = std::max(max_depth_, depth);
}

/// Ends the open nodes from `depth` on.
void TokenTrie::end_nodes(std::uint16_t depth) {
  while (open_.size() > depth) {
    nodes_[open_.back()].end = static_cast<std::uint32_t>(nodes_.size());
    open_.pop_back();
  }
}

TokenTrie::TokenTrie(std::vector<std::pair<std::string_view, std::int32_t>> tokens) {
  std::erase_if(tokens, [](const auto& token) { return token.first.empty() || token.first.size() > UINT16_MAX; });
  std::ranges::sort(tokens);
  add_node(0, 0);
  std::string_view previous;
  for (const auto& [bytes, id] : tokens) {
    const auto differs = static_cast<std::size_t>(
        std::mismatch(previous.begin(), previous.end(), bytes.begin(), bytes.end()).first - previous.begin());
    for (std::size_t i = differs; i < bytes.size(); ++i) {
      add_node(static_cast<std::uint8_t>(bytes[i]), static_cast<std::uint16_t>(i + 1));
    }
    tokens_.push_back(id);
    nodes_[open_.back()].tokens_end = static_cast<std::uint32_t>(tokens_.size());
    previous = bytes;
  }
  end_nodes(0);
}

TokenTrie TokenTrie::continuations(std::span<const std::uint32_t> nodes) const {
  TokenTrie result;
  result.add_node(0, 0);
  const auto add_tokens = [&](std::span<const std::uint32_t> of) {
    for (const std::uint32_t node : of) {
      const auto ids = tokens(nodes_[node]);
      result.tokens_.insert(result.tokens_.end(), ids.begin(), ids.end());
    }
    result.nodes_.back().tokens_end = static_cast<std::uint32_t>(result.tokens_.size());
  };
  // Depth first, without recursion: what is still to be made, as a byte and the nodes of this trie that end so.
  struct Task {
    std::uint8_t byte;
    std::uint16_t depth;
    std::vector<std::uint32_t> nodes;
  };
  std::vector<Task> tasks;
  const auto add_children = [&](std::span<const std::uint32_t> of, std::uint16_t depth) {
    std::vector<Task> children;
    for (const std::uint32_t node : of) {
      for (std::uint32_t child = node + 1; child < nodes_[node].end; child = nodes_[child].end) {
        const auto place = std::ranges::lower_bound(children, nodes_[child].byte, {}, &Task::byte);
        if (place != children.end() && place->byte == nodes_[child].byte) {
          place->nodes.push_back(child);
        } else {
          children.insert(place, {nodes_[child].byte, static_cast<std::uint16_t>(depth + 1), {child}});
        }
      }
    }
    std::move(children.rbegin(), children.rend(), std::back_inserter(tasks));
  };
  add_tokens(nodes);
  add_children(nodes, 0);
  while (!tasks.empty()) {
    const Task task = std::move(tasks.back());
    tasks.pop_back();
    result.add_node(task.byte, task.depth);
    add_tokens(task.nodes);
    add_children(task.nodes, task.depth);
  }
  result.end_nodes(0);
  return result;
}

std::optional<std::uint32_t> TokenTrie::find(std::string_view bytes) const {
  std::uint32_t node = 0;
  for (const char byte : bytes) {
    if (nodes_.empty()) return std::nullopt;
    const std::uint32_t end = nodes_[node].end;
    std::uint32_t child = node + 1;
    while (child < end && nodes_[child].byte != static_cast<std::uint8_t>(byte)) child = nodes_[child].end;
    if (child >= end) return std::nullopt;
    node = child;
  }
  return node;
}

}  // namespace calandra
