// The bf16 products of AVX-512 on emulated intrinsics: the source of isa_avx512_bf16.cpp.

#include "emulated_avx512.h"
#include "implementations.h"

#if defined(CALANDRA_EMULATES_AVX512)

#include "kernels/lanes_avx512.inl"

#include "kernels/table_bf16.inl"

namespace calandra {

extern const Kernels kEmulatedAvx512Kernels;

const Kernels* emulated_avx512_bf16_kernels() {
  static const Kernels kTable = make_bf16_table<kEmulatedAvx512Kernels>();
  return &kTable;
}

}  // namespace calandra

#else

namespace calandra {

const Kernels* emulated_avx512_bf16_kernels() { return nullptr; }

}  // namespace calandra

#endif
