#include "base/cores.h"

#include <algorithm>
#include <numeric>
#include <thread>

namespace calandra {
namespace {

using CoreSet = CorePin::CoreSet;

constexpr std::size_t kMostCores = sizeof(CoreSet) * 8;

/// Of the calling thread. The kernel fills as many bytes as it has cores for.
bool read_cores(CoreSet& set) {
  set = {};
  return ::sched_getaffinity(0, sizeof(set), set.data()) == 0;
}

bool has(const CoreSet& set, int core) {
  return core >= 0 && static_cast<std::size_t>(core) < kMostCores &&
         CPU_ISSET_S(static_cast<std::size_t>(core), sizeof(set), set.data());
}

}  // namespace

std::vector<int> usable_cores() {
  std::vector<int> cores;
  CoreSet set;
  if (read_cores(set)) {
    for (int core = 0; core < static_cast<int>(kMostCores); ++core) {
      if (has(set, core)) cores.push_back(core);
    }
  }
  if (cores.empty()) {
    cores.resize(std::max(1U, std::thread::hardware_concurrency()));
    std::iota(cores.begin(), cores.end(), 0);
  }
  return cores;
}

CorePin::CorePin(std::optional<int> core) {
  if (!core || !read_cores(before_) || !has(before_, *core)) return;
  CoreSet one = {};
  CPU_SET_S(static_cast<std::size_t>(*core), sizeof(one), one.data());
  holds_ = ::sched_setaffinity(0, sizeof(one), one.data()) == 0;
}

CorePin::~CorePin() {
  if (holds_) ::sched_setaffinity(0, sizeof(before_), before_.data());
}

}  // namespace calandra
