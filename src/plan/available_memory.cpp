#include "plan/available_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace calandra {
namespace {

namespace fs = std::filesystem;

/// The number after `name` in a file of lines "NAME NUMBER"; the first word of the file if `name` is empty. Nothing for "max".
std::optional<std::int64_t> number_in(const fs::path& path, std::string_view name = {}) {
  std::ifstream file(path);
  std::string word;
  std::int64_t number = 0;
  while (!name.empty() && file >> word && word != name) {
  }
  return file >> number ? std::optional(number) : std::nullopt;
}

/// Names of the files that say what a control group may use, uses, and could drop of it.
struct Names {
  std::string_view limit, usage, droppable;
};

/// The least that a group or one of those above it leaves. The path of a group is that of the host: in a container it may not exist, and
/// the group of the container is what is mounted.
std::int64_t left_in_groups(const fs::path& mount, fs::path group, const Names& names) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (;; group = group.parent_path()) {
    const fs::path folder = mount / group.relative_path();
    const auto limit = number_in(folder / names.limit), usage = number_in(folder / names.usage);
    const std::int64_t droppable = number_in(folder / "memory.stat", names.droppable).value_or(0);
    if (limit && usage) least = std::min(least, *limit - std::min(*limit, std::max<std::int64_t>(0, *usage - droppable)));
    if (!group.has_relative_path()) return least;
  }
}

/// Lines "ID:CONTROLLERS:PATH"; of the second version of control groups "0::PATH".
std::int64_t left_in_all_groups(const fs::path& root) {
  constexpr Names kFirst = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
  constexpr Names kSecond = {"memory.max", "memory.current", "inactive_file"};
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min(least, left_in_groups(root / "sys/fs/cgroup", group, kSecond));
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      least = std::min(least, left_in_groups(root / "sys/fs/cgroup/memory", group, kFirst));
    }
  }
  return least;
}

}  // namespace

std::int64_t available_memory_bytes(const fs::path& root) {
  const auto kilobytes = number_in(root / "proc/meminfo", "MemAvailable:");
  const std::int64_t machine = kilobytes ? *kilobytes * 1024 : std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGE_SIZE);
  return std::min(machine, left_in_all_groups(root));
}

}  // namespace calandra
