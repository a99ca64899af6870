// Rotations as the forward pass makes them, against the golden cases up to position 1,048,575.

#include "checkpoint/config.h"
#include "kernels/kernels.h"
#include "support/golden.h"
#include "support/json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace calandra {
namespace {

RopeParameters parameters_of(const Json& given) {
  Config config;
  config.rope_dim = given.at("dim").get<std::int64_t>();
  config.rope_theta = given.at("theta").get<double>();
  if (given.contains("rope_scaling")) {
    const auto& scaling = given.at("rope_scaling");
    YarnScaling yarn;
    yarn.factor = scaling.at("factor").get<double>();
    yarn.original_context = scaling.at("original_max_position_embeddings").get<std::int64_t>();
    if (scaling.contains("mscale")) yarn.mscale = scaling.at("mscale").get<double>();
    if (scaling.contains("mscale_all_dim")) yarn.mscale_all_dim = scaling.at("mscale_all_dim").get<double>();
    config.yarn = yarn;
  }
  return rope_parameters(config);
}

TEST(Rope, EveryGoldenPositionOnEveryInstructionSet) {
  const auto info = read_json(golden_path("kernels.json"));
  const auto golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  for (const char* name : {"rope_pairs", "rope_yarn_2x", "rope_yarn_small", "rope_yarn_mscale"}) {
    const RopeParameters rope = parameters_of(info.at(name).at("parameters"));
    const std::size_t pairs = rope.inverse_frequencies.size();
    const auto positions = golden.ints(std::string(name) + "/positions");
    const auto x = golden.floats(std::string(name) + "/x");
    const std::size_t heads = x.size() / positions.size() / (2 * pairs);
    for (const Isa isa : available_isas()) {
      std::vector<float> y = x, cos(pairs), sin(pairs);
      for (std::size_t t = 0; t < positions.size(); ++t) {
        rotation_at(rope, positions[t], cos, sin);
        for (std::size_t head = 0; head < heads; ++head) {
          kernels_for(isa).rope(std::span(y).subspan((t * heads + head) * 2 * pairs, 2 * pairs), cos, sin);
        }
      }
      expect_close_to_largest(y, golden.floats(std::string(name) + "/y"), 1e-5, name);
    }
  }
}

TEST(Rope, TablesOfTheSpecification) {
  const auto golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  const RopeParameters rope = parameters_of({{"dim", 64}, {"theta", 6e6}});
  const auto positions = golden.ints("spec_rope/positions");
  std::vector<float> cos(32 * positions.size()), sin(cos.size());
  for (std::size_t t = 0; t < positions.size(); ++t) {
    rotation_at(rope, positions[t], std::span(cos).subspan(32 * t, 32), std::span(sin).subspan(32 * t, 32));
  }
  expect_close_to_largest(cos, golden.floats("spec_rope/cos"), 1e-6, "cos");
  expect_close_to_largest(sin, golden.floats("spec_rope/sin"), 1e-6, "sin");
}

}  // namespace
}  // namespace calandra
