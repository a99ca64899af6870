// Memory that a container leaves, read from trees of files as Linux shows them.

#include "plan/available_memory.h"

#include "support/golden.h"

#include <gtest/gtest.h>

namespace calandra {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMebibyte = 1 << 20;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  write_file(path, text);
}

/// A machine with 8 GiB left.
void write_machine(const TemporaryFolder& root, const std::string& groups) {
  write(root / "proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n");
  write(root / "proc/self/cgroup", groups);
}

TEST(AvailableMemory, WithoutLimitsItIsTheMachines) {
  const TemporaryFolder root;
  write_machine(root, "0::/user.slice\n");
  EXPECT_EQ(available_memory_bytes(root.path()), 8192 * kMebibyte);
  write(root / "sys/fs/cgroup/user.slice/memory.max", "max\n");
  write(root / "sys/fs/cgroup/user.slice/memory.current", "123\n");
  EXPECT_EQ(available_memory_bytes(root.path()), 8192 * kMebibyte);
  EXPECT_GT(available_memory_bytes(), kMebibyte);
}

TEST(AvailableMemory, TheTightestGroupAboveTheProcessLimitsIt) {
  const TemporaryFolder root;
  write_machine(root, "0::/outer/inner\n");
  const fs::path outer = root / "sys/fs/cgroup/outer";
  write(outer / "inner/memory.max", std::to_string(4096 * kMebibyte));
  write(outer / "inner/memory.current", std::to_string(96 * kMebibyte));
  EXPECT_EQ(available_memory_bytes(root.path()), 4000 * kMebibyte);
  write(outer / "memory.max", std::to_string(1024 * kMebibyte));
  write(outer / "memory.current", std::to_string(600 * kMebibyte));
  write(outer / "memory.stat", "anon 5\ninactive_file " + std::to_string(76 * kMebibyte) + "\nactive_file 7\n");
  EXPECT_EQ(available_memory_bytes(root.path()), 500 * kMebibyte);
  write(outer / "memory.current", std::to_string(2000 * kMebibyte));  // the limit was lowered just now
  EXPECT_EQ(available_memory_bytes(root.path()), 0);
}

// In a container the path is the host's and only the container's own group is mounted.
TEST(AvailableMemory, BothVersionsOfControlGroupsAreRead) {
  const TemporaryFolder root;
  write_machine(root, "5:cpu,memory:/docker/0123\n1:name=systemd:/docker/0123\n0::/\n");
  write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(512 * kMebibyte));
  write(root / "sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(300 * kMebibyte));
  write(root / "sys/fs/cgroup/memory/memory.stat", "cache 9\ntotal_inactive_file " + std::to_string(88 * kMebibyte) + "\n");
  EXPECT_EQ(available_memory_bytes(root.path()), 300 * kMebibyte);
  write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
  EXPECT_EQ(available_memory_bytes(root.path()), 8192 * kMebibyte);
}

}  // namespace
}  // namespace calandra
