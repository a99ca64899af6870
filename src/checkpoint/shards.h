#pragma once
// The safetensors files of a checkpoint folder, opened and put together under one set of names.

#include "tensor/safetensors.h"

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace calandra {

/// A tensor of the folder and the file that holds it.
struct StoredTensor {
  TensorView view;
  const SafetensorsFile* file = nullptr;
};

struct Shards {
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::map<std::string, StoredTensor, std::less<>> tensors;
  std::vector<std::string> remarks;  // where index and files disagree without harm
};

/// model.safetensors.index.json, if it is there, says which files count; otherwise model.safetensors does. Throws Error
/// that names the file: missing, outside the folder, a tensor in two files or not where the index says.
Shards open_shards(const std::filesystem::path& folder);

}  // namespace calandra
