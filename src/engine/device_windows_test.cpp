// Which windows a prompt leaves for later ones, and that this costs no second pass.
#include <gtest/gtest.h>

#include "engine/device.h"
#include "ops/reference_backend.h"

namespace tidemill {
namespace {

class CountsPasses : public ReferenceBackend {
 public:
  CountsPasses(ThreadTeam& team, int64_t& passes) : ReferenceBackend(team, {}), passes_(passes) {}
  Status stage(std::span<const StagedArray> arrays) override {
    ++passes_;
    return ReferenceBackend::stage(arrays);
  }

 private:
  int64_t& passes_;
};

struct Left {
  int64_t passes = 0;
  std::vector<int64_t> boundaries;
  std::vector<std::vector<std::byte>> rows;  // their windows
};

// `samples`: all of the prompt, otherwise a chunk of it.
Left windows_of_prompt(int64_t tokens, std::vector<int64_t> save_at = {}, bool samples = true) {
  Left left;
  RunnerOptions options{.threads = 1,
                        .context = 512,
                        .sequences = 1,
                        .max_step_tokens = 512,
                        .make_backend = [&](ThreadTeam& team) {
                          return std::make_unique<CountsPasses>(team, left.passes);
                        }};
  auto runner = ModelRunner::load(TIDEMILL_SOURCE_DIR "/tests/vectors/micro", options);
  EXPECT_TRUE(runner) << runner.error().message;
  constexpr double kTemperature = 1.0;
  Device device(**runner, {.temperatures = *DraftTemperatures::create({&kTemperature, 1}, 3)});
  auto request = std::make_shared<DeviceRequest>();
  for (int64_t i = 0; i < tokens; ++i) request->tokens.push_back(static_cast<int32_t>(i % 300));
  request->prompt_tokens = tokens;
  request->max_tokens = 1;
  Sequence start = *(*runner)->pool().acquire();
  EXPECT_TRUE((*runner)->pool().reserve(start, 512));
  StepJob job{.step = 1, .copy_windows = true};
  job.items.push_back({.request = request,
                       .plan = {.tokens = tokens, .samples = samples},
                       .start = std::move(start),
                       .save_at = std::move(save_at)});
  device.launch(std::move(job));
  EXPECT_TRUE(device.wait(Deadline::after(std::chrono::seconds(60))));
  const auto outcome = device.take();
  EXPECT_TRUE(outcome && outcome->status);
  if (!outcome || outcome->items.empty()) return left;
  for (const auto& windows : outcome->items[0].windows) {
    left.boundaries.push_back(windows->position);
    left.rows.push_back(windows->rows);
  }
  return left;
}

TEST(DeviceWindows, ThoseOfAPromptsEndCostNoPass) {
  using Boundaries = std::vector<int64_t>;
  const struct {
    int64_t tokens;
    Boundaries expected;
  } cases[] = {{100, {}},         {128, {128}}, {129, {128}},      {255, {128}},
               {256, {128, 256}}, {300, {256}}, {384, {256, 384}}, {385, {384}}};
  for (const auto& c : cases) {
    const Left left = windows_of_prompt(c.tokens);
    EXPECT_EQ(left.passes, 1) << c.tokens;
    EXPECT_EQ(left.boundaries, c.expected) << c.tokens;
    for (size_t i = 0; i < left.rows.size(); ++i) {
      const Left ends_there = windows_of_prompt(left.boundaries[i], {}, false);
      ASSERT_EQ(ends_there.rows.size(), 1u);
      EXPECT_TRUE(left.rows[i] == ends_there.rows[0]) << c.tokens << ", " << left.boundaries[i];
    }
  }
}

TEST(DeviceWindows, ABoundaryWithinReachCutsNoChunk) {
  const Left left = windows_of_prompt(384, {256}, false);
  EXPECT_EQ(left.passes, 1);
  EXPECT_EQ(left.boundaries, (std::vector<int64_t>{256, 384}));
}

TEST(DeviceWindows, AnEarlierBoundaryCutsThePrompt) {
  const Left left = windows_of_prompt(400, {128});
  EXPECT_EQ(left.passes, 2);
  EXPECT_EQ(left.boundaries, (std::vector<int64_t>{128, 384}));
}

}  // namespace
}  // namespace tidemill
