#pragma once
// Which boundaries to take while a prompt passes by.

#include "cache/prefix_cache.h"

#include <cstdint>
#include <span>
#include <vector>

namespace calandra {

struct PlannedBoundary {
  std::int64_t position = 0;
  BoundaryKind kind{};
  friend bool operator==(const PlannedBoundary&, const PlannedBoundary&) = default;
};

/// What is known of a prompt before it is computed.
struct PromptShape {
  std::int64_t tokens = 0;
  std::int64_t resumed_at = 0;               // the boundary it goes on from
  std::int64_t common = 0;                   // PrefixCache::Match::common
  std::span<const std::int64_t> messages{};  // positions where a message ends, ascending
  std::span<const std::int64_t> asked{};     // positions that the client has marked, ascending
  bool only_asked = false;                   // and it wants no others
};

/// Tokens between boundaries that nobody has a reason for, and the least that another boundary must spare.
struct BoundarySpacing {
  std::int64_t spaced = 2048;
  std::int64_t least = 64;
};

/// Positions after `resumed_at`, ascending, each at most once. The end of the prompt is one of them: another request can go on from there.
std::vector<PlannedBoundary> plan_boundaries(const PromptShape& prompt, const BoundarySpacing& spacing);

}  // namespace calandra
