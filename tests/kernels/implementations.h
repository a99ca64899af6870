#pragma once
// The kernel tables that tests run: every instruction set of this processor, and the AVX-512 source on emulated
// intrinsics, so that it is tested everywhere.

#include "kernels/kernels.h"

#include <string>
#include <vector>

namespace calandra {

/// The AVX-512 tables compiled against an emulation of their intrinsics; null if the emulation's headers are missing.
const Kernels* emulated_avx512_kernels();
const Kernels* emulated_avx512_bf16_kernels();

struct Implementation {
  std::string name;
  const Kernels* kernels = nullptr;

  const Kernels* operator->() const { return kernels; }
};

/// Scalar first.
inline const std::vector<Implementation>& implementations() {
  static const std::vector<Implementation> all = [] {
    std::vector<Implementation> found;
    for (const Isa isa : available_isas()) found.push_back({std::string(name_of(isa)), &kernels_for(isa)});
    if (emulated_avx512_kernels() != nullptr) {
      found.push_back({"emulated avx512", emulated_avx512_kernels()});
      found.push_back({"emulated avx512bf16", emulated_avx512_bf16_kernels()});
    }
    return found;
  }();
  return all;
}

/// Those that multiply in float32: for rows that have not been rounded to bf16.
inline const std::vector<Implementation>& fp32_implementations() {
  static const std::vector<Implementation> some = [] {
    std::vector<Implementation> found = implementations();
    std::erase_if(found, [](const Implementation& implementation) { return implementation->isa == Isa::Avx512Bf16; });
    return found;
  }();
  return some;
}

}  // namespace calandra
