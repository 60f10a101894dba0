// How many CPUs this process may really use.
#pragma once

#include <filesystem>
#include <vector>

namespace tidemill {

// Ids of the CPUs in the calling thread's affinity mask, ascending. Never empty.
std::vector<int> allowed_cpus();

// CPU time per second that the control groups of this process (v1 or v2, and all their parents)
// grant, e.g. 1.5; infinity without a limit. `root` is the directory that holds proc/ and sys/: a
// test passes its own. Unreadable or odd files count as no limit.
double cgroup_cpu_quota(const std::filesystem::path& root = "/");

}  // namespace tidemill
