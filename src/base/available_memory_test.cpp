#include "base/available_memory.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "base/huge_memory.h"
#include "base/test_machine.h"

namespace tidemill {
namespace {

class AvailableMemory : public TestMachine {
 protected:
  int64_t left() const { return cgroup_memory_left(root_.path()); }
};

TEST_F(AvailableMemory, OfTheMachine) {
  EXPECT_EQ(available_memory(root_.path()), 0);
  put("proc/meminfo",
      "MemTotal:       24683548 kB\nHugePages_Total:       0\nMemAvailable: 5 kB\n");
  EXPECT_EQ(available_memory(root_.path()), 5 * 1024);
  EXPECT_GT(available_memory(), 0);
}

TEST_F(AvailableMemory, NoFilesMeanNoLimit) { EXPECT_EQ(left(), INT64_MAX); }

TEST_F(AvailableMemory, Version2TakesTheLeastOnTheWayAndCountsNoFileCache) {
  put("proc/self/cgroup", "0::/user/job\n");
  put("sys/fs/cgroup/user/memory.max", "1000\n");
  put("sys/fs/cgroup/user/job/memory.max", "max\n");
  EXPECT_EQ(left(), 1000);
  put("sys/fs/cgroup/user/memory.current", "700\n");
  EXPECT_EQ(left(), 300);
  put("sys/fs/cgroup/user/memory.stat", "anon 400\nfile 300\ninactive_file 100\nactive_file 150\n");
  EXPECT_EQ(left(), 550);
  put("sys/fs/cgroup/user/job/memory.max", "2000\n");
  EXPECT_EQ(left(), 550);
  put("sys/fs/cgroup/user/job/memory.max", "200\n");
  EXPECT_EQ(left(), 200);
  put("sys/fs/cgroup/user/job/memory.current", "210\n");
  EXPECT_EQ(left(), 0);
}

TEST_F(AvailableMemory, Version1) {
  put("proc/self/cgroup", "5:memory:/docker/x\n4:cpu,cpuacct:/a\n0::/\n");
  put("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "5000\n");
  put("sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "3000\n");
  put("sys/fs/cgroup/memory/docker/x/memory.stat",
      "inactive_file 1\nactive_file 1\ntotal_inactive_file 500\ntotal_active_file 1000\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(left(), 3500);
}

TEST_F(AvailableMemory, OddTextMeansNoLimit) {
  put("proc/self/cgroup", "nonsense\n0::/a\n");
  put("sys/fs/cgroup/a/memory.max", "lots\n");
  put("sys/fs/cgroup/memory.max", "\n");
  EXPECT_EQ(left(), INT64_MAX);
}

TEST_F(AvailableMemory, HugePagesAreOfferedUnlessTheModeIsNever) {
  const std::string file = "sys/kernel/mm/transparent_hugepage/enabled";
  EXPECT_FALSE(huge_pages_offered(root_.path()));
  put(file, "always madvise [never]\n");
  EXPECT_FALSE(huge_pages_offered(root_.path()));
  put(file, "always [madvise] never\n");
  EXPECT_TRUE(huge_pages_offered(root_.path()));
  put(file, "[always] madvise never\n");
  EXPECT_TRUE(huge_pages_offered(root_.path()));
}

}  // namespace
}  // namespace tidemill
