// Norms, gates, activations, convolution, RoPE and the cache's number formats: against golden data and float64.

#include "cases.h"
#include "implementations.h"
#include "support/golden.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace calandra {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

GoldenTensors load_golden() { return GoldenTensors::load(golden_path("kernels.safetensors")); }

/// Applies a function of rows of `width` values.
std::vector<float> each_row(const std::vector<float>& x, std::size_t width,
                            const std::function<void(std::span<const float>, std::span<float>, std::size_t)>& function) {
  std::vector<float> out;
  for (std::size_t row = 0; row < x.size() / width; ++row) {
    const Guarded<float> in{std::span(x).subspan(row * width, width)};
    Guarded<float> result(width);
    function(in.span(), result.span(), row);
    out.insert(out.end(), result.span().begin(), result.span().end());
  }
  return out;
}

TEST(ElementwiseGolden, RmsNorm) {
  const GoldenTensors golden = load_golden();
  const Guarded<float> w(golden.floats("rms_norm/w"));
  for (const Implementation& implementation : implementations()) {
    const auto y = each_row(golden.floats("rms_norm/x"), 96,
                            [&](auto in, auto out, std::size_t) { implementation->rms_norm(in, w.span(), 1e-6f, out); });
    expect_close_to_largest(y, golden.floats("rms_norm/y"), 1e-5, implementation.name);
  }
}

TEST(ElementwiseGolden, L2Normalise) {
  const GoldenTensors golden = load_golden();
  const std::vector<float> expected = golden.floats("l2_normalise/y");
  for (const Implementation& implementation : implementations()) {
    const auto y = each_row(golden.floats("l2_normalise/x"), 128,
                            [&](auto in, auto out, std::size_t) { implementation->l2_normalise(in, 1.0f, out); });
    expect_close_to_largest(y, expected, 1e-5, implementation.name);
  }
}

TEST(ElementwiseGolden, GatedRmsNorm) {
  const GoldenTensors golden = load_golden();
  for (const std::string name : {"gated_norm", "spec_gated_norm"}) {
    const std::vector<float> weights = golden.floats(name + "/w");
    const Guarded<float> w(weights);
    const std::vector<float> gates = golden.floats(name + "/gate");
    for (const Implementation& implementation : implementations()) {
      const auto y = each_row(golden.floats(name + "/o"), weights.size(), [&](auto in, auto out, std::size_t row) {
        const Guarded<float> gate{std::span(gates).subspan(row * weights.size(), weights.size())};
        implementation->gated_rms_norm(in, w.span(), gate.span(), 1e-6f, out);
      });
      expect_close_to_largest(y, golden.floats(name + "/y"), 1e-5, implementation.name + " " + name);
    }
  }
}

/// [P, 4] or [P, 3] as the kernel wants it, the first index last.
std::vector<float> transpose(const std::vector<float>& x, std::size_t rows) {
  std::vector<float> out;
  for (std::size_t c = 0; c < x.size() / rows; ++c) {
    for (std::size_t r = 0; r < rows; ++r) out.push_back(x[r * (x.size() / rows) + c]);
  }
  return out;
}

TEST(ElementwiseGolden, ShortConvolution) {
  const GoldenTensors golden = load_golden();
  for (const std::string name : {"spec_conv", "conv_1", "conv_2", "conv_3", "conv_21"}) {
    const Shape shape = golden.shape(name + "/x");
    const auto channels = static_cast<std::size_t>(shape[1]);
    const Guarded<float> x(golden.floats(name + "/x"));
    const Guarded<float> w(transpose(golden.floats(name + "/w"), channels));
    const Guarded<float> history(transpose(golden.floats(name + "/tail"), channels));
    for (const Implementation& implementation : implementations()) {
      Guarded<float> y(x.size());
      implementation->short_conv(rows_of(x, shape[0]), rows_of(w, 4), rows_of(history, 3), rows_of(y, shape[0]), 0, shape[1]);
      expect_close_to_largest(y.span(), golden.floats(name + "/y"), 1e-5, implementation.name + " " + name);
    }
  }
}

TEST(ElementwiseGolden, SwigluLimits) {
  const GoldenTensors golden = load_golden();
  const std::vector<std::pair<std::string, float>> limits = {
      {"y_0", 0.0f}, {"y_0_5", 0.5f}, {"y_4", 4.0f}, {"y_7", 7.0f}, {"y_10", 10.0f}};
  const std::vector<float> spec_limits = golden.floats("spec_clamp/limit");
  for (const Implementation& implementation : implementations()) {
    const Guarded<float> g(golden.floats("swiglu_limits/g"));
    const Guarded<float> u(golden.floats("swiglu_limits/u"));
    for (const auto& [name, limit] : limits) {
      Guarded<float> y(g.size());
      implementation->swiglu(g.span(), u.span(), limit, y.span());
      expect_close_to_largest(y.span(), golden.floats("swiglu_limits/" + name), 1e-5, implementation.name + " " + name);
    }
    const Guarded<float> spec_g(golden.floats("spec_clamp/g"));
    const Guarded<float> spec_u(golden.floats("spec_clamp/u"));
    Guarded<float> y(spec_g.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      implementation->swiglu(spec_g.span().subspan(i, 1), spec_u.span().subspan(i, 1), spec_limits[i], y.span().subspan(i, 1));
    }
    expect_close_to_largest(y.span(), golden.floats("spec_clamp/y"), 1e-5, implementation.name + " spec_clamp");
  }
}

TEST(ElementwiseGolden, RopeRotatesAdjacentPairs) {
  const GoldenTensors golden = load_golden();
  struct Case {
    std::string name;
    double factor;
    std::string frequencies;
  };
  const std::vector<Case> cases = {{"rope_pairs", 1.0, "spec_rope/inv_freq"},
                                   {"rope_yarn_2x", 1.0693147180559945, "rope_yarn_2x/inv_freq"},
                                   {"rope_yarn_small", 1.138629436111989, "rope_yarn_small/inv_freq"},
                                   {"rope_yarn_mscale", 1.094179988101349, "rope_yarn_mscale/inv_freq"}};
  for (const Case& c : cases) {
    const std::vector<float> x = golden.floats(c.name + "/x");
    const std::vector<float> y = golden.floats(c.name + "/y");
    const std::vector<std::int64_t> positions = golden.ints(c.name + "/positions");
    const std::vector<float> frequencies = golden.floats(c.frequencies);
    const std::size_t dim = 2 * frequencies.size();
    const std::size_t heads = x.size() / dim / positions.size();
    for (const Implementation& implementation : implementations()) {
      for (std::size_t t = 0; t < positions.size(); ++t) {
        if (positions[t] > 4096) continue;  // frequencies rounded to float serve small positions only
        std::vector<float> cos;
        std::vector<float> sin;
        for (const float frequency : frequencies) {
          const double angle = static_cast<double>(positions[t]) * static_cast<double>(frequency);
          cos.push_back(static_cast<float>(std::cos(angle) * c.factor));
          sin.push_back(static_cast<float>(std::sin(angle) * c.factor));
        }
        for (std::size_t head = 0; head < heads; ++head) {
          const std::size_t at = (t * heads + head) * dim;
          Guarded<float> values{std::span(x).subspan(at, dim)};
          implementation->rope(values.span(), cos, sin);
          expect_close_to_largest(values.span(), std::span(y).subspan(at, dim), 1e-4, implementation.name + " " + c.name);
        }
      }
    }
  }
}

TEST(ElementwiseGolden, KdaDecayOfBothLaws) {
  const GoldenTensors golden = load_golden();
  for (const std::string name : {"gate", "spec_gate"}) {
    const std::vector<float> rates = golden.floats(name + "/a_log");
    const std::vector<float> f = golden.floats(name + "/f");
    const std::vector<float> bias = golden.floats(name + "/dt_bias");
    const std::size_t channels = bias.size() / rates.size();
    for (const bool bounded : {true, false}) {
      std::vector<float> expected;
      for (const float g : golden.floats(name + (bounded ? "/g_safe" : "/g_unbounded")))
        expected.push_back(static_cast<float>(std::exp(static_cast<double>(g))));
      for (const Implementation& implementation : implementations()) {
        const auto decay = each_row(f, channels, [&](auto in, auto out, std::size_t row) {
          const std::size_t head = row % rates.size();
          const Guarded<float> head_bias{std::span(bias).subspan(head * channels, channels)};
          implementation->kda_decay(in, head_bias.span(), std::exp(rates[head]), bounded, -5.0f, out);
        });
        expect_close_to_largest(decay, expected, 1e-5, implementation.name + " " + name);
      }
    }
  }
}

TEST(ElementwiseGolden, Bf16RoundingAndStoringMatchEveryPattern) {
  const GoldenTensors golden = load_golden();
  const Guarded<float> x(golden.floats("bf16_encode/x"));
  const std::vector<float> expected = golden.floats("bf16_encode/codes");
  const std::span<const std::byte> patterns = golden.bytes("bf16_encode/codes");
  for (const Implementation& implementation : implementations()) {
    Guarded<float> rounded(x.span());
    implementation->round_bf16(rounded.span());
    expect_same_bits(rounded.span(), expected, implementation.name);
    Guarded<std::byte> stored(2 * x.size());
    implementation->store_cache(x.span(), CacheType::BF16, stored.data());
    EXPECT_TRUE(std::ranges::equal(stored.span(), patterns)) << implementation.name;
    Guarded<float> loaded(x.size());
    implementation->load_cache(stored.data(), CacheType::BF16, loaded.span());
    expect_same_bits(loaded.span(), expected, implementation.name);
  }
}

TEST(Elementwise, Bf16KeepsNotANumberAndInfinity) {
  for (const Implementation& implementation : implementations()) {
    std::vector<float> x = {kInfinity, -kInfinity, kNan, std::bit_cast<float>(0x7F800001u), std::bit_cast<float>(0xFFFFFFFFu)};
    implementation->round_bf16(x);
    EXPECT_EQ(x[0], kInfinity);
    EXPECT_EQ(x[1], -kInfinity);
    for (std::size_t i = 2; i < x.size(); ++i) EXPECT_TRUE(std::isnan(x[i])) << implementation.name << " " << i;
  }
}

TEST(Elementwise, AnFp8CacheRowIsWithinHalfACodeOfItsNumbers) {
  Random random(2);
  for (const float size : {1e-30f, 1.0f, 3e20f}) {
    Guarded<float> x(normal_values(random, 53, size));
    x[7] = -9 * size;
    x[8] = 0.0f;
    for (const Implementation& implementation : implementations()) {
      Guarded<std::byte> stored(static_cast<std::size_t>(cache_row_bytes(CacheType::Fp8, 53)));
      implementation->store_cache(x.span(), CacheType::Fp8, stored.data());
      Guarded<float> loaded(x.size());
      implementation->load_cache(stored.data(), CacheType::Fp8, loaded.span());
      EXPECT_FLOAT_EQ(loaded[7], -9 * size) << implementation.name;  // the largest is code 448
      EXPECT_EQ(loaded[8], 0.0f) << implementation.name;
      for (std::size_t i = 0; i < x.size(); ++i) {
        // 3 bits of mantissa: half a unit is 2^-4 of the number, or of the smallest normal one (2^-6 beside 448).
        const float bound = std::max(std::fabs(x[i]), 9 * size / 448 * 0x1p-6f) * 0x1.00001p-4f;
        EXPECT_LE(std::fabs(loaded[i] - x[i]), bound) << implementation.name << " " << i;
      }
    }
  }
}

TEST(Elementwise, AnFp8CacheRowOfZerosIsZero) {
  for (const Implementation& implementation : implementations()) {
    const std::vector<float> zeros(20);
    std::vector<std::byte> stored(24, std::byte{0xFF});
    implementation->store_cache(zeros, CacheType::Fp8, stored.data());
    std::vector<float> loaded(20, 1.0f);
    implementation->load_cache(stored.data(), CacheType::Fp8, loaded);
    EXPECT_EQ(loaded, zeros) << implementation.name;
  }
}

TEST(Elementwise, AFloat32CacheKeepsEveryBitAtAnyAddress) {
  Random random(1);
  const Guarded<float> x(normal_values(random, 37));
  for (const Implementation& implementation : implementations()) {
    Guarded<std::byte> stored(4 * x.size() + 1);
    implementation->store_cache(x.span(), CacheType::F32, stored.data() + 1);
    Guarded<float> loaded(x.size());
    implementation->load_cache(stored.data() + 1, CacheType::F32, loaded.span());
    expect_same_bits(loaded.span(), x.span(), implementation.name);
  }
}

// ------------------------------------------------------------------------------- accuracy of functions of one variable

double exact_sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

/// Values all over the range, dense near 0, and their exact function values compared relatively; below the normal numbers
/// by one step of a subnormal.
void expect_accurate(const std::vector<float>& x, const std::vector<float>& y, const std::function<double(double)>& exact,
                     double limit, const std::string& what) {
  double worst = 0;
  float where = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = exact(static_cast<double>(x[i]));
    const double error = std::fabs(static_cast<double>(y[i]) - expected) / std::max(std::fabs(expected), 0x1p-149 / limit);
    if (!(error <= worst)) {
      worst = error;
      where = x[i];
    }
  }
  EXPECT_LE(worst, limit) << what << " at " << where;
}

std::vector<float> argument_grid() {
  std::vector<float> x;
  for (int i = -52000; i <= 52000; ++i) x.push_back(static_cast<float>(i) / 400.0f);
  for (int exponent = -126; exponent < 5; ++exponent) {
    for (const float mantissa : {1.0f, 1.37f, 1.9f}) {
      x.push_back(std::ldexp(mantissa, exponent));
      x.push_back(-std::ldexp(mantissa, exponent));
    }
  }
  return x;
}

TEST(Elementwise, SigmoidAndSiluAreAccurateOverTheWholeRange) {
  const Guarded<float> x(argument_grid());
  const std::vector<float> ones(x.size(), 1.0f);
  for (const Implementation& implementation : implementations()) {
    std::vector<float> y(x.size());
    implementation->sigmoid(x.span(), y);
    expect_accurate(x.copy(), y, exact_sigmoid, 3e-7, implementation.name + " sigmoid");
    implementation->swiglu(x.span(), ones, 0.0f, y);
    // Below -87 the sigmoid itself is subnormal and keeps few bits.
    std::vector<float> silu_x;
    std::vector<float> silu_y;
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (x[i] < -87.0f) continue;
      silu_x.push_back(x[i]);
      silu_y.push_back(y[i]);
    }
    expect_accurate(
        silu_x, silu_y, [](double v) { return v * exact_sigmoid(v); }, 3e-7, implementation.name + " silu");
  }
}

TEST(Elementwise, ExponentialOfSoftplusIsAccurate) {
  // exp(-1 * softplus(x)) = sigmoid(-x), and exp(-lambda * sigmoid(.)) with sigmoid = 1/2 exactly gives exp(-lambda / 2).
  const Guarded<float> x(argument_grid());
  const std::vector<float> zeros(x.size(), 0.0f);
  for (const Implementation& implementation : implementations()) {
    std::vector<float> y(x.size());
    implementation->kda_decay(x.span(), zeros, 1.0f, false, 0.0f, y);
    std::vector<float> kept_x;
    std::vector<float> kept_y;
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (x[i] > 16.0f) continue;  // beyond, the rounding of softplus(x) itself counts: |x| 2^-24
      kept_x.push_back(x[i]);
      kept_y.push_back(y[i]);
    }
    expect_accurate(
        kept_x, kept_y, [](double v) { return exact_sigmoid(-v); }, 2e-6, implementation.name + " exp(-softplus)");
    for (float lambda = 0.0f; lambda < 240.0f; lambda += 0.37f) {
      std::vector<float> one = {0.0f};
      implementation->kda_decay(one, std::vector<float>(1, 0.0f), 1.0f, true, -lambda, one);
      const double expected = std::exp(-static_cast<double>(lambda) / 2);
      EXPECT_LE(std::fabs(static_cast<double>(one[0]) - expected), std::max(1.2e-7 * expected, 0x1p-149))
          << implementation.name << " exp(" << -lambda / 2 << ")";
    }
  }
}

TEST(Elementwise, SoftplusKeepsRelativePrecisionWhereItIsTiny) {
  // decay = exp(-a softplus(f)): with a = e^12 and f near -12 the exponent is near -1, and errors of softplus show as they are.
  std::vector<float> f;
  for (int i = 0; i < 2000; ++i) f.push_back(-13.0f + static_cast<float>(i) / 1000.0f);
  const float a = std::exp(12.0f);
  const std::vector<float> zeros(f.size(), 0.0f);
  for (const Implementation& implementation : implementations()) {
    std::vector<float> y(f.size());
    implementation->kda_decay(f, zeros, a, false, 0.0f, y);
    for (std::size_t i = 0; i < f.size(); ++i) {
      const double softplus = -std::log(static_cast<double>(y[i])) / static_cast<double>(a);
      const double expected = std::log1p(std::exp(static_cast<double>(f[i])));
      ASSERT_NEAR(softplus / expected, 1.0, 1e-6) << implementation.name << " at " << f[i];
    }
  }
}

TEST(Elementwise, InfinitiesAndLargeArgumentsSaturate) {
  const std::vector<float> x = {200.0f, -200.0f, kInfinity, -kInfinity, 3e38f, -3e38f, 0.0f, kNan};
  const std::vector<float> ones(x.size(), 1.0f);
  const std::vector<float> zeros(x.size(), 0.0f);
  for (const Implementation& implementation : implementations()) {
    std::vector<float> y(x.size());
    implementation->sigmoid(x, y);
    EXPECT_EQ(std::vector<float>(y.begin(), y.end() - 1), (std::vector<float>{1, 0, 1, 0, 1, 0, 0.5f})) << implementation.name;
    EXPECT_TRUE(std::isnan(y.back())) << implementation.name;
    implementation->swiglu(x, ones, 0.0f, y);
    EXPECT_EQ(std::vector<float>(y.begin(), y.end() - 1), (std::vector<float>{200, 0, kInfinity, 0, 3e38f, 0, 0}))
        << implementation.name;
    EXPECT_TRUE(std::isnan(y.back())) << implementation.name;
    implementation->kda_decay(x, zeros, 1.0f, false, 0.0f, y);  // exp(-softplus(x))
    EXPECT_EQ(std::vector<float>(y.begin(), y.end() - 1), (std::vector<float>{0, 1, 0, 1, 0, 1, 0.5f})) << implementation.name;
    EXPECT_TRUE(std::isnan(y.back())) << implementation.name;
  }
}

// -------------------------------------------------------------------------------------- agreement of instruction sets

TEST(Elementwise, InstructionSetsAgreeBitForBitAtEveryLength) {
  Random random(2);
  const Kernels& scalar = kernels_for(Isa::Scalar);
  for (std::int64_t n = 1; n <= 70; ++n) {
    const auto size = static_cast<std::size_t>(n);
    const Guarded<float> x(normal_values(random, n, 3.0f));
    const Guarded<float> w(normal_values(random, n));
    const Guarded<float> gate(normal_values(random, n, 20.0f));
    const auto compare = [&](const char* what, const std::function<void(const Kernels&, std::span<float>)>& run) {
      Guarded<float> expected(w.span());
      run(scalar, expected.span());
      for (const Implementation& implementation : implementations()) {
        Guarded<float> y(w.span());
        run(*implementation.kernels, y.span());
        expect_same_bits(y.span(), expected.span(), implementation.name + " " + what + " of " + std::to_string(n));
      }
    };
    compare("rms_norm", [&](const Kernels& k, std::span<float> y) { k.rms_norm(x.span(), w.span(), 1e-6f, y); });
    compare("gated_rms_norm",
            [&](const Kernels& k, std::span<float> y) { k.gated_rms_norm(x.span(), w.span(), gate.span(), 1e-6f, y); });
    compare("l2_normalise", [&](const Kernels& k, std::span<float> y) { k.l2_normalise(x.span(), 0.25f, y); });
    compare("swiglu", [&](const Kernels& k, std::span<float> y) { k.swiglu(gate.span(), x.span(), 0.0f, y); });
    compare("limited swiglu", [&](const Kernels& k, std::span<float> y) { k.swiglu(gate.span(), x.span(), 2.0f, y); });
    compare("sigmoid", [&](const Kernels& k, std::span<float> y) { k.sigmoid(gate.span(), y); });
    compare("add_scaled", [&](const Kernels& k, std::span<float> y) { k.add_scaled(x.span(), 0.3f, y); });
    compare("round_bf16", [&](const Kernels& k, std::span<float> y) { k.round_bf16(y); });
    compare("bounded decay",
            [&](const Kernels& k, std::span<float> y) { k.kda_decay(gate.span(), w.span(), 1.7f, true, -5.0f, y); });
    compare("unbounded decay",
            [&](const Kernels& k, std::span<float> y) { k.kda_decay(gate.span(), w.span(), 1.7f, false, 0.0f, y); });
    compare("cache", [&](const Kernels& k, std::span<float> y) {
      Guarded<std::byte> stored(2 * size);
      k.store_cache(x.span(), CacheType::BF16, stored.data());
      k.load_cache(stored.data(), CacheType::BF16, y);
    });
    compare("fp8 cache", [&](const Kernels& k, std::span<float> y) {
      Guarded<std::byte> stored(size + 4);
      k.store_cache(x.span(), CacheType::Fp8, stored.data());
      k.load_cache(stored.data(), CacheType::Fp8, y);
    });
    compare("rope", [&](const Kernels& k, std::span<float> y) {
      const std::size_t pairs = size / 2;
      k.rope(y.first(2 * pairs), x.span().first(pairs), w.span().first(pairs));
    });
  }
}

TEST(Elementwise, FunctionsThatMayWorkInPlaceDo) {
  Random random(3);
  const std::vector<float> x = normal_values(random, 45);
  const std::vector<float> w = normal_values(random, 45);
  for (const Implementation& implementation : implementations()) {
    const auto compare = [&](const char* what, const std::function<void(std::span<const float>, std::span<float>)>& run) {
      std::vector<float> apart(x.size());
      run(x, apart);
      std::vector<float> in_place = x;
      run(in_place, in_place);
      expect_same_bits(in_place, apart, implementation.name + " " + what);
    };
    compare("rms_norm", [&](auto in, auto out) { implementation->rms_norm(in, w, 1e-6f, out); });
    compare("gated_rms_norm", [&](auto in, auto out) { implementation->gated_rms_norm(in, w, w, 1e-6f, out); });
    compare("l2_normalise", [&](auto in, auto out) { implementation->l2_normalise(in, 1.0f, out); });
    compare("swiglu", [&](auto in, auto out) { implementation->swiglu(in, w, 0.0f, out); });
    compare("sigmoid", [&](auto in, auto out) { implementation->sigmoid(in, out); });
    compare("kda_decay", [&](auto in, auto out) { implementation->kda_decay(in, w, 1.0f, true, -5.0f, out); });
  }
}

TEST(Elementwise, ConvolutionGivesTheSameBitsForAnyCutOfTokensOrChannels) {
  Random random(4);
  const std::int64_t tokens = 13;
  const std::int64_t channels = 83;
  const Guarded<float> x(normal_values(random, tokens * channels));
  const Guarded<float> w(normal_values(random, 4 * channels));
  const Guarded<float> history(normal_values(random, 3 * channels));
  std::vector<float> expected;
  for (const Implementation& implementation : implementations()) {
    Guarded<float> y(x.size());
    implementation->short_conv(rows_of(x, tokens), rows_of(w, 4), rows_of(history, 3), rows_of(y, tokens), 0, channels);
    if (expected.empty()) expected = y.copy();
    expect_same_bits(y.span(), expected, implementation.name);

    Guarded<float> cut(x.size());
    std::vector<float> all = history.copy();  // history and inputs as one sequence
    all.insert(all.end(), x.span().begin(), x.span().end());
    for (std::int64_t t = 0; t < tokens;) {
      const std::int64_t count = uniform_int(random, 1, tokens - t);
      const Guarded<float> before(
          std::span<const float>(all).subspan(static_cast<std::size_t>(t * channels), static_cast<std::size_t>(3 * channels)));
      const std::int64_t middle = uniform_int(random, 0, channels);
      for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, middle}, {middle, channels}}) {
        implementation->short_conv(rows_of(x, tokens).slice(t, count), rows_of(w, 4), rows_of(before, 3),
                                   rows_of(cut, tokens).slice(t, count), begin, end);
      }
      t += count;
    }
    expect_same_bits(cut.span(), expected, implementation.name + " in pieces");
  }
}

// ------------------------------------------------------------------------- faults that users of other engines met

TEST(Elementwise, TheBoundedLawIsASigmoidAndTinyVectorsKeepTheEpsilonInsideTheRoot) {
  for (const Implementation& implementation : implementations()) {
    const std::vector<float> f = {0.3f, -2.0f, 5.0f, -40.0f};
    const std::vector<float> bias = {0.1f, -1.0f, 0.5f, 3.0f};
    const float a = std::exp(0.7f);
    std::vector<float> decay(f.size());
    implementation->kda_decay(f, bias, a, true, -5.0f, decay);
    for (std::size_t i = 0; i < f.size(); ++i) {
      const double g = -5.0 * exact_sigmoid(static_cast<double>(a) * (static_cast<double>(f[i]) + static_cast<double>(bias[i])));
      EXPECT_NEAR(static_cast<double>(decay[i]), std::exp(g), 1e-6) << implementation.name;
    }
    const std::vector<float> tiny(128, 1e-5f);  // sum of squares 1.28e-8, far below the epsilon
    std::vector<float> unit(128);
    implementation->l2_normalise(tiny, 1.0f, unit);
    const double expected = 1e-5 / std::sqrt(128e-10 + 1e-6);
    for (const float value : unit) ASSERT_NEAR(static_cast<double>(value) / expected, 1.0, 1e-6) << implementation.name;
    const std::vector<float> zero(128, 0.0f);
    implementation->l2_normalise(zero, 1.0f, unit);
    for (const float value : unit) ASSERT_EQ(value, 0.0f) << implementation.name;
  }
}

TEST(Elementwise, SwigluLimitsCapTheActivatedGateAboveAndTheUpProjectionOnBothSides) {
  for (const Implementation& implementation : implementations()) {
    const std::vector<float> gate = {50.0f, 50.0f, 50.0f, -50.0f, 4.5f};
    const std::vector<float> up = {-50.0f, 50.0f, 3.0f, 3.0f, 1.0f};
    std::vector<float> y(gate.size());
    implementation->swiglu(gate, up, 7.0f, y);
    EXPECT_EQ(y[0], -49.0f) << implementation.name;
    EXPECT_EQ(y[1], 49.0f) << implementation.name;
    EXPECT_EQ(y[2], 21.0f) << implementation.name;
    EXPECT_NEAR(static_cast<double>(y[3]), 3 * -50 * exact_sigmoid(-50), 1e-25) << implementation.name;  // not capped from below
    implementation->swiglu(gate, up, 4.0f, y);
    EXPECT_EQ(y[4], 4.0f) << implementation.name;  // silu(4.5) = 4.45: capped after the activation, silu(4) would be 3.93
    implementation->swiglu(gate, up, 0.0f, y);
    EXPECT_EQ(y[1], 2500.0f) << implementation.name;
  }
}

}  // namespace
}  // namespace calandra
