#pragma once
// Names for the beginnings of a request that hold across processes. Tokens are named in runs of kRunTokens, each run's name made of the
// one before and its tokens, so that equal beginnings share the names and what is stored under them; a beginning that ends
// inside a run is named by that run's start and the tokens after it. SHA-256: nobody can make two beginnings of one name.

#include "base/digest.h"

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace calandra {

inline constexpr std::int64_t kRunTokens = 1024;

class TokenChain {
 public:
  TokenChain() = default;
  /// Of one who shares with others of the space. `root` is the name of nothing: made of the space and a model.
  TokenChain(std::string space, const Digest& root) : space_(std::move(space)), runs_{root} {}

  const std::string& space() const { return space_; }

  /// Takes in the whole runs of `tokens`, which begins with what it was given before.
  void extend(std::span<const std::int32_t> tokens);

  /// Name of the first `runs` runs; 0 runs are the root.
  const Digest& run(std::int64_t runs) const { return runs_[static_cast<std::size_t>(runs)]; }
  std::int64_t num_runs() const { return std::ssize(runs_) - 1; }

 private:
  std::string space_;
  std::vector<Digest> runs_;
};

/// Names of the beginnings that end after some of `tail`, which follows the runs named `run`: those of `lengths` tokens, ascending.
std::vector<Digest> names_of_ends(const Digest& run, std::span<const std::int32_t> tail, std::span<const std::int64_t> lengths);

}  // namespace calandra
