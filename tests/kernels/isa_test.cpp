// Choice of the instruction set.

#include "implementations.h"
#include "support/golden.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>

namespace calandra {
namespace {

/// Sets CALANDRA_ISA for one scope.
class IsaVariable {
 public:
  explicit IsaVariable(const char* value) { setenv("CALANDRA_ISA", value, 1); }
  ~IsaVariable() { unsetenv("CALANDRA_ISA"); }
  IsaVariable(const IsaVariable&) = delete;
  IsaVariable& operator=(const IsaVariable&) = delete;
};

TEST(Isa, TheFastestAvailableIsChosenUnlessTheEnvironmentSaysOtherwise) {
  unsetenv("CALANDRA_ISA");
  EXPECT_EQ(available_isas().front(), Isa::Scalar);
  EXPECT_EQ(choose_isa(), available_isas().back());
  for (const Isa isa : available_isas()) {
    const IsaVariable variable(std::string(name_of(isa)).c_str());
    EXPECT_EQ(choose_isa(), isa);
    EXPECT_EQ(kernels_for(isa).isa, isa);
  }
}

TEST(Isa, AnUnknownOrMissingSetIsRefusedByName) {
  const IsaVariable variable("avx3");
  EXPECT_EQ(error_of([] { choose_isa(); }).find("CALANDRA_ISA: found \"avx3\", expected one that this processor runs: scalar"),
            0u);
  for (const Isa isa : {Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16}) {
    if (std::ranges::count(available_isas(), isa) > 0) continue;
    EXPECT_EQ(error_of([&] { kernels_for(isa); }).find("instruction set " + std::string(name_of(isa)) + ": not available"), 0u);
  }
}

TEST(Isa, TheAvx512SourceIsTestedOnEveryProcessor) {
  for (const Isa isa : {Isa::Avx512, Isa::Avx512Bf16}) {
    EXPECT_TRUE(std::ranges::any_of(implementations(), [isa](const Implementation& found) { return found->isa == isa; }))
        << "install libsimde-dev";
  }
}

}  // namespace
}  // namespace calandra
