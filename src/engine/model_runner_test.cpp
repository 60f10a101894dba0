#include "engine/model_runner.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

namespace tidemill {
namespace {

// Logits of every position of a prompt.
std::vector<float> logits_of(HugePages huge_pages, bool expect_mapped) {
  auto runner = ModelRunner::load(TIDEMILL_SOURCE_DIR "/tests/vectors/micro",
                                  {.huge_pages = huge_pages, .context = 512});
  EXPECT_TRUE(runner) << runner.error().message;
  EXPECT_EQ((*runner)->model().checkpoint().files().empty(), !expect_mapped);
  std::vector<int32_t> prompt(260);
  std::iota(prompt.begin(), prompt.end(), 7);
  std::vector<float> all;
  Sequence sequence = *(*runner)->pool().acquire();
  const auto keep = [&](int64_t, const Rows& rows) -> Status {
    for (int64_t i = 0; i < rows.count; ++i) {
      all.insert(all.end(), rows.f32(i), rows.f32(i) + rows.width);
    }
    return {};
  };
  EXPECT_TRUE((*runner)->prefill(sequence, prompt, Logits::kAll, keep, 64));
  (*runner)->pool().release(sequence);
  return all;
}

TEST(ModelRunner, TheSameBitsFromMappedWeightsAndFromHugePages) {
  const std::vector<float> mapped = logits_of(HugePages::kOff, true);
  const std::vector<float> huge = logits_of(HugePages::kOn, false);
  ASSERT_EQ(mapped.size(), 260u * 320u);
  ASSERT_EQ(huge.size(), mapped.size());
  EXPECT_EQ(std::memcmp(mapped.data(), huge.data(), mapped.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace tidemill
