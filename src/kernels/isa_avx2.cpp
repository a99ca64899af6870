// The formulas in AVX2. Compiled with flags of its own (cmake/kernel_isas.cmake).

#include "kernels/isa_tables.h"

#include "kernels/lanes_avx2.inl"

#include "kernels/table.inl"

namespace calandra {

constexpr Kernels kAvx2Kernels = make_table(Isa::Avx2);

}  // namespace calandra
