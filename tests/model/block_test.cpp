// bf16 activations against the golden data, block by block: each block is fed with the golden hidden state of the block before.

#include "model/harness.h"

#include <gtest/gtest.h>

#include <algorithm>
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

/// Those rows of values [rows, width].
std::vector<float> rows_that(const std::vector<bool>& agrees, std::span<const float> values) {
  std::vector<float> kept;
  const std::size_t width = values.size() / agrees.size();
  for (std::size_t r = 0; r < agrees.size(); ++r) {
    const auto row = values.subspan(r * width, width);
    if (agrees[r]) kept.insert(kept.end(), row.begin(), row.end());
  }
  return kept;
}

class GoldenBlocks : public testing::TestWithParam<std::tuple<std::string, Isa>> {
 protected:
  /// Compares the rows whose routing set is the golden one; they are at least nine of ten.
  void expect_near(std::span<const float> actual, const std::string& expected, const std::string& router, const Routes& routes) {
    const auto rows = static_cast<std::size_t>(golden_.shape(expected)[0]);
    std::vector<bool> agrees(rows, true);
    if (golden_.contains(router)) {
      const auto chosen = golden_.ints(router);
      const std::size_t top_k = chosen.size() / rows;
      ASSERT_EQ(routes.sets.size(), rows) << router;
      for (std::size_t r = 0; r < rows; ++r) {
        const auto row = std::span(chosen).subspan(r * top_k, top_k);
        agrees[r] = routes.sets[r] == std::set(row.begin(), row.end());
      }
    }
    EXPECT_GE(std::ranges::count(agrees, true), static_cast<std::ptrdiff_t>(rows * 9 / 10)) << expected;
    expect_close(rows_that(agrees, actual), rows_that(agrees, golden_.floats(expected)), kBlockLimit, expected);
  }

  TestModel model_{std::get<0>(GetParam()), std::get<1>(GetParam()), Activations::Bf16};
  GoldenTensors golden_ = GoldenTensors::load(golden_path(std::get<0>(GetParam())) / "golden.safetensors");
};

TEST_P(GoldenBlocks, Bf16StaysNearTheGoldenStateWhereRoutingAgrees) {
  const auto ids = golden_.ints("input_ids");
  const std::vector<std::int32_t> tokens(ids.begin(), ids.end());
  const auto rows = static_cast<std::int64_t>(tokens.size());
  const std::int64_t h = model_.config().hidden;
  for (std::int64_t layer = 0; layer < model_.config().layers; ++layer) {
    const auto pool = model_.pool(1, rows);
    const auto memory = SequenceMemory::create(*pool);
    ASSERT_TRUE(memory->reserve(rows));
    std::vector<float> x = layer == 0 ? model_.embedded(tokens) : golden_.floats(fmt::format("hidden.{}", layer - 1));
    const Slice slice{memory.get(), tokens};
    Routes routes;
    model_.pass().block(layer, {x.data(), rows, h, h}, std::span(&slice, 1), &routes);
    expect_near(x, fmt::format("hidden.{}", layer), fmt::format("router.{}.ids", layer), routes);
  }
}

TEST_P(GoldenBlocks, Bf16MtpStaysNearTheGoldenStateWhereRoutingAgrees) {
  if (!golden_.contains("mtp.hidden")) GTEST_SKIP() << "no MTP layer";
  const auto ids = golden_.ints("mtp.next_ids");
  const std::vector<std::int32_t> next(ids.begin(), ids.end());
  const auto rows = static_cast<std::int64_t>(next.size());
  const std::int64_t h = model_.config().hidden;
  const auto pool = model_.pool(1, rows);
  const auto memory = SequenceMemory::create(*pool);
  ASSERT_TRUE(memory->reserve(rows));
  const auto hidden = golden_.floats("hidden.final_norm");
  Routes routes;
  const MtpSlice slice{memory.get(), 0, next};
  const ConstRows u = model_.pass().mtp(std::span(&slice, 1), {hidden.data(), rows, h, h}, &routes);
  expect_near({u.data, static_cast<std::size_t>(rows * h)}, "mtp.hidden", "mtp.router.ids", routes);
}

INSTANTIATE_TEST_SUITE_P(Variants, GoldenBlocks,
                         testing::Combine(testing::ValuesIn(golden_variants()), testing::ValuesIn(available_isas())),
                         [](const auto& test) {
                           return fmt::format("{}_{}", std::get<0>(test.param), name_of(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace calandra
