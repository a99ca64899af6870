#pragma once
// The tensors of a checkpoint one by one, each with what the network does with it: for those who go through all of them. Matrices are
// not decoded, nor are their scales looked at.

#include "checkpoint/shards.h"
#include "checkpoint/weights.h"

#include <filesystem>
#include <string>
#include <vector>

namespace calandra {

struct BoundTensor {
  TensorSpec spec;
  WeightMatrix matrix;                      // empty for a vector
  std::vector<const StoredTensor*> stored;  // the tensor, then its scales if it has some
  std::vector<std::string> names;           // of these in their files
};

/// Holds pointers into itself: may be moved, not copied.
struct BoundTensors {
  BoundTensors() = default;
  BoundTensors(BoundTensors&&) = default;
  BoundTensors& operator=(BoundTensors&&) = default;

  Config config;
  Shards shards;
  std::vector<BoundTensor> tensors;  // of the network, in the order of bind()
  std::vector<BoundTensor> surplus;  // what else the files hold, without a spec
};

/// Throws Error as Checkpoint::open() does.
BoundTensors bind_tensors(const std::filesystem::path& folder);

}  // namespace calandra
