// Steps that an engine chose give way where a device has little memory.
#include <gtest/gtest.h>

#include "engine/model_runner.h"
#include "ops/reference_backend.h"

namespace tidemill {
namespace {

constexpr int64_t kTokenBytes = 100'000;  // of scratch memory

class SmallDevice : public ReferenceBackend {
 public:
  SmallDevice(ThreadTeam& team, int64_t free) : ReferenceBackend(team, {}), free_(free) {}
  bool host_memory() const override { return false; }
  int64_t free_memory() const override { return free_; }
  int64_t scratch_memory(const Config&, int64_t tokens) const override {
    return tokens * kTokenBytes;
  }

 private:
  int64_t free_;
};

int64_t step_of(int64_t free, int64_t least_step) {
  RunnerOptions options{
      .threads = 1,
      .context = 512,
      .sequences = 2,
      .state_bytes = RunnerOptions::kAutoState,
      .max_step_tokens = 2048,
      .least_step_tokens = least_step,
      .make_backend = [&](ThreadTeam& team) { return std::make_unique<SmallDevice>(team, free); }};
  auto runner = ModelRunner::load(TIDEMILL_SOURCE_DIR "/tests/vectors/micro", options);
  if (!runner) {
    EXPECT_EQ(runner.error().code, ErrorCode::kOutOfMemory);
    return 0;
  }
  return (*runner)->forward().max_tokens();
}

TEST(DeviceSizes, ChosenStepsTakeAThirdOfTheMemoryAtMost) {
  EXPECT_EQ(step_of(2'000'000'000, 512), 2048);
  EXPECT_EQ(step_of(400'000'000, 512), 1024);
  EXPECT_EQ(step_of(200'000'000, 512), 512);
  EXPECT_EQ(step_of(90'000'000, 512), 512);  // more than a third, but it fits
  EXPECT_EQ(step_of(90'000'000, 0), 0);      // what the user asked for does not
  EXPECT_EQ(step_of(20'000'000, 512), 0);
}

}  // namespace
}  // namespace tidemill
