#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "checkpoint/stored_weights.h"

#include <fmt/format.h>

#include <algorithm>

namespace calandra {
namespace {

/// "3 tensors are no part of the network: a, b, c"
std::string surplus_remark(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNames = 3;
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNames); ++i) shown.push_back(printable(names[i]));
  return fmt::format("{} surplus tensors, ignored: {}{}", names.size(), fmt::join(shown, ", "),
                     names.size() > kMostNames ? ", ..." : "");
}

}  // namespace

Checkpoint Checkpoint::open(const std::filesystem::path& folder, const ConfigOverrides& overrides, const Progress& progress,
                            ScaleCheck scale_check) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  checkpoint.config_ = read_config(folder, overrides);
  checkpoint.generation_ = read_generation(folder, checkpoint.config_);
  checkpoint.shards_ = open_shards(folder);

  StoredWeights source(checkpoint.shards_, folder, progress, scale_check);
  checkpoint.weights_ = bind(checkpoint.config_, source);

  checkpoint.remarks_ = checkpoint.shards_.remarks;
  const std::vector<std::string>& not_followed = checkpoint.generation_.remarks;
  checkpoint.remarks_.insert(checkpoint.remarks_.end(), not_followed.begin(), not_followed.end());
  if (checkpoint.config_.mtp_layers > 0 && !checkpoint.weights_.mtp) {
    checkpoint.remarks_.emplace_back("config.json announces an MTP layer (num_nextn_predict_layers 1), the files hold none");
  }
  const std::vector<std::string> surplus = source.surplus();
  if (!surplus.empty()) checkpoint.remarks_.push_back(surplus_remark(surplus));
  return checkpoint;
}

}  // namespace calandra
