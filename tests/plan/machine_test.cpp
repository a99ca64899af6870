// What the machine can do: that all of the memory is read, and that what is said of it is possible. Speeds are nobody's promise.

#include "plan/machine.h"

#include "base/cores.h"
#include "support/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>

namespace calandra {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

TEST(Machine, EveryWordIsReadByEveryInstructionSet) {
  std::mt19937_64 random(1);
  for (const std::size_t size : {0U, 64U, 128U, 640U, 4096U}) {
    std::vector<std::uint64_t> words(size);
    std::uint64_t expected = 0;
    for (std::uint64_t& word : words) expected += word = random();
    for (const Isa isa : available_isas()) EXPECT_EQ(sum_of_words(isa, words), expected) << name_of(isa) << " " << size;
  }
  const std::vector<std::uint64_t> ragged(65);
  EXPECT_THAT(error_of([&] { sum_of_words(Isa::Scalar, ragged); }), HasSubstr("65 words"));
}

TEST(Machine, LimitsArePossibleOnesAndSayWhatWasMeasured) {
  for (const Isa isa : available_isas()) {
    for (const int threads : {1, 3}) {
      const MachineLimits limits = measure_machine({.threads = threads, .isa = isa, .read_bytes = 48 << 20, .tries = 2});
      EXPECT_EQ(limits.isa, isa);
      EXPECT_EQ(limits.threads, threads);
      EXPECT_EQ(limits.pinned, std::cmp_less_equal(threads, usable_cores().size()));
      EXPECT_EQ(limits.read_bytes, 48 << 20);
      EXPECT_FALSE(limits.short_of_memory);
      // From the slowest memory bus of a computer that runs this to the fastest caches of one; from 10 MFLOP/s, emulated, to 100 TFLOP/s.
      EXPECT_GT(limits.bytes_per_second, 1e7);
      EXPECT_LT(limits.bytes_per_second, 1e14);
      EXPECT_GT(limits.operations_per_second, 1e7);
      EXPECT_LT(limits.operations_per_second, 1e14);
      EXPECT_FALSE(limits.arithmetic.empty());
    }
  }
}

TEST(Machine, OnlyKernelsThatMultiplyInBf16AreMeasuredByItsDotProduct) {
  for (const Isa isa : available_isas()) {
    const MachineLimits limits = measure_machine({.threads = 1, .isa = isa, .read_bytes = 16 << 20, .tries = 1});
    EXPECT_EQ(limits.arithmetic == "bf16 dot products", isa == Isa::Avx512Bf16) << limits.arithmetic;
  }
}

TEST(Machine, AtMostHalfOfTheMemoryIsReadInWholeStepsOfEveryThread) {
  constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;
  EXPECT_EQ(bytes_to_read(2 * kGibibyte, 64 * kGibibyte, 2), 2 * kGibibyte);
  EXPECT_EQ(bytes_to_read(2 * kGibibyte, 3 * kGibibyte, 2), 3 * kGibibyte / 2);
  const std::int64_t for_three = bytes_to_read(2 * kGibibyte, 64 * kGibibyte, 3);
  EXPECT_EQ(for_three % (3 * 512), 0);
  EXPECT_GT(for_three, 2 * kGibibyte - 3 * 512);
  EXPECT_THAT(error_of([] { bytes_to_read(2 * kGibibyte, 1'000'000, 1); }), HasSubstr("found 1000000 bytes available"));
}

TEST(Machine, NothingToMeasureWithIsAnError) {
  EXPECT_THAT(error_of([] { measure_machine({.threads = 0}); }), HasSubstr("found 0, expected at least 1"));
  EXPECT_THAT(error_of([] { measure_machine({.threads = 1, .tries = 0}); }), HasSubstr("found 0, expected at least 1"));
}

}  // namespace
}  // namespace calandra
