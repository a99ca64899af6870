#include "base/cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace calandra {
namespace {

using testing::ElementsAre;

/// What the kernel writes about the calling thread: "Cpus_allowed_list: 0-3,8".
std::vector<int> cores_of_proc() {
  std::ifstream file("/proc/thread-self/status");
  const std::string key = "Cpus_allowed_list:";
  std::vector<int> cores;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::istringstream ranges(line.substr(key.size()));
    for (std::string range; std::getline(ranges, range, ',');) {
      const std::size_t dash = range.find('-');
      const int first = std::stoi(range), last = dash == std::string::npos ? first : std::stoi(range.substr(dash + 1));
      for (int core = first; core <= last; ++core) cores.push_back(core);
    }
  }
  return cores;
}

TEST(Cores, UsableAreThoseThatTheKernelNames) {
  EXPECT_EQ(usable_cores(), cores_of_proc());
  const int last = usable_cores().back();
  const CorePin pin(last);
  EXPECT_EQ(usable_cores(), cores_of_proc());
  EXPECT_THAT(usable_cores(), ElementsAre(last));
}

TEST(Cores, APinHoldsAsLongAsItLivesAndGivesBackWhatWasBefore) {
  const std::vector<int> before = usable_cores();
  for (const int core : before) {
    const CorePin pin(core);
    EXPECT_TRUE(pin.holds());
    EXPECT_THAT(cores_of_proc(), ElementsAre(core));
    EXPECT_EQ(sched_getcpu(), core);
    {
      const CorePin again(core);
      EXPECT_TRUE(again.holds());
    }
    EXPECT_THAT(cores_of_proc(), ElementsAre(core)) << "the inner pin gives back what the outer one left it";
  }
  EXPECT_EQ(usable_cores(), before);
}

TEST(Cores, NoPinOnACoreThatIsForbiddenOrThatNobodyHas) {
  const std::vector<int> all = usable_cores();
  for (const std::optional<int> core : {std::optional<int>(), std::optional(-1), std::optional(8191), std::optional(1 << 20)}) {
    const CorePin pin(core);
    EXPECT_FALSE(pin.holds()) << core.value_or(0);
    EXPECT_EQ(cores_of_proc(), all);
  }
  if (all.size() < 2) GTEST_SKIP() << "one core";
  const CorePin restricted(all.front());  // as taskset does
  const CorePin pin(all.back());
  EXPECT_FALSE(pin.holds());
  EXPECT_THAT(cores_of_proc(), ElementsAre(all.front()));
}

}  // namespace
}  // namespace calandra
