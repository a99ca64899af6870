// The formulas in AVX-512. Compiled with flags of its own (cmake/kernel_isas.cmake).

#include "kernels/isa_tables.h"

#include <immintrin.h>

#include "kernels/lanes_avx512.inl"

#include "kernels/table.inl"

namespace calandra {

constexpr Kernels kAvx512Kernels = make_table(Isa::Avx512);

}  // namespace calandra
