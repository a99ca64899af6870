// bf16 activations against the golden data, block by block: each block is fed with the golden hidden state of the block before.

#include "model/harness.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <set>

namespace calandra {
namespace {

constexpr double kBlockLimit = 1.5e-2;  // relative rms of rows whose routing set agrees

/// Collects the experts a block chose, row by row.
class Routes : public Observer {
 public:
  void routed(std::int64_t, std::int64_t, std::span<const std::int32_t> experts, std::span<const float>) override {
    sets.emplace_back(experts.begin(), experts.end());
  }
  std::vector<std::set<std::int64_t>> sets;
};

class GoldenBlocks : public testing::TestWithParam<std::tuple<std::string, Isa>> {};

TEST_P(GoldenBlocks, Bf16StaysNearTheGoldenStateWhereRoutingAgrees) {
  const auto& [name, isa] = GetParam();
  TestModel model(name, isa, Activations::Bf16);
  const auto golden = GoldenTensors::load(golden_path(name) / "golden.safetensors");
  const auto ids = golden.ints("input_ids");
  const std::vector<std::int32_t> tokens(ids.begin(), ids.end());
  const auto rows = static_cast<std::int64_t>(tokens.size());
  const std::int64_t h = model.config().hidden;
  for (std::int64_t layer = 1; layer < model.config().layers; ++layer) {
    const auto pool = model.pool(1, rows);
    const auto memory = SequenceMemory::create(*pool);
    ASSERT_TRUE(memory->reserve(rows));
    std::vector<float> x = golden.floats(fmt::format("hidden.{}", layer - 1));
    const std::vector<float> expected = golden.floats(fmt::format("hidden.{}", layer));
    const Slice slice{memory.get(), tokens};
    Routes routes;
    model.pass().block(layer, {x.data(), rows, h, h}, std::span(&slice, 1), &routes);

    std::vector<float> actual_rows, expected_rows;
    std::int64_t agreeing = 0;
    const auto top_k = static_cast<std::size_t>(model.config().top_k);
    const auto router = fmt::format("router.{}.ids", layer);
    const auto chosen = golden.contains(router) ? golden.ints(router) : std::vector<std::int64_t>{};
    for (std::size_t r = 0; r < tokens.size(); ++r) {
      if (!chosen.empty()) {
        const auto first = chosen.begin() + static_cast<std::ptrdiff_t>(r * top_k);
        if (routes.sets[r] != std::set<std::int64_t>(first, first + static_cast<std::ptrdiff_t>(top_k))) continue;
      }
      ++agreeing;
      const auto at = static_cast<std::ptrdiff_t>(r) * h;
      actual_rows.insert(actual_rows.end(), x.begin() + at, x.begin() + at + h);
      expected_rows.insert(expected_rows.end(), expected.begin() + at, expected.begin() + at + h);
    }
    EXPECT_GE(agreeing, rows * 9 / 10) << "layer " << layer;
    expect_close(actual_rows, expected_rows, kBlockLimit, fmt::format("{} block {}", name, layer));
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, GoldenBlocks,
                         testing::Combine(testing::ValuesIn(golden_variants()), testing::ValuesIn(available_isas())),
                         [](const auto& test) {
                           return fmt::format("{}_{}", std::get<0>(test.param), name_of(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace calandra
