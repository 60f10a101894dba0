#include "cli/bench/machine.h"

#include <gtest/gtest.h>

namespace tidemill::cli {
namespace {

TEST(CpuModel, IsReadFromTheListing) {
  EXPECT_EQ(cpu_model("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nmodel name\t: B\n"),
            "A CPU @ 2 GHz");
  EXPECT_EQ(cpu_model("model name\t: last"), "last");
  EXPECT_EQ(cpu_model("processor: 0\n"), "unknown");
  EXPECT_EQ(cpu_model("model name"), "unknown");
  EXPECT_EQ(cpu_model(""), "unknown");
}

TEST(ThisMachine, NamesItsKernels) {
  EXPECT_EQ(this_machine("reference", 3).isa, "scalar");
  EXPECT_EQ(this_machine("cpu-avx2", 3).isa, "avx2");
  const Machine machine = this_machine("cpu", 3);
  EXPECT_NE(machine.isa, "scalar");
  EXPECT_EQ(machine.threads, 3);
  EXPECT_GE(machine.cpus, 1);
  EXPECT_FALSE(machine.cpu.empty());
}

TEST(WeightTraffic, ReadsAnExpertOnceAPass) {
  const WeightTraffic traffic{
      .once_bytes = 1000, .row_bytes = 10, .expert_bytes = 800, .expert_share = 0.5};
  EXPECT_DOUBLE_EQ(traffic.bytes(1), 1000 + 10 + 400);
  EXPECT_DOUBLE_EQ(traffic.bytes(2), 1000 + 20 + 600);
  EXPECT_NEAR(traffic.bytes(64), 1000 + 640 + 800, 1e-6);
}

TEST(WeightTraffic, OfTheBundledModelIsLessThanAllOfIt) {
  const auto traffic = weight_traffic(std::string(TIDEMILL_SOURCE_DIR) + "/models/mini");
  ASSERT_TRUE(traffic) << traffic.error().message;
  EXPECT_GT(traffic->once_bytes, 0);
  EXPECT_GT(traffic->row_bytes, 0);
  EXPECT_GT(traffic->expert_share, 0);
  EXPECT_LT(traffic->expert_share, 1);
  EXPECT_LT(traffic->bytes(1), traffic->bytes(64));
}

}  // namespace
}  // namespace tidemill::cli
