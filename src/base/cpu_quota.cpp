#include "base/cpu_quota.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "base/cgroup.h"

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
  double quota = kUnlimited;
  for (const fs::path& group : cgroup_directories(root, "cpu")) {
    quota = std::min({quota, read_v2(group), read_v1(group)});
  }
  return quota;
}

}  // namespace tidemill
