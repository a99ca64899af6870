#include "checkpoint/bound_tensors.h"

#include "checkpoint/stored_weights.h"

#include <set>
#include <utility>

namespace calandra {
namespace {

/// Hands on what it is asked for and remembers it.
class RecordingSource : public TensorSource {
 public:
  RecordingSource(StoredWeights& source, const Shards& shards, std::vector<BoundTensor>& tensors)
      : source_(source), shards_(shards), tensors_(tensors) {}

  WeightMatrix matrix(const TensorSpec& spec) override {
    const WeightMatrix matrix = source_.matrix(spec);
    record(spec, matrix);
    return matrix;
  }
  std::vector<float> vector(const TensorSpec& spec) override {
    record(spec, {});
    return source_.vector(spec);
  }
  bool has_mtp(const Config& config) override { return source_.has_mtp(config); }

 private:
  void record(const TensorSpec& spec, const WeightMatrix& matrix) {
    BoundTensor& bound = tensors_.emplace_back();
    bound.spec = spec;
    bound.matrix = matrix;
    const std::string& name = shards_.tensors.contains(spec.name) ? spec.name : spec.alias;
    add(name, bound);
    if (matrix.scales != nullptr && !add(name + "_scale_inv", bound)) add(name + "_scale", bound);
  }

  bool add(const std::string& name, BoundTensor& bound) {
    const auto found = shards_.tensors.find(name);
    if (found == shards_.tensors.end()) return false;
    bound.stored.push_back(&found->second);
    bound.names.push_back(name);
    return true;
  }

  StoredWeights& source_;
  const Shards& shards_;
  std::vector<BoundTensor>& tensors_;
};

}  // namespace

BoundTensors bind_tensors(const std::filesystem::path& folder) {
  BoundTensors result;
  result.config = read_config(folder);
  result.shards = open_shards(folder);
  StoredWeights stored(result.shards, folder, {}, ScaleCheck::Skip);
  RecordingSource source(stored, result.shards, result.tensors);
  bind(result.config, source);
  std::set<std::string_view> bound;
  for (const BoundTensor& tensor : result.tensors) bound.insert(tensor.names.begin(), tensor.names.end());
  for (const auto& [name, tensor] : result.shards.tensors) {
    if (!bound.contains(name)) result.surplus.push_back({{}, {}, {&tensor}, {name}});
  }
  return result;
}

}  // namespace calandra
