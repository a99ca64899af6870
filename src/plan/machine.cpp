#include "plan/machine.h"

#include "base/cores.h"
#include "base/error.h"
#include "plan/available_memory.h"

#include <sys/mman.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace calandra {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWordsPerStep = 64;  // a step of the reading loops: eight cache lines
constexpr std::int64_t kLeastReadBytes = std::int64_t{16} << 20;
constexpr double kSecondsOfArithmetic = 0.02;  // of a try

// ---------------------------------------------------------------- loops

// Fused multiply-adds in chains that do not wait for each other: enough of them to hide the latency of an operation, few enough for
// the registers. x = x / 2 + 1 stays near 2 for ever.
constexpr int kChains = 12;

/// A processor without wide instructions, or one we have none for: what the compiler makes of it.
float multiply_and_add(std::int64_t rounds) {
  constexpr int kWidth = 4;
  std::array<float, std::size_t{kChains} * kWidth> x{};
  volatile float half = 0.5f, one = 1.0f;
  const float a = half, b = one;
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (float& value : x) value = value * a + b;
  }
  float sum = 0;
  for (const float value : x) sum += value;
  return sum;
}
constexpr std::int64_t kPlainOperations = std::int64_t{kChains} * 4 * 2;

std::uint64_t sum_plain(const std::uint64_t* words, std::int64_t count) {
  std::array<std::uint64_t, 8> sums{};
  for (std::int64_t i = 0; i < count; i += 8) {
    for (std::int64_t j = 0; j < 8; ++j) sums[static_cast<std::size_t>(j)] += words[i + j];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t value : sums) sum += value;
  return sum;
}

#if defined(__x86_64__)

/// Of registers in memory.
float sum_of_floats(const void* registers, std::size_t bytes) {
  std::array<float, std::size_t{kChains} * 16> values{};
  std::memcpy(values.data(), registers, bytes);
  return std::accumulate(values.begin(), values.end(), 0.0f);
}

__attribute__((target("avx2,fma"))) float fma_avx2(std::int64_t rounds) {
  volatile float half = 0.5f, one = 1.0f;
  const __m256 a = _mm256_set1_ps(half), b = _mm256_set1_ps(one);
  __m256 x[kChains];
  for (__m256& value : x) value = _mm256_setzero_ps();
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (__m256& value : x) value = _mm256_fmadd_ps(value, a, b);
  }
  return sum_of_floats(x, sizeof(x));
}

__attribute__((target("avx512f"))) float fma_avx512(std::int64_t rounds) {
  volatile float half = 0.5f, one = 1.0f;
  const __m512 a = _mm512_set1_ps(half), b = _mm512_set1_ps(one);
  __m512 x[kChains];
  for (__m512& value : x) value = _mm512_setzero_ps();
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (__m512& value : x) value = _mm512_fmadd_ps(value, a, b);
  }
  return sum_of_floats(x, sizeof(x));
}

__attribute__((target("avx512f,avx512bf16"))) float dot_bf16(std::int64_t rounds) {
  volatile float half = 0.5f, one = 1.0f;
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(half), _mm512_set1_ps(half));
  const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(one), _mm512_set1_ps(one));
  __m512 x[kChains];
  for (__m512& value : x) value = _mm512_setzero_ps();
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (__m512& value : x) value = _mm512_dpbf16_ps(value, a, b);
  }
  return sum_of_floats(x, sizeof(x));
}

__attribute__((target("avx2"))) std::uint64_t sum_avx2(const std::uint64_t* words, std::int64_t count) {
  __m256i sums[8];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (std::int64_t i = 0; i < count; i += kWordsPerStep) {
    for (std::int64_t line = 0; line < 8; ++line) {  // 64 bytes are two loads here
      const std::uint64_t* at = words + i + line * 8;
      const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 4));
      sums[line] = _mm256_add_epi64(sums[line], _mm256_add_epi64(low, high));
    }
  }
  std::uint64_t all[4];
  std::uint64_t total = 0;
  for (const __m256i& sum : sums) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(all), sum);
    for (const std::uint64_t part : all) total += part;
  }
  return total;
}

__attribute__((target("avx512f"))) std::uint64_t sum_avx512(const std::uint64_t* words, std::int64_t count) {
  __m512i sums[8];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (std::int64_t i = 0; i < count; i += kWordsPerStep) {
    for (std::int64_t line = 0; line < 8; ++line)
      sums[line] = _mm512_add_epi64(sums[line], _mm512_loadu_si512(words + i + line * 8));
  }
  std::uint64_t all[8];
  std::uint64_t total = 0;
  for (const __m512i& sum : sums) {
    _mm512_storeu_si512(all, sum);
    for (const std::uint64_t part : all) total += part;
  }
  return total;
}

#endif

struct Arithmetic {
  std::string_view name;
  float (*run)(std::int64_t rounds);
  std::int64_t operations;  // of a round
};

Arithmetic arithmetic_of(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::Avx2: return {"fp32 multiply-adds", fma_avx2, std::int64_t{kChains} * 8 * 2};
    case Isa::Avx512: return {"fp32 multiply-adds", fma_avx512, std::int64_t{kChains} * 16 * 2};
    case Isa::Avx512Bf16: return {"bf16 dot products", dot_bf16, std::int64_t{kChains} * 32 * 2};
#endif
    default: return {"fp32 multiplications and additions", multiply_and_add, kPlainOperations};
  }
}

// ---------------------------------------------------------------- threads

struct Best {
  double seconds = std::numeric_limits<double>::infinity();
  bool pinned = true;
};

/// Runs prepare(thread) once and then body(thread) `tries` times on every thread at the same time: the shortest time in which all were done.
Best best_of(int threads, int tries, const std::function<void(int)>& prepare, const std::function<void(int)>& body) {
  enum class Gate : std::uint8_t { Closed, Open, Cancelled };
  const std::vector<int> cores = usable_cores();
  Best best;
  std::atomic<bool> pinned = std::cmp_greater_equal(cores.size(), threads);
  std::atomic<Gate> gate = Gate::Closed;
  std::barrier together(threads);
  const auto work = [&](int thread) {
    gate.wait(Gate::Closed);
    if (gate.load() == Gate::Cancelled) return;
    const CorePin pin(cores[static_cast<std::size_t>(thread) % cores.size()]);
    if (!pin.holds()) pinned = false;
    prepare(thread);
    for (int i = 0; i < tries; ++i) {
      together.arrive_and_wait();
      const auto start = Clock::now();
      body(thread);
      together.arrive_and_wait();
      if (thread == 0) best.seconds = std::min(best.seconds, std::chrono::duration<double>(Clock::now() - start).count());
    }
  };
  std::vector<std::thread> workers;
  const auto open_gate = [&](Gate how) {
    gate = how;
    gate.notify_all();
    for (std::thread& worker : workers) worker.join();
  };
  try {
    for (int thread = 0; thread < threads; ++thread) workers.emplace_back(work, thread);
  } catch (const std::system_error& error) {
    open_gate(Gate::Cancelled);
    fail("{} threads to measure the machine with: cannot start number {}: {}", threads, workers.size() + 1, error.what());
  }
  open_gate(Gate::Open);
  best.pinned = pinned;
  return best;
}

// ---------------------------------------------------------------- measurements

struct Unmap {
  std::size_t bytes = 0;
  void operator()(std::uint64_t* words) const { ::munmap(words, bytes); }
};
using Mapping = std::unique_ptr<std::uint64_t, Unmap>;

Mapping map_words(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) fail("{} bytes to measure the memory with: {}", bytes, std::strerror(errno));
  ::madvise(at, size, MADV_HUGEPAGE);  // or part of the time goes to finding pages
  return Mapping(static_cast<std::uint64_t*>(at), Unmap{size});
}

void measure_bandwidth(const MachineOptions& options, MachineLimits& limits) {
  const std::int64_t bytes = bytes_to_read(options.read_bytes, available_memory_bytes(), options.threads);
  limits.read_bytes = bytes;
  limits.short_of_memory = bytes < bytes_to_read(options.read_bytes, std::numeric_limits<std::int64_t>::max(), options.threads);
  const Mapping words = map_words(bytes);
  const std::int64_t count = bytes / 8 / options.threads;  // words of a thread
  std::atomic<std::uint64_t> sum = 0;
  const Best best = best_of(
      options.threads, options.tries, [&](int thread) { std::fill_n(words.get() + thread * count, count, std::uint64_t{1}); },
      [&](int thread) {
        sum += sum_of_words(options.isa, {words.get() + thread * count, static_cast<std::size_t>(count)});
      });
  if (sum != static_cast<std::uint64_t>(options.threads * count) * static_cast<std::uint64_t>(options.tries))
    fail("memory: read {} words of 1 and their sum is {}", options.threads * count * options.tries, sum.load());
  limits.pinned = best.pinned;
  limits.bytes_per_second = static_cast<double>(bytes) / best.seconds;
}

void measure_arithmetic(const MachineOptions& options, MachineLimits& limits) {
  const Arithmetic arithmetic = arithmetic_of(options.isa);
  std::atomic<float> sink = 0;  // or the loop could be left out
  std::int64_t rounds = 1 << 16;
  const auto run = [&](int) { sink = arithmetic.run(rounds); };
  const double seconds = best_of(
                             options.threads, 2, [](int) {}, run)
                             .seconds;
  rounds = std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(rounds) * kSecondsOfArithmetic / seconds));
  const Best best = best_of(
      options.threads, options.tries, [](int) {}, run);
  limits.arithmetic = arithmetic.name;
  limits.operations_per_second = static_cast<double>(arithmetic.operations * rounds * options.threads) / best.seconds;
}

}  // namespace

std::int64_t bytes_to_read(std::int64_t wanted, std::int64_t available, int threads) {
  const std::int64_t step = kWordsPerStep * 8 * threads;
  const std::int64_t bytes = std::min(wanted, available / 2) / step * step;
  if (bytes < std::min(wanted, kLeastReadBytes) / step * step || bytes == 0) {
    fail("memory to measure its speed with: found {} bytes available, expected at least {}", available, 2 * kLeastReadBytes);
  }
  return bytes;
}

std::uint64_t sum_of_words(Isa isa, std::span<const std::uint64_t> words) {
  const auto count = static_cast<std::int64_t>(words.size());
  if (count % kWordsPerStep != 0) fail("{} words to add up: expected a multiple of {}", count, kWordsPerStep);
  switch (isa) {
#if defined(__x86_64__)
    case Isa::Avx2: return sum_avx2(words.data(), count);
    case Isa::Avx512:
    case Isa::Avx512Bf16: return sum_avx512(words.data(), count);
#endif
    default: return sum_plain(words.data(), count);
  }
}

MachineLimits measure_machine(const MachineOptions& options) {
  if (options.threads < 1) fail("threads to measure the machine with: found {}, expected at least 1", options.threads);
  if (options.tries < 1) fail("tries of a measurement: found {}, expected at least 1", options.tries);
  MachineLimits limits;
  limits.threads = options.threads;
  limits.tries = options.tries;
  limits.isa = options.isa;
  measure_bandwidth(options, limits);
  measure_arithmetic(options, limits);
  return limits;
}

}  // namespace calandra
