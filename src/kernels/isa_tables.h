#pragma once
// The tables that this build contains, one a translation unit.

#include "kernels/kernels.h"

namespace calandra {

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
const Kernels& avx512_bf16_kernels();  // built from the one before
#endif

}  // namespace calandra
