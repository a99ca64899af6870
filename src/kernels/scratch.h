#pragma once
// Memory that a kernel needs between its steps: buffers of a thread, kept from call to call.

#include <cstdint>

namespace calandra {

/// Kernels that call each other have buffers of their own.
enum class ScratchUse : std::uint8_t { Panel, Packed, State, Attention, Trial };

/// At least `count` floats on a cache line, of any content, until the thread's next call for the same use. Throws
/// std::bad_alloc.
float* scratch(ScratchUse use, std::int64_t count);

}  // namespace calandra
