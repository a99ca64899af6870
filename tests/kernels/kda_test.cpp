// The gated delta rule: golden data, float64, any cut of the tokens, and the faults that others met.

#include "cases.h"
#include "implementations.h"
#include "support/golden.h"

#include <gtest/gtest.h>

#include <cmath>

namespace calandra {
namespace {

/// Runs all tokens in calls of the given lengths, all channels at once.
void run(const Kernels& kernels, KdaData& data, const std::vector<std::int64_t>& lengths) {
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    kernels.kda_recurrence(data.steps(begin, length), data.state.data(), 0, data.shape.value_dim);
    begin += length;
  }
}
void run(const Kernels& kernels, KdaData& data) { run(kernels, data, {data.shape.tokens}); }

/// The rule in float64, as it is written in kernels.h.
struct Reference {
  std::vector<double> state;
  std::vector<double> o;
};
Reference reference(KdaData& data) {
  const std::int64_t K = data.shape.key_dim;
  const std::int64_t V = data.shape.value_dim;
  Reference out;
  for (const float value : data.state.span()) out.state.push_back(static_cast<double>(value));
  for (std::int64_t t = 0; t < data.shape.tokens; ++t) {
    for (std::int64_t v = 0; v < V; ++v) {
      double predicted = 0;
      for (std::int64_t d = 0; d < K; ++d) {
        double& s = out.state[static_cast<std::size_t>(d * V + v)];
        s *= static_cast<double>(data.decay(t)[d]);
        predicted += s * static_cast<double>(data.k(t)[d]);
      }
      const double update =
          static_cast<double>(data.beta[static_cast<std::size_t>(t)]) * (static_cast<double>(data.v(t)[v]) - predicted);
      double o = 0;
      for (std::int64_t d = 0; d < K; ++d) {
        double& s = out.state[static_cast<std::size_t>(d * V + v)];
        s += static_cast<double>(data.k(t)[d]) * update;
        o += s * static_cast<double>(data.q(t)[d]);
      }
      out.o.push_back(o);
    }
  }
  return out;
}

std::vector<float> to_floats(const std::vector<double>& values) { return {values.begin(), values.end()}; }

/// Head `head` of a golden case of `tokens` tokens; decays are exp(g).
KdaData golden_head(const GoldenTensors& golden, const std::string& name, std::int64_t head, std::int64_t tokens) {
  const Shape k_shape = golden.shape(name + "/k");
  const Shape v_shape = golden.shape(name + "/v");
  const std::int64_t heads = k_shape[1];
  const KdaCase shape = {tokens, k_shape[2], v_shape[2]};
  const std::vector<float> state = golden.floats(name + "/state");
  const auto state_size = static_cast<std::size_t>(shape.key_dim * shape.value_dim);
  KdaData data{shape, Guarded<float>(static_cast<std::size_t>(tokens * (3 * shape.key_dim + shape.value_dim))),
               Guarded<float>(static_cast<std::size_t>(tokens)),
               Guarded<float>(std::span(state).subspan(static_cast<std::size_t>(head) * state_size, state_size)),
               Guarded<float>(static_cast<std::size_t>(tokens * shape.value_dim))};
  const auto copy = [&](const char* tensor, std::int64_t width, auto to) {
    const std::vector<float> values = golden.floats(name + tensor);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t i = 0; i < width; ++i) to(t)[i] = values[static_cast<std::size_t>((t * heads + head) * width + i)];
    }
  };
  copy("/q", shape.key_dim, [&](std::int64_t t) { return data.q(t); });
  copy("/k", shape.key_dim, [&](std::int64_t t) { return data.k(t); });
  copy("/g", shape.key_dim, [&](std::int64_t t) { return data.decay(t); });
  copy("/v", shape.value_dim, [&](std::int64_t t) { return data.v(t); });
  copy("/beta", 1, [&](std::int64_t t) { return data.beta.data() + t; });
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t d = 0; d < shape.key_dim; ++d) data.decay(t)[d] = std::exp(data.decay(t)[d]);
  }
  return data;
}

struct GoldenCase {
  std::string name;
  std::vector<std::int64_t> lengths;
  double limit;
};

TEST(KdaGolden, EveryCaseAtEveryLength) {
  const GoldenTensors golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  const std::vector<GoldenCase> cases = {{"kda_lengths", {1, 15, 16, 17, 63, 64, 65, 130}, 1e-5},
                                         {"kda_128", {80}, 1e-5},
                                         {"kda_bound", {64, 130}, 1e-5},
                                         {"kda_mixed", {16, 96}, 1e-5},
                                         {"kda_no_decay", {65}, 1e-5},
                                         {"kda_unbounded", {70}, 3e-5}};
  for (const GoldenCase& c : cases) {
    const std::int64_t heads = golden.shape(c.name + "/k")[1];
    const std::vector<float> outputs = golden.floats(c.name + "/o");
    for (const std::int64_t length : c.lengths) {
      const std::vector<float> states = golden.floats(c.name + "/state_" + std::to_string(length));
      for (const Implementation& implementation : implementations()) {
        std::vector<float> state;
        std::vector<float> o(static_cast<std::size_t>(length * heads) * static_cast<std::size_t>(golden.shape(c.name + "/v")[2]));
        for (std::int64_t head = 0; head < heads; ++head) {
          KdaData data = golden_head(golden, c.name, head, length);
          run(*implementation.kernels, data);
          state.insert(state.end(), data.state.span().begin(), data.state.span().end());
          const std::int64_t V = data.shape.value_dim;
          for (std::int64_t t = 0; t < length; ++t) {
            std::memcpy(o.data() + (t * heads + head) * V, data.o.data() + t * V, static_cast<std::size_t>(V) * sizeof(float));
          }
        }
        const std::string what = implementation.name + " " + c.name + " " + std::to_string(length);
        expect_close_to_largest(state, states, c.limit, what + " state");
        expect_close_to_largest(o, std::span(outputs).first(o.size()), c.limit, what + " output");
      }
    }
  }
}

TEST(KdaGolden, SpecificationVectorFromRawQueriesAndKeys) {
  const GoldenTensors golden = GoldenTensors::load(golden_path("kernels.safetensors"));
  const std::vector<float> q = golden.floats("spec_kda/q_raw");
  const std::vector<float> k = golden.floats("spec_kda/k_raw");
  const std::vector<float> v = golden.floats("spec_kda/v");
  const std::vector<float> g = golden.floats("spec_kda/g");
  const std::vector<float> states = golden.floats("spec_kda/state_after_each");
  for (const Implementation& implementation : implementations()) {
    KdaData data{
        {3, 2, 2}, Guarded<float>(24), Guarded<float>(golden.floats("spec_kda/beta")), Guarded<float>(4), Guarded<float>(6)};
    for (std::int64_t t = 0; t < 3; ++t) {
      const auto at = static_cast<std::size_t>(2 * t);
      implementation->l2_normalise(std::span(q).subspan(at, 2), std::sqrt(0.5f), {data.q(t), 2});
      implementation->l2_normalise(std::span(k).subspan(at, 2), 1.0f, {data.k(t), 2});
      for (std::size_t i = 0; i < 2; ++i) {
        data.decay(t)[i] = std::exp(g[at + i]);
        data.v(t)[i] = v[at + i];
      }
      implementation->kda_recurrence(data.steps(t, 1), data.state.data(), 0, 2);
      expect_close_to_largest(data.state.span(), std::span(states).subspan(2 * at, 4), 1e-6, implementation.name + " state");
    }
    expect_close_to_largest(data.o.span(), golden.floats("spec_kda/o"), 1e-6, implementation.name + " output");
  }
}

TEST(Kda, AnyCutOfTokensAnyShapeAndEveryInstructionSetGiveTheSameBits) {
  Random random(1);
  for (const KdaCase& c : {KdaCase{29, 128, 128}, KdaCase{22, 64, 64}, KdaCase{17, 32, 48}, KdaCase{9, 33, 16}, KdaCase{12, 7, 2},
                           KdaCase{5, 300, 40}}) {
    const KdaData original = make_kda(random, c);
    KdaData expected = original.clone();
    run(kernels_for(Isa::Scalar), expected);
    for (const Implementation& implementation : implementations()) {
      const std::string what = implementation.name + " K " + std::to_string(c.key_dim) + " V " + std::to_string(c.value_dim);
      for (int round = 0; round < 4; ++round) {
        std::vector<std::int64_t> lengths = {c.tokens};  // whole, then one by one, then at random
        if (round == 1) lengths.assign(static_cast<std::size_t>(c.tokens), 1);
        if (round > 1) {
          lengths.clear();
          for (std::int64_t left = c.tokens; left > 0; left -= lengths.back()) lengths.push_back(uniform_int(random, 1, left));
        }
        KdaData data = original.clone();
        run(*implementation.kernels, data, lengths);
        expect_same_bits(data.o.span(), expected.o.span(), what + " output");
        expect_same_bits(data.state.span(), expected.state.span(), what + " state");
      }
      KdaData blocks = original.clone();  // block after block of channels, the last first
      for (std::int64_t begin = (c.value_dim - 1) / 32 * 32; begin >= 0; begin -= 32) {
        implementation->kda_recurrence(blocks.steps(), blocks.state.data(), begin, std::min(begin + 32, c.value_dim));
      }
      expect_same_bits(blocks.o.span(), expected.o.span(), what + " in blocks");
    }
  }
}

TEST(Kda, MatchesFloat64) {
  Random random(2);
  std::vector<KdaCase> cases(kReleasedKda.begin(), kReleasedKda.end());
  cases.push_back({40, 33, 50});
  for (const KdaCase& c : cases) {
    SCOPED_TRACE(c.name());
    const KdaData original = make_kda(random, c);
    KdaData input = original.clone();
    const Reference expected = reference(input);
    for (const Implementation& implementation : implementations()) {
      KdaData data = original.clone();
      run(*implementation.kernels, data);
      expect_close_to_largest(data.o.span(), to_floats(expected.o), 1e-6, implementation.name + " output");
      expect_close_to_largest(data.state.span(), to_floats(expected.state), 1e-6, implementation.name + " state");
    }
  }
}

TEST(Kda, NoTokensLeaveTheStateAsItIs) {
  Random random(3);
  KdaData data = make_kda(random, {1, 32, 32});
  const std::vector<float> before = data.state.copy();
  for (const Implementation& implementation : implementations()) {
    implementation->kda_recurrence(data.steps(0, 0), data.state.data(), 0, 32);
    expect_same_bits(data.state.span(), before, implementation.name);
  }
}

// ------------------------------------------------------------------------- faults that users of other engines met

void set_decay(KdaData& data, float decay) {
  for (std::int64_t t = 0; t < data.shape.tokens; ++t) std::fill_n(data.decay(t), data.shape.key_dim, decay);
}

void expect_matches_reference(KdaData& original, double limit) {
  const Reference expected = reference(original);
  for (const Implementation& implementation : implementations()) {
    KdaData data = original.clone();
    run(*implementation.kernels, data);
    expect_close_to_largest(data.o.span(), to_floats(expected.o), limit, implementation.name + " output");
    expect_close_to_largest(data.state.span(), to_floats(expected.state), limit, implementation.name + " state");
  }
}

TEST(Kda, EveryGateAtTheBoundFor64TokensStaysExact) {
  Random random(95);
  KdaData data = make_kda(random, {64, 128, 128});
  set_decay(data, std::exp(-5.0f));
  expect_matches_reference(data, 1e-5);
}

TEST(Kda, DecaysThatUnderflowToZeroGiveNoNotANumber) {
  Random random(96);
  KdaData data = make_kda(random, {64, 32, 32});
  set_decay(data, 0.0f);
  expect_matches_reference(data, 1e-5);
  set_decay(data, std::numeric_limits<float>::denorm_min());
  expect_matches_reference(data, 1e-5);
}

TEST(Kda, OutputsOfAPrefixDoNotDependOnLaterGates) {
  Random random(97);
  KdaData original = make_kda(random, {22, 32, 32});
  KdaData changed = original.clone();
  std::fill_n(changed.decay(21), 32, 0.01f);
  for (const Implementation& implementation : implementations()) {
    KdaData a = original.clone();
    KdaData b = changed.clone();
    run(*implementation.kernels, a);
    run(*implementation.kernels, b);
    const std::size_t prefix = 21 * 32;
    expect_same_bits(a.o.span().first(prefix), b.o.span().first(prefix), implementation.name);
    EXPECT_NE(a.o[prefix], b.o[prefix]) << implementation.name;
  }
}

TEST(Kda, LengthsAroundAChunkReadNothingPastTheirTokens) {
  Random random(98);
  for (const std::int64_t tokens : {1, 63, 65}) {  // every operand ends at a forbidden page
    KdaData data = make_kda(random, {tokens, 32, 48});
    expect_matches_reference(data, 1e-5);
  }
}

TEST(Kda, DecaysNearOneKeepTheirDistanceFromOne) {
  Random random(103);
  KdaData data = make_kda(random, {4096, 16, 4});
  set_decay(data, 0.99992f);
  expect_matches_reference(data, 3e-5);
}

TEST(Kda, TheStateDoesNotDriftOver8KDecodeSteps) {
  Random random(104);
  KdaData original = make_kda(random, {8192, 16, 4});
  const Reference expected = reference(original);
  double exact_norm = 0;
  for (const double value : expected.state) exact_norm += value * value;
  for (const Implementation& implementation : implementations()) {
    KdaData data = original.clone();
    run(*implementation.kernels, data, std::vector<std::int64_t>(8192, 1));
    double norm = 0;
    for (const float value : data.state.span()) norm += static_cast<double>(value) * static_cast<double>(value);
    EXPECT_NEAR(std::sqrt(norm / exact_norm), 1.0, 1e-6) << implementation.name;
  }
}

TEST(Kda, OutputsBeyondTheRangeOfHalvesStayExact) {
  Random random(106);
  KdaData data = make_kda(random, {32, 32, 32});
  set_decay(data, 1.0f);
  for (float& value : data.state.span()) value *= 1e6f;
  const Reference expected = reference(data);
  EXPECT_GT(*std::ranges::max_element(expected.o), 65504.0);
  expect_matches_reference(data, 1e-5);
}

}  // namespace
}  // namespace calandra
