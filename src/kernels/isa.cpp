#include "kernels/isa_tables.h"

#include "base/error.h"

#include <cstdlib>
#include <string>

namespace calandra {
namespace {

/// Null if this build has no such table. Runs code of that instruction set.
const Kernels* table_of(Isa isa) {
  switch (isa) {
    case Isa::Scalar: return &kScalarKernels;
#if defined(__x86_64__)
    case Isa::Avx2: return &kAvx2Kernels;
    case Isa::Avx512: return &kAvx512Kernels;
    case Isa::Avx512Bf16: return &avx512_bf16_kernels();
#else
    case Isa::Avx2:
    case Isa::Avx512:
    case Isa::Avx512Bf16: return nullptr;
#endif
  }
  return nullptr;
}

/// Whether processor and operating system can run what the flags in cmake/kernel_isas.cmake allow.
bool processor_has(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // F16C is older than AVX2 and comes with it in every processor that has both.
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  switch (isa) {
    case Isa::Scalar: return true;
    case Isa::Avx2: return avx2;
    case Isa::Avx512: return avx512;
    case Isa::Avx512Bf16: return avx512 && __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
  }
  return false;
#else
  return isa == Isa::Scalar;
#endif
}

const Kernels* usable_table(Isa isa) { return processor_has(isa) ? table_of(isa) : nullptr; }

constexpr Isa kAllIsas[] = {Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16};

std::string names_of(const std::vector<Isa>& isas) {
  std::string names;
  for (const Isa isa : isas) names += (names.empty() ? "" : ", ") + std::string(name_of(isa));
  return names;
}

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::Scalar: return "scalar";
    case Isa::Avx2: return "avx2";
    case Isa::Avx512: return "avx512";
    case Isa::Avx512Bf16: return "avx512bf16";
  }
  return "unknown";
}

std::vector<Isa> available_isas() {
  std::vector<Isa> available;
  for (const Isa isa : kAllIsas) {
    if (usable_table(isa) != nullptr) available.push_back(isa);
  }
  return available;
}

Isa choose_isa() {
  const std::vector<Isa> available = available_isas();
  const char* wanted = std::getenv("CALANDRA_ISA");
  if (wanted == nullptr || *wanted == '\0') return available.back();
  for (const Isa isa : available) {
    if (name_of(isa) == wanted) return isa;
  }
  fail("CALANDRA_ISA: found \"{}\", expected one that this processor runs: {}", wanted, names_of(available));
}

const Kernels& kernels_for(Isa isa) {
  const Kernels* table = usable_table(isa);
  if (table == nullptr) {
    fail("instruction set {}: not available, this processor runs {}", name_of(isa), names_of(available_isas()));
  }
  return *table;
}

}  // namespace calandra
