// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <filesystem>

namespace tidemill {

// `root` is the directory that holds proc/ and sys/: a test passes its own.

// Of the machine: what is free, and what the kernel would drop of its file cache. 0: unknown.
int64_t available_memory(const std::filesystem::path& root = "/");

// What the control groups of this process (v1 or v2, and all their parents) leave of their limits,
// their file cache not counted; INT64_MAX without a limit, 0 when it is reached.
int64_t cgroup_memory_left(const std::filesystem::path& root = "/");

}  // namespace tidemill
