#pragma once
// Puts a server under load and notes what each request shows. One thread, which does little else than wait: how late it sent what
// was due is part of the result.

#include "loadtest/load_result.h"

#include <functional>

namespace calandra {

/// Finds out the model, the fields that the server takes and how it counts tokens; warms it up; then one level after the other.
/// `progress` gets the part of all that is done, 0 to 1, ten times a second; false ends the measurement, and what was measured
/// until then is the result. A server that stops answering ends it too (LoadResult::gone). Throws Error if the server cannot be
/// asked at all.
LoadResult run_load(const LoadOptions& options, const std::function<bool(double done)>& progress = {});

}  // namespace calandra
