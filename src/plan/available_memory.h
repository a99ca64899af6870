#pragma once
// How much memory this process can have: what the machine has left, and what its control groups (a container's limit) leave it.

#include <cstdint>
#include <filesystem>

namespace calandra {

/// Memory that can be had without pushing something out to disk or being killed for it, in bytes: MemAvailable of /proc/meminfo, or what the
/// machine has; at most the limit of every control group of the process less what the group uses, file pages it could drop apart.
/// `root`: where proc and sys are. What cannot be read limits nothing.
std::int64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace calandra
