#pragma once
// Which tokens a text has, and how often its answer: what penalties ask. A value made from tokens alone: a copy, or one made anew from the
// same tokens, is equal to it. Drafts never go in; they are looked at on top of it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace calandra {

class TokenCounts {
 public:
  struct Entry {
    std::int32_t token = 0;
    std::int32_t made = 0;  // times in the answer; 0: only in the prompt
    friend bool operator==(const Entry&, const Entry&) = default;
  };

  TokenCounts() = default;
  explicit TokenCounts(std::span<const std::int32_t> prompt);

  /// One more token of the answer, which stays.
  void add(std::int32_t token);

  /// Ascending ids.
  std::span<const Entry> entries() const { return entries_; }
  std::int32_t made(std::int32_t token) const;

  /// visit(token, times made) for every token there is, each once, as if `drafts` had been added.
  template <class Visit>
  void for_each_with(std::span<const std::int32_t> drafts, Visit&& visit) const;

  friend bool operator==(const TokenCounts&, const TokenCounts&) = default;

 private:
  std::vector<Entry>::const_iterator find(std::int32_t token) const;

  std::vector<Entry> entries_;
};

template <class Visit>
void TokenCounts::for_each_with(std::span<const std::int32_t> drafts, Visit&& visit) const {
  const auto drafted = [&](std::int32_t token) {
    return static_cast<std::int32_t>(std::count(drafts.begin(), drafts.end(), token));
  };
  for (const Entry& entry : entries_) visit(entry.token, entry.made + drafted(entry.token));
  for (auto at = drafts.begin(); at != drafts.end(); ++at) {
    const bool is_new = find(*at) == entries_.end() && std::find(drafts.begin(), at, *at) == at;
    if (is_new) visit(*at, drafted(*at));
  }
}

}  // namespace calandra
