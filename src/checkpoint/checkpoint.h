#pragma once
// A Hugging Face folder opened as it is: config, generation defaults, mapped shards and the weights bound to them.

#include "checkpoint/config.h"
#include "checkpoint/generation.h"
#include "checkpoint/shards.h"
#include "checkpoint/stored_weights.h"
#include "checkpoint/weights.h"

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace calandra {

class Checkpoint {
 public:
  /// Called with (done, total) bytes of tensors while they are bound and their scales checked; may be empty.
  using Progress = std::function<void(std::int64_t done, std::int64_t total)>;

  /// `folder` must hold config.json and the files of open_shards(). Throws Error that names file, tensor, what was found
  /// and what was expected. Reads every scale of quantised weights once: 1/17 of the bytes of MXFP4 weights.
  static Checkpoint open(const std::filesystem::path& folder, const ConfigOverrides& overrides = {},
                         const Progress& progress = {}, ScaleCheck scale_check = ScaleCheck::Full);

  const std::filesystem::path& folder() const { return folder_; }
  const Config& config() const { return config_; }
  const GenerationDefaults& generation() const { return generation_; }
  const ModelWeights& weights() const { return weights_; }
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return shards_.tensors; }
  /// Surplus tensors and other oddities of the files, for `inspect`; those of the config are in config().remarks.
  const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  Checkpoint() = default;
  std::filesystem::path folder_;
  Config config_;
  GenerationDefaults generation_;
  Shards shards_;
  ModelWeights weights_;
  std::vector<std::string> remarks_;
};

/// A folder as given, or `owner/name` in the local Hugging Face cache (HF_HUB_CACHE, HF_HOME, ~/.cache/huggingface/hub):
/// the snapshot that refs/main names. A folder of that name comes first. Throws Error that lists where it looked.
std::filesystem::path locate_checkpoint(const std::string& folder_or_name);

}  // namespace calandra
