#include "base/cpu_quota.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>

namespace tidemill {
namespace {

namespace fs = std::filesystem;
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

double quota_of(double time, double period) {
  return time > 0 && period > 0 ? time / period : kUnlimited;  // v1 writes -1 for no limit
}

// cpu.max (v2) holds "max 100000" or "150000 100000".
double read_v2(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  double time = 0;
  double period = 0;
  return file >> time >> period ? quota_of(time, period) : kUnlimited;
}

double read_v1(const fs::path& group) {
  std::ifstream time_file(group / "cpu.cfs_quota_us");
  std::ifstream period_file(group / "cpu.cfs_period_us");
  double time = 0;
  double period = 0;
  return time_file >> time && period_file >> period ? quota_of(time, period) : kUnlimited;
}

// The smallest quota on the way from a group up to its mount point. Inside a container the group's
// path may be that of the host and not be there: then only the directories that exist count.
template <typename Read>
double smallest_quota(const fs::path& mount, const fs::path& group, Read read) {
  double quota = read(mount);
  fs::path directory = mount;
  for (const fs::path& part : group.relative_path()) {
    if (part == "..") break;
    directory /= part;
    quota = std::min(quota, read(directory));
  }
  return quota;
}

bool has_controller(const std::string& list, const std::string& name) {
  return ("," + list + ",").find("," + name + ",") != std::string::npos;
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

double cgroup_cpu_quota(const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  double quota = kUnlimited;
  std::ifstream groups(root / "proc/self/cgroup");
  // Lines are "number:controllers:path"; v2 has the number 0 and no controllers.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty()) {
      quota = std::min(quota, smallest_quota(mounts, group, read_v2));
    } else if (has_controller(controllers, "cpu")) {
      for (const char* name : {"cpu", "cpu,cpuacct"}) {
        quota = std::min(quota, smallest_quota(mounts / name, group, read_v1));
      }
    }
  }
  return quota;
}

}  // namespace tidemill
