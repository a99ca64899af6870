#include "kernels/scratch.h"

#include "base/aligned.h"

#include <cstddef>

namespace calandra {

float* scratch(ScratchUse use, std::int64_t count) {
  thread_local AlignedArray<float> buffers[5];
  AlignedArray<float>& buffer = buffers[static_cast<std::size_t>(use)];
  if (buffer.size() < static_cast<std::size_t>(count)) buffer = AlignedArray<float>(static_cast<std::size_t>(count));
  return buffer.data();  // NOLINT(clang-analyzer-unix.Malloc): not freed here, but when the thread ends
}

}  // namespace calandra
