#pragma once
// How far the weights of one checkpoint are from those of another of the same network: what a conversion has cost.

#include "checkpoint/weights.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace calandra {

/// "bf16", "fp8", "mxfp4", ...
std::string_view name_of(WeightFormat format);

/// A matrix that is stored differently in the two.
struct WeightError {
  std::string name;
  Component component = Component::Norm;
  WeightFormat before = WeightFormat::F32;
  WeightFormat after = WeightFormat::F32;
  double difference_squares = 0;  // sums over all elements
  double squares = 0;             // of the weights before
  /// rms of the difference over the rms of the weights before.
  double relative_rms() const;
};

/// The same for all such matrices of a part of the network and a format.
struct WeightErrorClass {
  Component component = Component::Norm;
  WeightFormat after = WeightFormat::F32;
  std::int64_t tensors = 0;
  double difference_squares = 0;
  double squares = 0;
  double relative_rms() const;
};

struct WeightErrors {
  std::vector<WeightError> tensors;       // in the order of the network
  std::vector<WeightErrorClass> classes;  // by component and format
  std::int64_t equal_tensors = 0;         // matrices that are the same bytes in both
};

/// Reads all matrices of both once, in pieces and with that many threads (0: one per core; the sums do not depend on it). Throws Error
/// if the two are not of one network. `progress` gets (bytes done, bytes in all) of `before`; may be empty.
WeightErrors compare_weights(const std::filesystem::path& before, const std::filesystem::path& after, int num_threads,
                             const std::function<void(std::int64_t, std::int64_t)>& progress = {});

}  // namespace calandra
