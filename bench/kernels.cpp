// Times every kernel case of tests/kernels/cases.h with every instruction set of this processor, on one thread.
//   build/release/bench/bench_kernels --benchmark_filter='matmul.*Mxfp4.*avx2'
// Counters: bytes a second of the operand that a decoded token waits for (weights, state, latents), operations a second.

#include "kernels/cases.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

namespace calandra {
namespace {

// Copies of a weight that a decoded token would read from memory: more than the caches of today's processors hold.
constexpr std::int64_t kBytesBeyondCaches = std::int64_t{128} << 20;
// Rows from which a product is bound by arithmetic: one weight, which stays in the cache.
constexpr std::int64_t kRowsOfAPrompt = 16;

void count(benchmark::State& state, std::int64_t bytes, std::int64_t operations) {
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["operations"] = benchmark::Counter(static_cast<double>(state.iterations() * operations),
                                                    benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

/// The same stored weight at several places.
class Weights {
 public:
  Weights(Random& random, const MatmulCase& c, std::int64_t copies) : weight_(make_weight(random, c)) {
    const std::size_t size = weight_.data.size();
    data_.resize(size * static_cast<std::size_t>(copies));
    for (std::int64_t i = 0; i < copies; ++i) {
      std::byte* const at = data_.data() + static_cast<std::size_t>(i) * size;
      std::ranges::copy(weight_.data.span(), at);
      views_.push_back(weight_.view);
      views_.back().data = at;
    }
  }
  const WeightMatrix& next() { return views_[at_++ % views_.size()]; }

 private:
  StoredWeight weight_;
  std::vector<std::byte> data_;
  std::vector<WeightMatrix> views_;
  std::size_t at_ = 0;
};

void time_matmul(benchmark::State& state, const Kernels& kernels, const MatmulCase& c) {
  Random random(1);
  const bool decoding = c.rows < kRowsOfAPrompt;
  Weights weights(random, c, decoding ? ceil_div(kBytesBeyondCaches, c.weight_bytes()) : 1);
  const Guarded<float> x(normal_values(random, c.rows * c.cols));
  Guarded<float> y(static_cast<std::size_t>(c.rows * c.outputs));
  for ([[maybe_unused]] auto _ : state) {
    kernels.matmul(weights.next(), rows_of(x, c.rows), rows_of(y, c.rows), 0, c.outputs);
    benchmark::ClobberMemory();
  }
  count(state, c.weight_bytes(), c.operations());
}

void time_kda(benchmark::State& state, const Kernels& kernels, const KdaCase& c) {
  Random random(2);
  KdaData data = make_kda(random, c);
  for ([[maybe_unused]] auto _ : state) {
    kernels.kda_recurrence(data.steps(), data.state.data(), 0, c.value_dim);
    benchmark::ClobberMemory();
  }
  count(state, c.state_bytes(), c.operations());
}

void time_mla(benchmark::State& state, const Kernels& kernels, const MlaCase& c) {
  Random random(3);
  const CacheData cache = make_cache(random, c.cache);
  const Guarded<float> q(normal_values(random, c.heads * c.cache.width()));
  Guarded<float> out(static_cast<std::size_t>(c.heads * c.cache.latent_dim));
  const float scale = 1.0f / std::sqrt(192.0f);
  for ([[maybe_unused]] auto _ : state) {
    kernels.mla_attend({1, c.heads, q.data(), 0, out.data(), 0}, cache.rows, c.cache.positions, scale);
    benchmark::ClobberMemory();
  }
  count(state, c.latent_bytes(), c.operations());
}

template <class Case>
void add(const std::string& kernel, const Case& c, void (*time)(benchmark::State&, const Kernels&, const Case&)) {
  for (const Isa isa : available_isas()) {
    const Kernels& kernels = kernels_for(isa);
    const std::string name = kernel + " " + c.name() + " " + std::string(name_of(isa));
    benchmark::RegisterBenchmark(name.c_str(), [time, &kernels, c](benchmark::State& state) { time(state, kernels, c); });
  }
}

void add_all() {
  for (MatmulCase c : released_matmuls()) {
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{4}, kRowsOfAPrompt, std::int64_t{64}}) {
      c.rows = rows;
      add("matmul", c, time_matmul);
    }
  }
  for (const KdaCase& c : kReleasedKda) add("kda", c, time_kda);
  for (const MlaCase& c : kReleasedMla) add("mla", c, time_mla);
}

}  // namespace
}  // namespace calandra

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  calandra::add_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
