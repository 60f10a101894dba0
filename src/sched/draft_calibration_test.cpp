#include "sched/draft_calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>

#include "sched/draft_random.h"

namespace tidemill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(DraftTemperatures, AreOneOrExactlyOnePerPosition) {
  EXPECT_THAT(DraftTemperatures::create(std::vector{2.0}, 3)->values(), ElementsAre(2.0, 2.0, 2.0));
  EXPECT_THAT(DraftTemperatures::create(std::vector{1.0, 2.0, 3.0}, 3)->values(),
              ElementsAre(1.0, 2.0, 3.0));
  for (const size_t count : {0, 2, 4}) {
    const auto none = DraftTemperatures::create(std::vector<double>(count, 1.0), 3);
    ASSERT_FALSE(none) << count;
    EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(none.error().message, HasSubstr("1 for all positions or exactly 3"));
  }
  for (const double value : {0.0, -1.0, std::nan(""), static_cast<double>(kInfinity)}) {
    EXPECT_FALSE(DraftTemperatures::create(std::vector{value}, 3)) << value;
  }
}

TEST(DraftTemperatures, ScaleTheLogit) {
  const auto temperatures = DraftTemperatures::create(std::vector{1.0, 2.0}, 2);
  EXPECT_FLOAT_EQ(temperatures->confidence(0.0f, 0), 0.5f);
  EXPECT_FLOAT_EQ(temperatures->confidence(2.0f, 0), 0.880797f);
  EXPECT_FLOAT_EQ(temperatures->confidence(4.0f, 1), 0.880797f);
  EXPECT_EQ(temperatures->confidence(-kInfinity, 1), 0.0f);
  EXPECT_EQ(temperatures->confidence(kInfinity, 1), 1.0f);
  EXPECT_EQ(temperatures->confidence(std::nanf(""), 1), 0.0f);
}

// A drafter whose logits are too large by a factor per position.
struct Records {
  std::deque<std::vector<float>> logits;
  std::vector<DraftRecord> records;

  Records(const std::vector<double>& factors, int count, bool all_verified) {
    Random random(1);
    const auto length = static_cast<int32_t>(factors.size());
    for (int i = 0; i < count; ++i) {
      auto& z = logits.emplace_back();
      const int32_t verified = all_verified ? length : random.below(length + 1);
      int32_t accepted = 0;
      bool stands = true;
      for (int32_t j = 0; j < length; ++j) {
        const double logit = 5.0 * random.uniform() - 1.5;
        z.push_back(static_cast<float>(logit * factors[j]));
        stands = stands && random.uniform() < 1.0 / (1.0 + std::exp(-logit));
        accepted += stands && j < verified;
      }
      records.push_back({z, verified, accepted});
    }
  }
};

TEST(FitTemperatures, FindsTheFactors) {
  for (const bool all_verified : {true, false}) {
    const Records data({2.0, 1.0, 0.5}, 60000, all_verified);
    const auto fitted = fit_temperatures(data.records, 3);
    ASSERT_TRUE(fitted);
    // A step of the grid is 9 %, and later positions have fewer survivors to tell.
    EXPECT_NEAR(std::log2((*fitted)[0]), 1.0, 0.13);
    EXPECT_NEAR(std::log2((*fitted)[1]), 0.0, 0.26);
    EXPECT_NEAR(std::log2((*fitted)[2]), -1.0, 0.51);
  }
}

TEST(FitTemperatures, LowersTheErrorOfThePrefixes) {
  const Records data({3.0, 2.0, 2.0}, 20000, true);
  const auto fitted = fit_temperatures(data.records, 3);
  const auto error_with = [&](const std::vector<double>& values) {
    const auto temperatures = DraftTemperatures::create(values, 3);
    CalibrationBins bins;
    for (const DraftRecord& record : data.records) {
      double prefix = 1.0;
      for (int32_t j = 0; j < 3; ++j) {
        prefix *= temperatures->confidence(record.z[j], j);
        bins.add(prefix, record.accepted > j);
      }
    }
    return bins.error();
  };
  EXPECT_GT(error_with({1.0, 1.0, 1.0}), 0.05);
  EXPECT_LT(error_with(*fitted), 0.015);
}

TEST(FitTemperatures, KeepsOneWhereThereIsTooLittle) {
  const Records few({3.0, 3.0}, kNeededForFit - 1, true);
  EXPECT_THAT(*fit_temperatures(few.records, 2), ElementsAre(1.0, 1.0));
  EXPECT_THAT(*fit_temperatures({}, 2), ElementsAre(1.0, 1.0));
}

TEST(FitTemperatures, RefusesRecordsThatDoNotFit) {
  const std::vector<float> z(2);
  for (const DraftRecord& record : {DraftRecord{z, 3, 0}, DraftRecord{z, 1, 2},
                                    DraftRecord{z, -1, -1}, DraftRecord{{}, 0, 0}}) {
    EXPECT_FALSE(fit_temperatures(std::vector{record}, 2));
  }
  const std::vector<float> odd = {std::nanf(""), kInfinity};
  EXPECT_TRUE(fit_temperatures(std::vector(kNeededForFit, DraftRecord{odd, 2, 1}), 2));
}

TEST(CalibrationBins, MeasureTheDistanceBinByBin) {
  CalibrationBins bins;
  for (int i = 0; i < 10; ++i) bins.add(0.95, i < 5);  // claims 9.5, has 5
  for (int i = 0; i < 10; ++i) bins.add(0.15, i < 6);  // claims 1.5, has 6
  EXPECT_EQ(bins.count(), 20);
  EXPECT_NEAR(bins.predicted(), 0.55, 1e-12);
  EXPECT_NEAR(bins.accepted(), 0.55, 1e-12);  // right on average, wrong everywhere
  EXPECT_NEAR(bins.error(), 0.45, 1e-12);
  EXPECT_EQ(CalibrationBins().error(), 0.0);
}

TEST(CalibrationBins, TakeTheEndsAndNonsense) {
  CalibrationBins bins;
  for (const double p : {0.0, -1.0, std::nan("")}) bins.add(p, false);
  for (const double p : {1.0, 5.0}) bins.add(p, true);
  EXPECT_EQ(bins.bins[0].count, 3);
  EXPECT_EQ(bins.bins[9].count, 2);
  EXPECT_EQ(bins.error(), 0.0);
}

TEST(CalibrationReport, CountsPositionsThatWereReachedPerTag) {
  CalibrationReport report(3);
  const std::vector<float> c = {0.9f, 0.5f, 0.1f};
  report.add("code", c, 3, 1);  // 1 stood, 2 failed, 3 was not reached
  report.add("code", c, 1, 1);  // only 1 was verified
  report.add("prose", c, 3, 3);
  report.add("prose", c, 9, -4);  // clamped: all verified, the first failed
  const auto tags = report.tags();
  ASSERT_EQ(tags.size(), 3u);
  const auto counts = [](const CalibrationReport::Tag& tag) {
    std::vector<int64_t> out;
    for (const CalibrationBins& bins : tag.positions) out.push_back(bins.count());
    return out;
  };
  EXPECT_EQ(tags[0].name, "(all)");
  EXPECT_THAT(counts(tags[0]), ElementsAre(4, 2, 1));
  EXPECT_EQ(tags[1].name, "code");
  EXPECT_THAT(counts(tags[1]), ElementsAre(2, 1, 0));
  EXPECT_EQ(tags[2].name, "prose");
  EXPECT_DOUBLE_EQ(tags[0].positions[0].accepted(), 0.75);
  EXPECT_NEAR(tags[0].positions[0].predicted(), 0.9, 1e-6);
  EXPECT_THAT(report.text(), HasSubstr("\n1 2 0.9000 1.0000 0.1000 code\n"));
}

TEST(CalibrationReport, BoundsTagsAndKeepsThemOnALine) {
  CalibrationReport report(1);
  const std::vector<float> c = {0.5f};
  report.add("a\nb", c, 1, 1);
  report.add(std::string(1000, 'x'), c, 1, 1);
  for (int i = 0; i < 1000; ++i) report.add(std::to_string(i), c, 1, 1);
  const auto tags = report.tags();
  EXPECT_LE(tags.size(), CalibrationReport::kMaxTags + 2);
  EXPECT_THAT(report.text(), HasSubstr(" a\\nb\n"));
  int64_t sum = 0;
  for (size_t i = 1; i < tags.size(); ++i) sum += tags[i].positions[0].count();
  EXPECT_EQ(sum, tags[0].positions[0].count());
}

}  // namespace
}  // namespace tidemill
