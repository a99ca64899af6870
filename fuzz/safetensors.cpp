// Any bytes as a safetensors file: read or refused, every view inside the bytes.

#include "tensor/safetensors.h"
#include "base/error.h"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  try {
    for (const auto& [name, view] : calandra::parse_safetensors(file, "fuzz").tensors) {
      const bool inside = view.data.empty() ||
                          (view.data.data() >= file.data() && view.data.data() + view.data.size() <= file.data() + file.size());
      if (!inside || std::ssize(view.data) != calandra::num_bytes(view.type, view.shape)) std::abort();
    }
  } catch (const calandra::Error&) {
  }
  return 0;
}
