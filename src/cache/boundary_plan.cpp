#include "cache/boundary_plan.h"

#include <algorithm>
#include <map>

namespace calandra {

std::vector<PlannedBoundary> plan_boundaries(const PromptShape& prompt, const BoundarySpacing& spacing) {
  std::map<std::int64_t, BoundaryKind> wanted;
  const auto want = [&](std::int64_t position, BoundaryKind kind) {
    if (position <= prompt.resumed_at || position > prompt.tokens || (prompt.only_asked && kind != BoundaryKind::Asked)) return;
    BoundaryKind& now = wanted[position];
    now = std::max(now, kind);
  };
  for (std::int64_t at = prompt.resumed_at / spacing.spaced * spacing.spaced + spacing.spaced; at < prompt.tokens;
       at += spacing.spaced)
    want(at, BoundaryKind::Spaced);
  for (const std::int64_t position : prompt.messages) want(position, BoundaryKind::Message);
  for (const std::int64_t position : prompt.asked) want(position, BoundaryKind::Asked);
  if (prompt.common < prompt.tokens) want(prompt.common, BoundaryKind::Fork);
  // For the same prompt again, of which the last token is computed, and for one that goes on.
  want(prompt.tokens - 1, BoundaryKind::End);
  want(prompt.tokens, BoundaryKind::End);

  // From the end. Of two that are close the one with more reason, or the later; but whoever has marked one, and where others have parted,
  // will be back exactly there, and behind the end of a prompt templates may change what came before.
  std::vector<PlannedBoundary> plan;
  for (auto at = wanted.rbegin(); at != wanted.rend(); ++at) {
    const auto [position, kind] = *at;
    if (position - prompt.resumed_at < spacing.least && kind < BoundaryKind::End) continue;
    PlannedBoundary* const after = plan.empty() || plan.back().position - position >= spacing.least ? nullptr : &plan.back();
    const bool either = after != nullptr && std::max(kind, after->kind) <= BoundaryKind::Message;
    if (either && after->kind >= kind) continue;
    if (either) plan.pop_back();
    plan.push_back({position, kind});
  }
  std::ranges::reverse(plan);
  return plan;
}

}  // namespace calandra
