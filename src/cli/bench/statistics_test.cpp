#include "cli/bench/statistics.h"

#include <gtest/gtest.h>

namespace tidemill::cli {
namespace {

TEST(Percentile, LiesBetweenTheNearestTwo) {
  const std::vector<double> sorted = {10, 20, 30, 40, 50};
  EXPECT_DOUBLE_EQ(percentile(sorted, 0), 10);
  EXPECT_DOUBLE_EQ(percentile(sorted, 0.5), 30);
  EXPECT_DOUBLE_EQ(percentile(sorted, 0.9), 46);
  EXPECT_DOUBLE_EQ(percentile(sorted, 1), 50);
}

TEST(Percentile, OfFewSamples) {
  EXPECT_DOUBLE_EQ(percentile({}, 0.5), 0);
  EXPECT_DOUBLE_EQ(percentile(std::vector<double>{7}, 0.99), 7);
  EXPECT_DOUBLE_EQ(percentile(std::vector<double>{1, 2}, 0.5), 1.5);
}

TEST(Percentiles, SortFirst) {
  std::vector<double> samples;
  for (int i = 0; i < 101; ++i) samples.push_back((i * 37) % 101);  // 0 to 100, shuffled
  const Percentiles result = percentiles(samples);
  EXPECT_EQ(result.count, 101);
  EXPECT_DOUBLE_EQ(result.p50, 50);
  EXPECT_DOUBLE_EQ(result.p90, 90);
  EXPECT_DOUBLE_EQ(result.p99, 99);
  EXPECT_DOUBLE_EQ(result.most, 100);
  EXPECT_EQ(percentiles({}).count, 0);
}

TEST(Spread, IsMedianAndEnds) {
  const Spread result = spread({3, 1, 8});
  EXPECT_DOUBLE_EQ(result.median, 3);
  EXPECT_DOUBLE_EQ(result.least, 1);
  EXPECT_DOUBLE_EQ(result.most, 8);
  EXPECT_EQ(spread({}).count, 0);
}

}  // namespace
}  // namespace tidemill::cli
