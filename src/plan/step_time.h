#pragma once
// How long a step takes, learned from those that were:
//
//     seconds = bytes x seconds_per_byte + operations x seconds_per_operation,   neither of them negative,
//
// by least squares of relative errors, so that a prompt of a second counts no more than a token of milliseconds; what was noted long ago
// counts for less and less. An error is relative to the time that was measured: a step that the machine held up for ten times its
// time has a hundredth of the weight of the others and moves next to nothing, while a machine that has become slower is followed.
//
// Steps that are all alike do not tell bytes from operations. Then it is the bytes that take the time: the estimate leans slightly
// towards no time for operations, by so much that a step of another kind is remembered for some hundreds of those that are alike.
//
// Sums of five products: noting and asking take nanoseconds. One thread at a time.

#include "plan/cost.h"

namespace calandra {

class StepTime {
 public:
  /// A step of this cost took so long. Passed over if either is not positive: nothing can be learned from it.
  void note(const StepCost& cost, double seconds);

  /// Before anything was noted in bytes: good for comparing steps, and no seconds.
  double seconds(const StepCost& cost) const;
  double seconds(double bytes, double operations) const {
    return bytes * seconds_per_byte_ + operations * seconds_per_operation_;
  }

  double seconds_per_byte() const { return seconds_per_byte_; }
  double seconds_per_operation() const { return seconds_per_operation_; }

 private:
  void fit();

  double seconds_per_byte_ = 1;
  double seconds_per_operation_ = 0;

  // Sums over the steps, newer ones with more weight: of 1, and of bytes and operations over the measured seconds.
  double steps_ = 0;
  double bytes_ = 0;
  double operations_ = 0;
  double bytes_squared_ = 0;
  double operations_squared_ = 0;
  double bytes_operations_ = 0;
};

}  // namespace calandra
