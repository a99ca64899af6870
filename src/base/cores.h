#pragma once
// Cores of the processor: which of them a thread may use, and keeping it on one.

#include <array>
#include <optional>
#include <vector>

#include <sched.h>

namespace calandra {

/// Numbers of the cores that the calling thread may run on, rising; never none. What taskset or a cpuset forbids is not in the list.
std::vector<int> usable_cores();

/// Keeps the calling thread on one core while it lives; after that the thread may run where it could before. To be destroyed by the same
/// thread. Asks the system for no memory.
class CorePin {
 public:
  /// Does nothing without a core, for a core that the thread may not use, and where the system does not permit it.
  explicit CorePin(std::optional<int> core);
  ~CorePin();
  CorePin(const CorePin&) = delete;
  CorePin& operator=(const CorePin&) = delete;

  bool holds() const { return holds_; }

  /// 8,192 cores: the most that Linux can be built for.
  using CoreSet = std::array<cpu_set_t, 8>;

 private:
  CoreSet before_;  // filled if the pin holds
  bool holds_ = false;
};

}  // namespace calandra
