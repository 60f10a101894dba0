#include "base/cpu_quota.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/test_machine.h"
#include "base/thread_team.h"

namespace tidemill {
namespace {

class CpuQuota : public TestMachine {
 protected:
  double quota() const { return cgroup_cpu_quota(root_.path()); }
};

TEST_F(CpuQuota, NoFilesMeansNoLimit) { EXPECT_TRUE(std::isinf(quota())); }

TEST_F(CpuQuota, Version2TakesTheSmallestOnTheWay) {
  put("proc/self/cgroup", "0::/user/job\n");
  put("sys/fs/cgroup/user/cpu.max", "150000 100000\n");
  put("sys/fs/cgroup/user/job/cpu.max", "max 100000\n");
  EXPECT_DOUBLE_EQ(quota(), 1.5);
  put("sys/fs/cgroup/user/job/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(quota(), 0.5);
}

TEST_F(CpuQuota, Version2InsideAContainerReadsTheMountPoint) {
  put("proc/self/cgroup", "0::/../../host/path\n");
  put("sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_DOUBLE_EQ(quota(), 4);
}

TEST_F(CpuQuota, Version1) {
  put("proc/self/cgroup", "5:memory:/a\n4:cpu,cpuacct:/docker/x\n3:cpuset:/\n");
  put("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "250000\n");
  put("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(quota(), 2.5);
}

TEST_F(CpuQuota, OddTextMeansNoLimit) {
  put("proc/self/cgroup", "nonsense\n0::/a\n");
  put("sys/fs/cgroup/a/cpu.max", "100000 0\n");
  put("sys/fs/cgroup/cpu.max", "\n");
  EXPECT_TRUE(std::isinf(quota()));
}

TEST(AvailableThreads, IsAtLeastOneAndAtMostTheAffinityMask) {
  ASSERT_FALSE(allowed_cpus().empty());
  EXPECT_GE(ThreadTeam::available_threads(), 1);
  EXPECT_LE(ThreadTeam::available_threads(), static_cast<int>(allowed_cpus().size()));
}

}  // namespace
}  // namespace tidemill
