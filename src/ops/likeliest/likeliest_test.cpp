#include "ops/likeliest/likeliest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<int32_t> run(Backend& backend, OwnedRows& logits) {
  std::vector<int32_t> ids(static_cast<size_t>(logits.view().count), -7);
  backend.likeliest({.logits = logits.view(), .id = ids.data()});
  return ids;
}

TEST(LikeliestBackends, TheLowestOfTheLargest) {
  TestInputs in(1);
  for (const int64_t width : {1, 31, 320, 1024, 5000}) {
    OwnedRows logits(7, width);
    const auto row = [&](int64_t t) { return logits.view().f32(t); };
    for (int64_t t = 0; t < 7; ++t) {
      // Few values, so that many are equal.
      for (int64_t k = 0; k < width; ++k) row(t)[k] = static_cast<float>(in.below(5)) - 3;
    }
    for (int64_t k = 0; k < width; ++k) row(3)[k] = -kInfinity;
    for (int64_t k = 0; k < width; ++k) row(4)[k] = k == width / 2 ? -1e30f : -kInfinity;
    row(5)[width - 1] = kNaN;
    row(6)[width / 3] = kInfinity;
    std::vector<int32_t> expected;
    for (int64_t t = 0; t < 3; ++t) {
      expected.push_back(static_cast<int32_t>(std::max_element(row(t), row(t) + width) - row(t)));
    }
    expected.insert(expected.end(), {-1, static_cast<int32_t>(width / 2), -1, -1});
    for_each_backend([&](Backend& backend, const std::string& label) {
      EXPECT_EQ(run(backend, logits), expected) << label << ", width " << width;
    });
    EXPECT_EQ(run(reference_backend(), logits), expected) << width;
  }
}

TEST(LikeliestBackends, ZerosOfBothSignsAreEqual) {
  OwnedRows logits(1, 3);
  for (int k = 0; k < 3; ++k) logits.view().f32(0)[k] = k == 0 ? -1.0f : k == 1 ? -0.0f : 0.0f;
  for_each_backend([&](Backend& backend, const std::string& label) {
    EXPECT_EQ(run(backend, logits)[0], 1) << label;
  });
}

}  // namespace
}  // namespace tidemill
