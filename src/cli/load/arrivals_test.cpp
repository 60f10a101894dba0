#include "cli/load/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cli/bench/workload.h"

namespace tidemill::cli {
namespace {

using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;
using testing::Lt;

constexpr double kForever = std::numeric_limits<double>::infinity();

TEST(ArrivalTimes, ConstantOnesAreEvenlySpaced) {
  EXPECT_THAT(arrival_times(ArrivalProcess::kConstant, 4, 5, kForever, 0),
              ElementsAre(0, 0.25, 0.5, 0.75, 1.0));
  // The end itself is outside.
  EXPECT_EQ(arrival_times(ArrivalProcess::kConstant, 4, 100, 1.0, 0).size(), 4u);
}

TEST(ArrivalTimes, PoissonOnesHaveTheRateAndTheShape) {
  for (const uint64_t seed : {0, 1, 2}) {
    const auto times = arrival_times(ArrivalProcess::kPoisson, 50, 20000, kForever, seed);
    ASSERT_EQ(times.size(), 20000u);
    EXPECT_EQ(times.front(), 0);
    const GapCheck check = check_gaps(times, ArrivalProcess::kPoisson, 50);
    EXPECT_TRUE(check.fits) << check.distance;
    EXPECT_NEAR(check.mean_s, 0.02, 0.0006);
    EXPECT_NEAR(check.variation, 1, 0.04);
    // Arrivals within a second are 50 on average, and so is their variance.
    std::vector<double> counts(static_cast<size_t>(times.back()), 0.0);
    for (const double time : times) {
      if (time < static_cast<double>(counts.size())) ++counts[static_cast<size_t>(time)];
    }
    double mean = 0, variance = 0;
    for (const double count : counts) mean += count / static_cast<double>(counts.size());
    for (const double count : counts) {
      variance += (count - mean) * (count - mean) / static_cast<double>(counts.size());
    }
    EXPECT_NEAR(variance / mean, 1, 0.3);
  }
}

TEST(ArrivalTimes, DependOnTheSeedOnly) {
  const auto draw = [](int64_t most, double seconds, uint64_t seed) {
    return arrival_times(ArrivalProcess::kPoisson, 10, most, seconds, seed);
  };
  const auto all = draw(1000, kForever, 3);
  EXPECT_EQ(all, draw(1000, kForever, 3));
  EXPECT_NE(all, draw(1000, kForever, 4));
  // A shorter run, by either limit, is the beginning of a longer one.
  const auto few = draw(40, kForever, 3);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin()));
  const auto brief = draw(1000, 5.0, 3);
  EXPECT_GT(brief.size(), 20u);
  EXPECT_TRUE(std::equal(brief.begin(), brief.end(), all.begin()));
  EXPECT_THAT(brief, Each(Lt(5.0)));
  EXPECT_GE(all[brief.size()], 5.0);
}

TEST(ArrivalTimes, ALimitOfTimeAloneIsEnough) {
  const auto times = arrival_times(ArrivalProcess::kPoisson, 1000, 1'000'000, 2.0, 9);
  EXPECT_THAT(static_cast<double>(times.size()), DoubleNear(2000, 250));
  EXPECT_GT(times.back(), 1.9);
}

TEST(GapCheck, FindsTheWrongProcess) {
  const auto even = arrival_times(ArrivalProcess::kConstant, 10, 200, kForever, 0);
  const auto random = arrival_times(ArrivalProcess::kPoisson, 10, 200, kForever, 0);
  EXPECT_TRUE(check_gaps(even, ArrivalProcess::kConstant, 10).fits);
  EXPECT_FALSE(check_gaps(even, ArrivalProcess::kPoisson, 10).fits);
  EXPECT_FALSE(check_gaps(random, ArrivalProcess::kConstant, 10).fits);
  EXPECT_FALSE(check_gaps(random, ArrivalProcess::kPoisson, 20).fits);
  EXPECT_FALSE(check_gaps(even, ArrivalProcess::kConstant, 11).fits);
  EXPECT_TRUE(check_gaps(even, ArrivalProcess::kTrace, 0).fits);
}

TEST(GapCheck, FindsBunches) {
  // The right number of requests, but sent ten at once.
  auto times = arrival_times(ArrivalProcess::kPoisson, 100, 500, kForever, 1);
  for (size_t i = 0; i < times.size(); ++i) times[i] = times[i - i % 10];
  EXPECT_FALSE(check_gaps(times, ArrivalProcess::kPoisson, 100).fits);
}

TEST(GapCheck, KolmogorovSmirnovByHand) {
  // One gap at the median: the distribution function jumps from 0 to 1 where 1/2 is expected.
  const std::vector<double> one = {0, std::log(2.0)};
  EXPECT_NEAR(check_gaps(one, ArrivalProcess::kPoisson, 1).distance, 0.5, 1e-12);
  // Two short gaps: at the first quintile the function is 1 already.
  const double short_s = -std::log(0.8);
  EXPECT_NEAR(check_gaps(std::vector<double>{0, short_s, 2 * short_s}, ArrivalProcess::kPoisson, 1)
                  .distance,
              0.8, 1e-12);
  // Gaps at the quartiles: 1/4, 1/2, 3/4 expected where 0 to 1/3, 1/3 to 2/3, 2/3 to 1 are.
  std::vector<double> times = {0};
  for (const double p : {0.5, 0.75, 0.25}) times.push_back(times.back() - std::log(1 - p));
  EXPECT_NEAR(check_gaps(times, ArrivalProcess::kPoisson, 1).distance, 0.25, 1e-12);
}

TEST(GapCheck, TooFewAreNoEvidence) {
  const std::vector<double> bunch = {0, 0, 0, 0, 0};
  EXPECT_TRUE(check_gaps(bunch, ArrivalProcess::kPoisson, 10).fits);
  EXPECT_EQ(check_gaps({}, ArrivalProcess::kPoisson, 10).count, 0);
  EXPECT_EQ(check_gaps(std::vector<double>{3}, ArrivalProcess::kConstant, 10).count, 0);
}

TEST(GapCheck, RefusesFewTrueSeries) {
  int refused = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const auto times = arrival_times(ArrivalProcess::kPoisson, 5, 60, kForever, seed);
    refused += !check_gaps(times, ArrivalProcess::kPoisson, 5).fits;
  }
  EXPECT_LE(refused, 10);  // two expected
}

}  // namespace
}  // namespace tidemill::cli
