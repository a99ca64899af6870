#pragma once
// The choice of experts, the same code for every instruction set: comparisons, and sums in a fixed order.

#include "kernels/kernels.h"

#include <cstdint>
#include <span>

namespace calandra {

using SigmoidFunction = void (*)(std::span<const float> x, std::span<float> y);

/// Kernels::route, with the instruction set's sigmoid. NaN ranks below everything.
void route_with(SigmoidFunction sigmoid, std::span<const float> logits, std::span<const float> bias,
                const RouterParameters& parameters, std::span<std::int32_t> ids, std::span<float> weights);

}  // namespace calandra
