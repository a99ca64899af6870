#pragma once
// Memory that a kernel needs between its steps: one buffer a thread, kept from call to call.

#include <cstdint>

namespace calandra {

/// At least `count` floats on a cache line, of any content, until the thread's next call. Throws std::bad_alloc.
float* scratch(std::int64_t count);

}  // namespace calandra
