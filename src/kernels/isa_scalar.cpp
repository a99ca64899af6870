// The formulas on plain arrays, for any processor.

#include "kernels/isa_tables.h"

#include "kernels/lanes_scalar.inl"

#include "kernels/table.inl"

namespace calandra {

constexpr Kernels kScalarKernels = make_table(Isa::Scalar);

}  // namespace calandra
