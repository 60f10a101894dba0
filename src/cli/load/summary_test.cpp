#include "cli/load/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kNear = 1e-9;

// Request i of one each second: sent 2 ms late, `ttft_s` after its time the first of three chunks
// 10 and 30 ms apart, then [DONE].
LoadRecord answer(size_t i, double ttft_s) {
  const auto at = static_cast<double>(i);
  LoadRecord record{.index = i,
                    .intended_s = at,
                    .sent_s = at + 0.002,
                    .end_s = at + ttft_s + 0.050,
                    .outcome = LoadOutcome::kOk,
                    .status = 200};
  record.chunks_s = {at + ttft_s, at + ttft_s + 0.010, at + ttft_s + 0.040};
  record.has_usage = true;
  record.prompt_tokens = 100;
  record.cached_tokens = 64;
  record.completion_tokens = 5;
  return record;
}

LoadRecord failure(size_t i, int status, const char* reason, const char* detail = "") {
  LoadRecord record = answer(i, 0.1);
  record.outcome = LoadOutcome::kError;
  record.status = status;
  record.reason = reason;
  record.detail = detail;
  return record;
}

LoadIntent intent(const char* slo = nullptr) {
  LoadIntent made{.target = "http://h/v1/completions",
                  .model = "m",
                  .process = ArrivalProcess::kConstant,
                  .rate = 1,
                  .planned = 4};
  if (slo != nullptr) made.slo = *parse_slo(slo);
  return made;
}

TEST(LoadSummary, LatenciesStartAtTheIntendedTime) {
  const LoadSummary sum = summarise(std::vector{answer(0, 0.1), answer(1, 0.3)}, intent());
  EXPECT_NEAR(sum.ttft_ms.p50, 200, kNear);
  EXPECT_NEAR(sum.ttft_ms.most, 300, kNear);
  EXPECT_NEAR(sum.sent_ttft_ms.most, 298, kNear);
  EXPECT_NEAR(sum.e2e_ms.most, 350, kNear);
  EXPECT_NEAR(sum.sent_e2e_ms.most, 348, kNear);
  EXPECT_NEAR(sum.lag_ms.p99, 2, kNear);
  EXPECT_EQ(sum.itl_ms.count, 4);
  EXPECT_NEAR(sum.itl_ms.p50, 20, kNear);
  EXPECT_NEAR(sum.itl_ms.most, 30, kNear);
  EXPECT_EQ(sum.tpot_ms.count, 2);
  EXPECT_NEAR(sum.tpot_ms.p50, 10, kNear);  // four tokens in 40 ms
}

TEST(LoadSummary, ThroughputIsOverTheWholeRun) {
  const LoadSummary sum =
      summarise(std::vector{answer(0, 0.1), failure(2, 429, "http"), answer(3, 0.95)}, intent());
  EXPECT_NEAR(sum.seconds, 4, kNear);
  EXPECT_EQ(sum.output_tokens, 10);
  EXPECT_EQ(sum.prompt_tokens, 200);
  EXPECT_EQ(sum.cached_tokens, 128);
  EXPECT_NEAR(sum.per_second(sum.output_tokens), 2.5, kNear);
  EXPECT_NEAR(sum.per_second(sum.ok), 0.5, kNear);
}

TEST(LoadSummary, GoodputCountsFailuresButNotAborts) {
  std::vector records = {answer(0, 0.1), answer(1, 0.3), answer(2, 0.2), failure(3, 503, "http")};
  LoadSummary sum = summarise(records, intent("ttft=250ms,itl=21ms"));
  EXPECT_EQ(sum.good, 2);
  EXPECT_DOUBLE_EQ(sum.good_share(), 0.5);
  records.push_back(answer(4, 0.1));
  records.back().outcome = LoadOutcome::kAborted;
  sum = summarise(records, intent("ttft=250ms,itl=21ms"));
  EXPECT_EQ(sum.aborted, 1);
  EXPECT_DOUBLE_EQ(sum.good_share(), 0.5);
  EXPECT_EQ(summarise(records, intent("ttft=250ms,itl=19ms")).good, 0);
  const Json json = load_summary_json(sum, intent("ttft=250ms,itl=21ms"));
  EXPECT_EQ(json["goodput"]["good"], 2);
  EXPECT_EQ(json["goodput"]["slo"], "ttft=250ms,itl=21ms");
  EXPECT_TRUE(load_summary_json(sum, intent())["goodput"].is_null());
}

TEST(LoadSummary, FailuresAreGroupedByStatusAndReason) {
  const LoadSummary sum =
      summarise(std::vector{failure(0, 429, "http", "first"), failure(1, 0, "connect"),
                            failure(2, 500, "http"), failure(3, 429, "http", "second")},
                intent());
  EXPECT_EQ(sum.failed, 4);
  ASSERT_EQ(sum.failures.size(), 3u);
  EXPECT_EQ(sum.failures[0].status, 429);
  EXPECT_EQ(sum.failures[0].count, 2);
  EXPECT_EQ(sum.failures[0].example, "first");
  EXPECT_EQ(sum.failures[1].reason, "connect");
  EXPECT_EQ(sum.ttft_ms.count, 0);
  const std::string text = load_summary_text(sum, intent());
  EXPECT_THAT(text, HasSubstr("2 x HTTP 429: first"));
  EXPECT_THAT(text, HasSubstr("1 x connect"));
}

TEST(LoadSummary, KeepsUpWhileSendsAreInTime) {
  std::vector<LoadRecord> records;
  for (size_t i = 0; i < 200; ++i) records.push_back(answer(i, 0.1));
  LoadSummary sum = summarise(records, intent());
  EXPECT_TRUE(sum.kept_up());
  EXPECT_TRUE(sum.sent_gaps.fits);
  EXPECT_THAT(load_notes(sum, intent()), IsEmpty());
  // One late request of 200 is within the 99th percentile; five are not.
  records[7].sent_s += 0.5;
  EXPECT_TRUE(summarise(records, intent()).kept_up());
  for (size_t i = 20; i < 24; ++i) records[i].sent_s += 0.5;
  sum = summarise(records, intent());
  EXPECT_FALSE(sum.kept_up());
  EXPECT_FALSE(sum.sent_gaps.fits);
  EXPECT_THAT(load_notes(sum, intent()),
              ElementsAre(HasSubstr("could not keep up"), HasSubstr("do not look constant")));
}

TEST(LoadSummary, AWaitForAConnectionIsNotKeepingUp) {
  std::vector records = {answer(0, 0.1), answer(1, 0.1), answer(2, 0.1)};
  records[1].waited = true;
  const LoadSummary sum = summarise(records, intent());
  EXPECT_FALSE(sum.kept_up());
  EXPECT_THAT(load_notes(sum, intent()), ElementsAre(HasSubstr("1 of 3 requests found none")));
  const Json json = load_summary_json(sum, intent());
  EXPECT_EQ(json["kept_up"], false);
  EXPECT_EQ(json["arrivals"]["waited"], 1);
}

TEST(LoadSummary, WhatWasNeverSentHasNoLag) {
  LoadRecord unsent{.intended_s = 1,
                    .end_s = 61,
                    .waited = true,
                    .outcome = LoadOutcome::kError,
                    .reason = "timeout"};
  const LoadSummary sum = summarise(std::vector{answer(0, 0.1), unsent}, intent());
  EXPECT_EQ(sum.arrived, 2);
  EXPECT_EQ(sum.sent, 1);
  EXPECT_EQ(sum.lag_ms.count, 1);
  EXPECT_TRUE(load_record_json(unsent, true)["sent_ms"].is_null());
}

TEST(LoadSummary, SaysWhatItCouldNotCount) {
  std::vector records = {answer(0, 0.1), answer(1, 0.1)};
  records[0].has_usage = false;
  records[1].chunks_s.clear();
  const LoadSummary sum = summarise(records, intent());
  EXPECT_EQ(sum.without_usage, 1);
  EXPECT_EQ(sum.without_content, 1);
  EXPECT_EQ(sum.output_tokens, 3 + 5);
  EXPECT_EQ(sum.ttft_ms.count, 1);
  EXPECT_EQ(load_notes(sum, intent()).size(), 2u);
}

TEST(LoadSummary, OfNothing) {
  const LoadSummary sum = summarise({}, intent("ttft=1s"));
  EXPECT_EQ(sum.per_second(3), 0);
  EXPECT_EQ(sum.good_share(), 0);
  EXPECT_TRUE(sum.kept_up());
  EXPECT_THAT(load_summary_text(sum, intent("ttft=1s")), HasSubstr("0 requests in 0.0 s"));
  EXPECT_TRUE(load_summary_json(sum, intent())["itl_ms"].is_null());
}

TEST(LoadRecord, TimesBetweenChunks) {
  const LoadRecord record = answer(0, 0.1);
  EXPECT_NEAR(record.mean_gap_ms(), 20, kNear);
  EXPECT_NEAR(record.longest_gap_ms(), 30, kNear);
  EXPECT_NEAR(record.tpot_ms(), 10, kNear);
  const Json json = load_record_json(record, true);
  EXPECT_EQ(json["gaps_ms"].size(), 2u);
  EXPECT_FALSE(load_record_json(record, false).contains("gaps_ms"));
  LoadRecord one = record;
  one.chunks_s.resize(1);
  EXPECT_EQ(one.mean_gap_ms(), 0);
  EXPECT_EQ(one.longest_gap_ms(), 0);
  EXPECT_EQ(one.tpot_ms(), 0);
}

}  // namespace
}  // namespace tidemill::cli
