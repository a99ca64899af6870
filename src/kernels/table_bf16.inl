// The table of a processor with a bf16 dot product: products of rounded activations use it, all else is the AVX-512 table's.
// Included once, after the lanes of AVX-512.

#include "kernels/lanes.inl"

#include "kernels/weights.inl"

#include "kernels/factors_bf16.inl"

#include "kernels/matmul.inl"

namespace calandra {
namespace {

/// `fp32` is the table of the same processor in float32: it also multiplies with weights that have more digits than bf16.
template <const Kernels& fp32>
void matmul_bf16(const WeightMatrix& w, const Inputs& x, Rows y, std::int64_t begin, std::int64_t end) {
  const bool exact = w.format == WeightFormat::F32 || w.format == WeightFormat::F16;
  exact ? fp32.matmul(w, x, y, begin, end) : matmul(w, x, y, begin, end);
}

template <const Kernels& fp32>
Kernels make_bf16_table() {
  Kernels table = fp32;
  table.isa = Isa::Avx512Bf16;
  table.packed_row_bytes = packed_row_bytes;
  table.pack = pack;
  table.matmul = matmul_bf16<fp32>;
  return table;
}

}  // namespace
}  // namespace calandra
