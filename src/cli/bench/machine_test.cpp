#include "cli/bench/machine.h"

#include <gtest/gtest.h>

#include "ops/cuda/device_rates.h"

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

const Model& mini() {
  static const auto model = std::move(
      *Model::load(TIDEMILL_SOURCE_DIR "/models/mini", {.progress = {}, .prefault = false}));
  return *model;
}

// 12 layers of width 256, counted from config.json by hand.
TEST(PrefillWork, OfTheBundledModel) {
  constexpr int64_t kAttention =
      128 * 256 + 4 * 128 * 128 + 128 * 256 + 2 * 128 * 256 + 256 * 2 * 128;
  constexpr int64_t kExperts = (6 + 1) * 3 * 128 * 256 + 16 * 256;      // and the router
  constexpr int64_t kMix = 2 * 24 * 4 * 256;                            // hyper-connections
  constexpr int64_t kCompressors = (3 + 2) * 128 * 256 + 3 * 64 * 128;  // 2 of 3 have a gate
  constexpr int64_t kIndexers = 5 * (4 * 64 * 128 + 4 * 256);
  constexpr int64_t kEngram = 2 * 5 * 256 * 3 * 4 * 32;
  const PrefillWork work = prefill_work(mini());
  EXPECT_EQ(work.token_flops,
            2 * (12 * (kAttention + kExperts + kMix) + kCompressors + kIndexers + kEngram));
  EXPECT_EQ(work.token_flops, 26'765'312);
  EXPECT_EQ(work.prompt_flops, 2 * 8192 * 256);
  EXPECT_DOUBLE_EQ(work.flops(100), 2'676'531'200 + 4'194'304);
}

TEST(PeakFlops, IsNothingWithoutVectorsAndMuchWithThem) {
  EXPECT_EQ(measure_peak_flops("reference", 1), 0);
  EXPECT_GT(measure_peak_flops("cpu-avx2", 1), 1e9);
  // Without a device there is nothing to measure; the CPU's rates are not its own.
  if (cuda_device_name().empty()) {
    EXPECT_EQ(measure_peak_flops("cuda", 1), 0);
    EXPECT_EQ(measure_read_bandwidth("cuda", 1), 0);
  }
}

TEST(WeightTraffic, ReadsAnExpertOnceAPass) {
  const WeightTraffic traffic{
      .once_bytes = 1000, .row_bytes = 10, .expert_bytes = 800, .expert_share = 0.5};
  EXPECT_DOUBLE_EQ(traffic.bytes(1), 1000 + 10 + 400);
  EXPECT_DOUBLE_EQ(traffic.bytes(2), 1000 + 20 + 600);
  EXPECT_NEAR(traffic.bytes(64), 1000 + 640 + 800, 1e-6);
}

TEST(WeightTraffic, OfTheBundledModelIsLessThanAllOfIt) {
  const auto traffic = weight_traffic(mini());
  ASSERT_TRUE(traffic) << traffic.error().message;
  EXPECT_GT(traffic->once_bytes, 0);
  EXPECT_GT(traffic->row_bytes, 0);
  EXPECT_GT(traffic->expert_share, 0);
  EXPECT_LT(traffic->expert_share, 1);
  EXPECT_LT(traffic->bytes(1), traffic->bytes(64));
}

}  // namespace
}  // namespace tidemill::cli
