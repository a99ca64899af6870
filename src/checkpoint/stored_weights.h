#pragma once
// Binds the network to tensors in files. Decides tensor by tensor how a weight is stored: a linear weight is quantised
// exactly if a scale lies beside it, and the shapes say in which format. Lists of excluded modules in a config are not
// consulted: published ones are ambiguous.

#include "checkpoint/shards.h"
#include "checkpoint/weights.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

namespace calandra {

/// Whether the values of scales are looked at, all of them, or only their types and shapes: for those who will not compute.
enum class ScaleCheck : std::uint8_t { Full, Skip };

/// Reads all scales of a weight in one of the quantised formats. Throws Error that names the first with which it cannot be computed.
void check_scales(const std::string& name, const StoredTensor& scale, WeightFormat format);

class StoredWeights : public TensorSource {
 public:
  /// `shards` must outlive this object and the weights it hands out. `progress` may be empty; see Checkpoint::Progress.
  StoredWeights(const Shards& shards, std::filesystem::path folder, std::function<void(std::int64_t, std::int64_t)> progress,
                ScaleCheck scale_check = ScaleCheck::Full);

  /// All throw Error that names tensor and file, what was found and what was expected.
  WeightMatrix matrix(const TensorSpec& spec) override;
  std::vector<float> vector(const TensorSpec& spec) override;
  bool has_mtp(const Config& config) override;

  /// Names that nobody asked for, without those known to be of no use.
  std::vector<std::string> surplus() const;

 private:
  /// A tensor under the name it has in its file.
  struct Named {
    const std::string* name = nullptr;
    const StoredTensor* tensor = nullptr;
  };

  /// The tensor of that name, counted as used; empty if there is none.
  Named find(const std::string& name);
  Named require(const TensorSpec& spec);
  Named find_scale(const std::string& weight_name);

  const Shards& shards_;
  std::filesystem::path folder_;
  std::function<void(std::int64_t, std::int64_t)> progress_;
  ScaleCheck scale_check_;
  std::int64_t bytes_done_ = 0;
  std::int64_t bytes_total_ = 0;
  std::unordered_set<const StoredTensor*> used_;
};

}  // namespace calandra
