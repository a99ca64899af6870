#include "engine/token_counts.h"

namespace calandra {
namespace {

bool has_lower_id(const TokenCounts::Entry& entry, std::int32_t token) { return entry.token < token; }

}  // namespace

TokenCounts::TokenCounts(std::span<const std::int32_t> prompt) {
  std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  entries_.reserve(tokens.size());
  for (const std::int32_t token : tokens) entries_.push_back({token, 0});
}

void TokenCounts::add(std::int32_t token) {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), token, has_lower_id);
  if (at != entries_.end() && at->token == token) {
    ++at->made;
  } else {
    entries_.insert(at, {token, 1});
  }
}

std::int32_t TokenCounts::made(std::int32_t token) const {
  const auto found = find(token);
  return found == entries_.end() ? 0 : found->made;
}

std::vector<TokenCounts::Entry>::const_iterator TokenCounts::find(std::int32_t token) const {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), token, has_lower_id);
  return at != entries_.end() && at->token == token ? at : entries_.end();
}

}  // namespace calandra
