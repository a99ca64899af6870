// Products in AVX512_BF16 and AVX512_VBMI. Compiled with flags of its own (cmake/kernel_isas.cmake).

#include "kernels/isa_tables.h"

#include <immintrin.h>

#include "kernels/lanes_avx512.inl"

#include "kernels/table_bf16.inl"

namespace calandra {

const Kernels& avx512_bf16_kernels() {
  static const Kernels kTable = make_bf16_table<kAvx512Kernels>();
  return kTable;
}

}  // namespace calandra
