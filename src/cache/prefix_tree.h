#pragma once
// A radix tree: values at positions inside keys. It knows what two keys have in common also where nothing is stored, as long as
// something is stored beyond.

#include "cache/prefix_key.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace calandra {

template <PrefixKey Key, class Value>
class PrefixTree {
 public:
  class Node {
   public:
    std::int64_t position() const { return position_; }
    Value& value() { return *value_; }
    const Value& value() const { return *value_; }
    /// The deepest value before this one, or nullptr.
    Node* before() const {
      Node* node = parent_;
      while (node != nullptr && !node->value_) node = node->parent_;
      return node;
    }
    /// The first values after this one, on every way down.
    template <class Visit>
    void for_each_after(const Visit& visit) {
      for (const auto& [unit, child] : children_) {
        if (child->value_) {
          visit(child.get());
        } else {
          child->for_each_after(visit);
        }
      }
    }

   private:
    friend class PrefixTree;
    Key edge_;  // from the parent to here
    std::int64_t position_ = 0;
    Node* parent_ = nullptr;
    std::unordered_map<std::uint64_t, std::unique_ptr<Node>> children_;  // by the first unit of their edges
    std::optional<Value> value_;
  };

  struct Match {
    std::int64_t common = 0;   // units that the key shares with one that has a value somewhere
    std::vector<Node*> nodes;  // with a value, at positions up to `common`: shallow ones first
  };

  /// O(units in common).
  Match match(const Key& key) const {
    Match match;
    for (Node* node = root_.get();;) {
      if (node->value_) match.nodes.push_back(node);
      Node* const child = match.common < key.size() ? child_of(*node, key.unit(match.common)) : nullptr;
      if (child == nullptr) return match;
      const std::int64_t shared = child->edge_.common(0, key, match.common);
      match.common += shared;
      if (shared < child->edge_.size()) return match;
      node = child;
    }
  }

  /// The node of the first `length` units of the key, with `value` if there was none.
  template <class... Arguments>
  std::pair<Node*, bool> emplace(const Key& key, std::int64_t length, Arguments&&... value) {
    Node* const node = node_at(key, length);
    const bool fresh = !node->value_;
    if (fresh) {
      node->value_.emplace(std::forward<Arguments>(value)...);
      ++size_;
    }
    return {node, fresh};
  }

  /// Takes the value away, and the node where nothing needs it. The node must have one.
  Value take(Node* node) {
    Value value = std::move(*node->value_);
    node->value_.reset();
    --size_;
    while (node->parent_ != nullptr && !node->value_ && node->children_.size() < 2) {
      Node* const parent = node->parent_;
      auto& place = parent->children_.at(node->edge_.unit(0));
      if (node->children_.empty()) {
        parent->children_.erase(node->edge_.unit(0));
      } else {
        std::unique_ptr<Node> only = std::move(node->children_.begin()->second);
        only->edge_ = node->edge_.joined(only->edge_);
        only->parent_ = parent;
        place = std::move(only);
      }
      node = parent;
    }
    return value;
  }

  /// Values in the tree.
  std::size_t size() const { return size_; }

 private:
  static Node* child_of(const Node& node, std::uint64_t unit) {
    const auto found = node.children_.find(unit);
    return found == node.children_.end() ? nullptr : found->second.get();
  }

  Node* node_at(const Key& key, std::int64_t length) {
    Node* node = root_.get();
    while (node->position_ < length) {
      const std::uint64_t unit = key.unit(node->position_);
      Node* child = child_of(*node, unit);
      if (child == nullptr) return add_child(*node, key.slice(node->position_, length));
      const std::int64_t shared = std::min(child->edge_.common(0, key, node->position_), length - node->position_);
      node = shared < child->edge_.size() ? split(*child, shared) : child;
    }
    return node;
  }

  Node* add_child(Node& parent, Key edge) {
    auto child = std::make_unique<Node>();
    child->position_ = parent.position_ + edge.size();
    child->parent_ = &parent;
    child->edge_ = std::move(edge);
    Node* const added = child.get();
    parent.children_[added->edge_.unit(0)] = std::move(child);
    return added;
  }

  /// A node `shared` units down the edge to `child`, between it and its parent.
  Node* split(Node& child, std::int64_t shared) {
    Node& parent = *child.parent_;
    std::unique_ptr<Node> below = std::move(parent.children_.at(child.edge_.unit(0)));
    Node* const middle = add_child(parent, child.edge_.slice(0, shared));
    child.edge_ = child.edge_.slice(shared, child.edge_.size());
    child.parent_ = middle;
    middle->children_[child.edge_.unit(0)] = std::move(below);
    return middle;
  }

  std::unique_ptr<Node> root_ = std::make_unique<Node>();
  std::size_t size_ = 0;
};

}  // namespace calandra
