// Whole runs against the float64 reference: every tensor of golden.safetensors (tools/reference/README.md says what each is).

#include "support/golden.h"
#include "engine/trace.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <set>

namespace calandra {
namespace {

constexpr double kFp32Limit = 1e-5;  // relative rms of hidden states, logits, states, caches, MTP rows

nlohmann::json golden_info(const std::string& name) {
  return nlohmann::json::parse(std::ifstream(golden_path(name) / "golden.json"));
}

Trace trace_variant(const std::string& name, Activations activations, const GoldenTensors& golden, const nlohmann::json& info) {
  ModelOptions options;
  options.activations = activations;
  options.with_mtp = true;
  Model model(golden_path(name).string(), options);
  TraceOptions trace;
  for (const std::int64_t id : golden.ints("input_ids")) trace.ids.push_back(static_cast<std::int32_t>(id));
  trace.greedy = static_cast<std::int64_t>(golden.ints("greedy_ids").size());
  trace.splits = {info.at("snapshot_position").get<std::int64_t>()};
  return run_trace(model, trace);
}

std::vector<float> floats(const TraceTensor& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

std::vector<std::int64_t> ids_of(const TraceTensor& tensor) {
  std::vector<std::int32_t> values(tensor.data.size() / sizeof(std::int32_t));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return {values.begin(), values.end()};
}

/// Rows of k experts as sets, with the weight of each.
std::vector<std::map<std::int64_t, float>> routes(const std::vector<std::int64_t>& ids, const std::vector<float>& weights,
                                                  std::size_t top_k) {
  std::vector<std::map<std::int64_t, float>> rows(ids.size() / top_k);
  for (std::size_t i = 0; i < ids.size(); ++i) rows[i / top_k][ids[i]] = weights[i];
  return rows;
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, Fp32EqualsTheReferenceInEveryTensor) {
  const std::string& name = GetParam();
  const auto golden = GoldenTensors::load(golden_path(name) / "golden.safetensors");
  const auto info = golden_info(name);
  const Trace trace = trace_variant(name, Activations::Fp32, golden, info);

  const auto greedy = golden.ints("greedy_ids");
  EXPECT_EQ(std::vector<std::int64_t>(trace.greedy_ids.begin(), trace.greedy_ids.end()), greedy);
  if (info.contains("mtp_draft_ids")) {
    EXPECT_EQ(trace.draft_ids, info.at("mtp_draft_ids").get<std::vector<std::int32_t>>());
  }
  std::size_t compared = 0;
  for (const auto& [tensor, view] : golden.file().tensors()) {
    if (tensor == "input_ids" || tensor == "greedy_ids") continue;
    ASSERT_TRUE(trace.tensors.contains(tensor)) << tensor;
    const TraceTensor& actual = trace.tensors.at(tensor);
    EXPECT_EQ(actual.shape, view.shape) << tensor;
    ++compared;
    if (tensor == "mtp.next_ids") continue;  // follows from greedy_ids
    if (tensor.ends_with(".ids")) {
      const std::string weights = tensor.substr(0, tensor.size() - 3) + "weights";
      const auto top_k = static_cast<std::size_t>(view.shape[1]);
      const auto ours = routes(ids_of(actual), floats(trace.tensors.at(weights)), top_k);
      const auto theirs = routes(golden.ints(tensor), golden.floats(weights), top_k);
      for (std::size_t r = 0; r < theirs.size(); ++r) {
        for (const auto& [expert, weight] : theirs[r]) {
          ASSERT_TRUE(ours[r].contains(expert)) << tensor << " row " << r << " expert " << expert;
          EXPECT_NEAR(ours[r].at(expert), weight, 1e-5) << tensor << " row " << r;
        }
      }
    } else if (!tensor.ends_with(".weights")) {
      expect_close(floats(actual), golden.floats(tensor), kFp32Limit, tensor);
    }
  }
  EXPECT_EQ(compared + 2, golden.file().tensors().size());
}

/// "591/600" as a share.
double share(const nlohmann::json& info, const std::string& key) {
  const std::string text = info.at(key).get<std::string>();
  return std::stod(text) / std::stod(text.substr(text.find('/') + 1));
}

/// Whole runs drift where a routing set flips, and which sets flip is chance. The levels are those that the reference
/// measured for itself in the same precision; twice a level leaves room for other flips.
void expect_no_worse(const std::string& name, Activations activations, const char* level) {
  const auto golden = GoldenTensors::load(golden_path(name) / "golden.safetensors");
  const auto info = golden_info(name);
  const Trace trace = trace_variant(name, activations, golden, info);
  const auto& levels = info.at("error_levels").at(level);
  for (const auto& [layer, limit] : levels.at("hidden_rms_error").items()) {
    if (layer == "embed") continue;
    expect_close(floats(trace.tensors.at("hidden." + layer)), golden.floats("hidden." + layer), 2 * limit.get<double>(),
                 name + " hidden." + layer);
  }
  expect_close(floats(trace.tensors.at("logits")), golden.floats("logits"), 2 * levels.at("logits_rms_error").get<double>(),
               name + " logits");
  double same = 0, total = 0;
  for (const auto& [tensor, view] : golden.file().tensors()) {
    if (!tensor.ends_with(".ids") || tensor.find("router") == std::string::npos) continue;
    const auto top_k = static_cast<std::size_t>(view.shape[1]);
    const auto ours = ids_of(trace.tensors.at(tensor)), theirs = golden.ints(tensor);
    for (std::size_t r = 0; r < theirs.size(); r += top_k) {
      const auto set = [&](const auto& ids) {
        return std::set(ids.begin() + static_cast<std::ptrdiff_t>(r), ids.begin() + static_cast<std::ptrdiff_t>(r + top_k));
      };
      same += set(ours) == set(theirs) ? 1 : 0;
      ++total;
    }
  }
  EXPECT_GE(same / total, share(levels, "routing_sets_equal") - 0.03) << name;
}

TEST_P(Golden, Bf16IsNoWorseThanItsMeasuredLevel) { expect_no_worse(GetParam(), Activations::Bf16, "bf16_activations"); }

TEST_P(Golden, Fp8ActivationsAreNoWorseThanTheirMeasuredLevel) {
  if (!golden_info(GetParam()).at("error_levels").contains("fp8_activations")) GTEST_SKIP() << "no FP8 weights";
  expect_no_worse(GetParam(), Activations::Fp8, "fp8_activations");
}

INSTANTIATE_TEST_SUITE_P(Variants, Golden, testing::ValuesIn(golden_variants()), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace calandra
