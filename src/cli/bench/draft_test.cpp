#include "cli/bench/draft.h"

#include <gmock/gmock.h>

namespace tidemill::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

DraftVerdict verdict(int64_t concurrency, double over_best, double over_fixed_5) {
  return {concurrency, "dynamic", "fixed:3", over_best, over_fixed_5};
}

TEST(CheckDrafts, AcceptsNoiseAndNoMore) {
  EXPECT_THAT(
      check_drafts({{}, {verdict(16, 0.9985, 1), verdict(60, 1, 1.05), verdict(96, 1, 1.1)}}),
      IsEmpty());
  EXPECT_THAT(
      check_drafts({{}, {verdict(16, 0.997, 1), verdict(60, 1, 1.05), verdict(96, 1, 1.1)}}),
      ElementsAre(HasSubstr("dynamic at 16: 0.30 % below fixed:3")));
  EXPECT_THAT(check_drafts({{}, {verdict(60, 1, 1.0), verdict(96, 1, 1.1)}}),
              ElementsAre(HasSubstr("at 60 does not beat")));
}

TEST(CheckDrafts, WhatIsMissingIsABreach) {
  EXPECT_THAT(check_drafts({{}, {verdict(60, 1, 1.05)}}), ElementsAre(HasSubstr("at 96")));
  EXPECT_THAT(check_drafts({{}, {verdict(60, 1, 0), verdict(96, 1, 1.1)}}),
              ElementsAre(HasSubstr("at 60")));
  EXPECT_THAT(check_drafts({}), testing::Contains("no dynamic policy was measured"));
  EXPECT_THAT(check_drafts({{}, {{1, "dynamic", "", 0, 0}}}),
              ElementsAre("no fixed length was measured"));
}

class CompareDrafts : public testing::Test {
 protected:
  CostCurve curve_ =
      *CostCurve::load(std::string(TIDEMILL_SOURCE_DIR) + "/bench/curves/large_device.csv");
  DraftComparison comparison_{.policies = {"off", "fixed:5", "dynamic"},
                              .concurrencies = {60, 96},
                              .seeds = 1,
                              .request_steps = 100};
};

TEST_F(CompareDrafts, GivesEveryPairAndTheRatios) {
  const auto report = compare_drafts(curve_, comparison_, [](double) { return true; });
  ASSERT_TRUE(report);
  ASSERT_EQ(report->results.size(), 6u);
  ASSERT_EQ(report->verdicts.size(), 2u);
  EXPECT_EQ(report->results[4].concurrency, 96);
  EXPECT_EQ(report->results[4].policy, 1u);
  EXPECT_NEAR(
      report->verdicts[1].over_fixed_5,
      report->results[5].median.tokens_per_second / report->results[4].median.tokens_per_second,
      1e-9);
  EXPECT_THAT(check_drafts(*report), IsEmpty());
}

TEST_F(CompareDrafts, StopsBetweenRuns) {
  const auto report = compare_drafts(curve_, comparison_, [](double done) { return done < 0.6; });
  ASSERT_TRUE(report);
  EXPECT_EQ(report->results.size(), 3u);
}

TEST_F(CompareDrafts, RefusesUnknownPolicies) {
  comparison_.policies.push_back("fixed:9");
  const auto report = compare_drafts(curve_, comparison_, [](double) { return true; });
  EXPECT_THAT(report.error().message, HasSubstr("fixed:9"));
}

}  // namespace
}  // namespace tidemill::cli
