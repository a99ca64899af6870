#include "plan/step_time.h"

#include <algorithm>
#include <cmath>

namespace calandra {
namespace {

// Of the weight of a step that the one after it leaves: about a hundred steps are remembered.
constexpr double kRemembered = 0.99;

// Nothing makes a step take a tenth of its time but a clock that jumps. Time that is too short weighs much, so it counts as half of
// what was expected, once there is something to expect it from; a machine that has become faster is still followed.
constexpr double kLeastOfExpected = 0.5;
constexpr double kStepsToExpectFrom = 8;

// By how much the estimate leans towards no time for operations, relative to their sum of squares: half where their share of the steps'
// cost varies by 3%, a thousandth where decodes and prompts are among the steps.
constexpr double kLeaning = 1e-3;

}  // namespace

void StepTime::note(const StepCost& cost, double seconds) {
  const double bytes = static_cast<double>(cost.bytes()), operations = static_cast<double>(cost.operations());
  if (!(bytes > 0) || !(seconds > 0) || !std::isfinite(seconds)) return;
  if (steps_ >= kStepsToExpectFrom) seconds = std::max(seconds, kLeastOfExpected * this->seconds(bytes, operations));
  const double b = bytes / seconds, o = operations / seconds;
  const auto add = [](double& sum, double value) { sum = sum * kRemembered + value; };
  add(steps_, 1);
  add(bytes_, b);
  add(operations_, o);
  add(bytes_squared_, b * b);
  add(operations_squared_, o * o);
  add(bytes_operations_, b * o);
  fit();
}

double StepTime::seconds(const StepCost& cost) const {
  return seconds(static_cast<double>(cost.bytes()), static_cast<double>(cost.operations()));
}

/// The least of sum (b x + o y - 1)^2 over x, y >= 0. It is convex: if its minimum has a negative part, the least is where that is 0.
void StepTime::fit() {
  const double operations_squared = operations_squared_ * (1 + kLeaning);
  const double determinant = bytes_squared_ * operations_squared - bytes_operations_ * bytes_operations_;
  seconds_per_byte_ = bytes_ / bytes_squared_;
  seconds_per_operation_ = 0;
  const double of_operations = operations_ * bytes_squared_ - bytes_ * bytes_operations_;
  if (!(determinant > 0) || of_operations <= 0) return;
  const double of_bytes = bytes_ * operations_squared - operations_ * bytes_operations_;
  seconds_per_byte_ = std::max(0.0, of_bytes / determinant);
  seconds_per_operation_ = of_bytes > 0 ? of_operations / determinant : operations_ / operations_squared;
}

}  // namespace calandra
