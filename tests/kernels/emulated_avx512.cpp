// The AVX-512 kernels on emulated intrinsics: the source of isa_avx512.cpp.

#include "emulated_avx512.h"
#include "implementations.h"

#if defined(CALANDRA_EMULATES_AVX512)

#include "kernels/lanes_avx512.inl"

#include "kernels/table.inl"

namespace calandra {

extern const Kernels kEmulatedAvx512Kernels;  // the bf16 table is built from it
constexpr Kernels kEmulatedAvx512Kernels = make_table(Isa::Avx512);

const Kernels* emulated_avx512_kernels() { return &kEmulatedAvx512Kernels; }

}  // namespace calandra

#else

namespace calandra {

const Kernels* emulated_avx512_kernels() { return nullptr; }

}  // namespace calandra

#endif
