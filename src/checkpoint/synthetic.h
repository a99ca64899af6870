#pragma once
// Synthetic checkpoints: a folder in the published layout with random weights of the true shapes, a working tokenizer and the
// chat template. For tests and measurements on machines that do not hold the real weights.

#include "checkpoint/synthetic_config.h"
#include "tensor/safetensors.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

namespace calandra {

/// Every stored tensor of such a checkpoint, scales included, in file order.
std::vector<TensorHeader> synthetic_tensors(const SyntheticOptions& options);

struct SyntheticSize {
  std::int64_t parameters = 0;
  std::int64_t tensor_bytes = 0;
  std::int64_t shards = 0;
};

/// Writes the checkpoint to `folder`, which must not exist or be empty. Memory: about 100 MB, whatever the size. The same
/// options give the same files, for any number of threads. config.json is written last, so that a folder without it is known
/// to be unfinished; on an error what was written is removed. Throws Error that names the option, folder or file.
/// `progress` is called with (done, total) bytes of tensors; may be empty.
SyntheticSize make_checkpoint(const SyntheticOptions& options, const std::filesystem::path& folder,
                              const std::function<void(std::int64_t done, std::int64_t total)>& progress = {});

/// The same for any config of the family, for example of a tiny network: `options` counts except for its model and slice.
SyntheticSize make_checkpoint(const nlohmann::ordered_json& config, const SyntheticOptions& options,
                              const std::filesystem::path& folder,
                              const std::function<void(std::int64_t done, std::int64_t total)>& progress = {});

}  // namespace calandra
