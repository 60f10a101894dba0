#include "sched/draft_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <fstream>
#include <map>

#include "base/temp_directory.h"
#include "sched/draft_random.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

double naive_median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

CostCurve curve_of(std::vector<CostPoint> points, int64_t largest_graph) {
  auto curve = CostCurve::create(std::move(points), largest_graph);
  EXPECT_TRUE(curve) << curve.error().message;
  return *curve;
}

TEST(RunningMedian, IsThatOfASort) {
  Random random(1);
  std::vector<double> values;
  RunningMedian median;
  for (int step = 0; step < 20000; ++step) {
    if (values.empty() || random.below(100) < 51) {
      values.push_back(random.below(20));  // many repeat
      median.insert(values.back());
    } else {
      const auto gone = static_cast<size_t>(random.below(median.size()));
      median.erase(values[gone]);
      values.erase(values.begin() + static_cast<int64_t>(gone));
    }
    ASSERT_EQ(median.size(), static_cast<int64_t>(values.size()));
    if (!values.empty()) {
      ASSERT_EQ(median.median(), naive_median(values)) << step;
    }
  }
}

TEST(SamplerTime, IsTheSeedUntilFiveSamplesThenTheMedianOfTheLastNine) {
  SamplerTime time(7.0);
  for (const double ms : {1.0, 2.0, 3.0, 4.0}) time.record(ms);
  EXPECT_EQ(time.ms(), 7.0);
  time.record(100.0);
  EXPECT_EQ(time.ms(), 3.0);
  for (const double ms : {5.0, 5.0, 6.0, 6.0}) time.record(ms);
  EXPECT_EQ(time.ms(), 5.0);  // 1 2 3 4 5 5 6 6 100
  for (const double ms : {8.0, 8.0, 8.0}) time.record(ms);
  EXPECT_EQ(time.ms(), 6.0);  // 4 5 5 6 6 8 8 8 100: the first three are out
}

TEST(SamplerTime, IgnoresWhatIsNoTime) {
  SamplerTime time(7.0);
  for (int i = 0; i < 9; ++i) time.record(std::nan(""));
  for (int i = 0; i < 9; ++i) time.record(-1.0);
  time.record(INFINITY);
  EXPECT_EQ(time.ms(), 7.0);
}

TEST(ForwardSlope, IsTheMedianOfTheSizesMediansOverTheWindow) {
  Random random(2);
  constexpr size_t kSizes = 7;
  ForwardSlope slope(kSizes);
  std::deque<std::pair<size_t, double>> window;
  EXPECT_EQ(slope.ms_per_row(), 0.0);
  for (size_t step = 0; step < ForwardSlope::kWindow * 2; ++step) {
    // Sizes come and go in blocks, so that one falls out of the window entirely.
    const size_t size = (step / 3000 + static_cast<size_t>(random.below(4))) % kSizes;
    const double value = random.below(1000);
    slope.record(size, value);
    window.emplace_back(size, value);
    if (window.size() > ForwardSlope::kWindow) window.pop_front();
    if (step % 97 != 0 && step > 20) continue;
    std::map<size_t, std::vector<double>> by_size;
    for (const auto& [s, v] : window) by_size[s].push_back(v);
    std::vector<double> medians;
    for (const auto& [s, values] : by_size) medians.push_back(naive_median(values));
    ASSERT_EQ(slope.ms_per_row(), naive_median(medians)) << step;
  }
}

TEST(CostCurve, StepsUpToTheLargestGraphAndIsInterpolatedAbove) {
  const CostCurve curve = curve_of({{4, 10.0}, {8, 12.0}, {16, 20.0}, {32, 28.0}}, 8);
  EXPECT_EQ(curve.ms(1), 10.0);
  EXPECT_EQ(curve.ms(4), 10.0);
  EXPECT_EQ(curve.ms(5), 12.0);
  EXPECT_EQ(curve.padded(5), 8);
  EXPECT_EQ(curve.ms(12), 16.0);
  EXPECT_EQ(curve.padded(12), 12);
  EXPECT_EQ(curve.ms(16), 20.0);
  EXPECT_EQ(curve.ms(64), 44.0);  // on along the last two
}

TEST(CostCurve, OfOnePointIsProportionalBeyondIt) {
  const CostCurve curve = curve_of({{8, 2.0}}, 0);
  EXPECT_EQ(curve.ms(1), 2.0);
  EXPECT_EQ(curve.ms(8), 2.0);
  EXPECT_EQ(curve.ms(32), 8.0);
}

TEST(CostCurve, NeverFallsAndItsHullIsConvexAndBelow) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<CostPoint> points;
    int64_t tokens = 0;
    for (size_t i = 0; i < static_cast<size_t>(1 + random.below(12)); ++i) {
      tokens += 1 + random.below(20);
      points.push_back({tokens, 1.0 + random.below(50)});
    }
    const int64_t graph =
        random.below(2) == 0 ? 0 : points[random.below(std::ssize(points))].tokens;
    const CostCurve curve = curve_of(points, graph);
    const CostCurve hull = curve.convex_hull();
    for (int64_t t = 1; t < tokens + 30; ++t) {
      ASSERT_LE(curve.ms(t), curve.ms(t + 1)) << t;
      if (t > tokens) continue;
      ASSERT_LE(hull.ms(t), curve.ms(t) + 1e-9) << t;
      if (t > points[0].tokens && t + 1 <= tokens) {
        ASSERT_LE(2 * hull.ms(t), hull.ms(t - 1) + hull.ms(t + 1) + 1e-9) << t;
      }
    }
    EXPECT_EQ(hull.ms(tokens), curve.ms(tokens));
  }
}

TEST(CostCurve, RefusesWhatIsNoCurve) {
  EXPECT_THAT(CostCurve::create({}, 0).error().message, HasSubstr("without points"));
  EXPECT_THAT(CostCurve::create({{0, 1.0}}, 0).error().message, HasSubstr("has 0 tokens"));
  EXPECT_THAT(CostCurve::create({{2, 1.0}, {2, 1.0}}, 0).error().message, HasSubstr("must rise"));
  for (const double ms : {0.0, -1.0, std::nan(""), static_cast<double>(INFINITY)}) {
    EXPECT_EQ(CostCurve::create({{1, ms}}, 0).error().code, ErrorCode::kInvalidArgument) << ms;
  }
  EXPECT_THAT(CostCurve::create({{1, 1.0}, {4, 2.0}}, 3).error().message,
              HasSubstr("largest graph has 3 tokens"));
}

class CurveFile : public testing::Test {
 protected:
  Result<CostCurve> load(const std::string& text) {
    std::ofstream(path_) << text;
    return CostCurve::load(path_);
  }
  std::string error_of(const std::string& text) {
    const auto curve = load(text);
    return curve ? "no error" : curve.error().message;
  }

  TempDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "curve.csv";
};

TEST_F(CurveFile, IsRead) {
  const auto curve = load("# a comment\r\n\ntokens,ms\r\n1, 2.5\n#\n4,1e1\r\n");
  ASSERT_TRUE(curve) << curve.error().message;
  EXPECT_EQ(curve->ms(1), 2.5);
  EXPECT_EQ(curve->ms(2), 10.0);
  EXPECT_EQ(curve->largest_graph(), 4);
}

TEST_F(CurveFile, ErrorsNameTheLine) {
  EXPECT_THAT(error_of("1,2\n"), HasSubstr("curve.csv:1: expected the header"));
  EXPECT_THAT(error_of("tokens,ms\n1,2\n3;4\n"), HasSubstr("curve.csv:3: expected a line"));
  EXPECT_THAT(error_of("tokens,ms\n1,2ms\n"), HasSubstr("curve.csv:2: expected a line"));
  EXPECT_THAT(error_of("tokens,ms\n99999999999999999999,2\n"), HasSubstr(":2:"));
  EXPECT_THAT(error_of("tokens,ms\n4,1\n2,1\n"), HasSubstr("must rise"));
  EXPECT_THAT(error_of("tokens,ms\n"), HasSubstr("without points"));
  EXPECT_THAT(error_of(std::string(2 << 20, '#')), HasSubstr("at most 1048576"));
  EXPECT_EQ(CostCurve::load(directory_.path() / "none.csv").error().code, ErrorCode::kFileNotFound);
}

TEST(DraftCost, IsTheProfileUntilStepsAreMeasured) {
  const DraftCost cost(curve_of({{1, 5.0}, {8, 6.0}}, 8), 0.5);
  EXPECT_EQ(cost.step_ms(1), 5.5);
  EXPECT_EQ(cost.step_ms(2), 6.5);
}

// A device on which every row costs 0.1 ms more than in the profile, with jitter and hiccups.
TEST(DraftCost, LearnsTheSlopeOfRealSteps) {
  const CostCurve profile = curve_of({{1, 5.0}, {8, 6.0}, {16, 8.0}, {64, 20.0}}, 16);
  DraftCost cost(profile);
  Random random(4);
  for (int step = 0; step < 2000; ++step) {
    const int64_t tokens = 1 + random.below(20);
    double ms = profile.ms(tokens) + 0.1 * static_cast<double>(profile.padded(tokens));
    ms += 0.01 * (random.below(100) - 49.5);
    if (random.below(10) == 0) ms += 500.0;
    cost.record_forward(tokens, ms);
  }
  EXPECT_NEAR(cost.slope_ms(), 0.1, 0.02);
  for (const int64_t tokens : {1, 5, 8, 16, 64}) {  // 64 was never run
    const double real = profile.ms(tokens) + 0.1 * static_cast<double>(profile.padded(tokens));
    EXPECT_NEAR(cost.forward_ms(tokens), real, 0.02 * 64) << tokens;
  }
}

TEST(DraftCost, OfAMuchFasterDeviceEndsAtATenthOfTheProfile) {
  DraftCost cost(curve_of({{1, 5.0}, {8, 6.0}}, 8));
  cost.record_forward(1, 0.0);
  EXPECT_DOUBLE_EQ(cost.forward_ms(1), 0.5);
  EXPECT_DOUBLE_EQ(cost.forward_ms(8), 0.6);
}

TEST(DraftCost, SmoothTimeFollowsWhatIsMeasured) {
  DraftCost cost(curve_of({{1, 5.0}, {4, 9.0}, {9, 9.0}}, 9), 0.5);
  EXPECT_DOUBLE_EQ(cost.smooth_ms(5), 7.5);  // half way from 1 to 9, without the jump to 4
  cost.record_forward(1, 6.0);               // 1 ms a row more
  EXPECT_DOUBLE_EQ(cost.smooth_ms(5), 12.5);
  EXPECT_DOUBLE_EQ(cost.smooth_ms(9), cost.step_ms(9));
}

TEST(DraftCost, StaysPositiveAndMonotoneWhateverIsMeasured) {
  const CostCurve profile = curve_of({{1, 5.0}, {8, 6.0}, {16, 6.5}, {64, 7.0}}, 64);
  Random random(5);
  DraftCost cost(profile);
  for (int step = 0; step < 500; ++step) {
    const double odd[] = {0.0, 1e-9, std::nan(""), -5.0, INFINITY, 1e300, 3.0, 6.0};
    cost.record_forward(random.below(70) - 2, odd[random.below(8)]);
    cost.record_sampler(odd[random.below(7)]);
    if (step % 10 != 0) continue;
    for (int64_t t = 1; t < 80; ++t) {
      ASSERT_GT(cost.forward_ms(t), 0.0);
      ASSERT_LE(cost.forward_ms(t), cost.forward_ms(t + 1));
    }
  }
}

}  // namespace
}  // namespace tidemill
