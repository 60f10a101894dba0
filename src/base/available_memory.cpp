#include "base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "base/cgroup.h"

namespace tidemill {
namespace {

namespace fs = std::filesystem;

std::optional<int64_t> number_in(const fs::path& path) {  // v2 writes "max" for no limit
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// The number behind a name that begins a line; 0 if there is none.
int64_t number_of(const fs::path& path, std::string_view name) {
  std::ifstream file(path);
  std::string key, rest;
  for (int64_t number = 0; file >> key >> number; std::getline(file, rest)) {
    if (key == name) return number;
  }
  return 0;
}

struct Files {  // of one version of control groups
  const char* limit;
  const char* used;
  const char* cache[2];  // lines of memory.stat
};
constexpr Files kVersions[] = {
    {"memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}},
};

}  // namespace

int64_t available_memory(const fs::path& root) {
  return number_of(root / "proc/meminfo", "MemAvailable:") * 1024;
}

int64_t cgroup_memory_left(const fs::path& root) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const fs::path& group : cgroup_directories(root, "memory")) {
    for (const Files& files : kVersions) {
      const auto limit = number_in(group / files.limit);
      if (!limit) continue;
      int64_t used = number_in(group / files.used).value_or(0);
      for (const char* cache : files.cache) used -= number_of(group / "memory.stat", cache);
      least = std::min(least, std::max<int64_t>(0, *limit - std::max<int64_t>(0, used)));
    }
  }
  return least;
}

}  // namespace tidemill
