#include "sched/draft_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Ids = std::vector<RequestId>;

constexpr int32_t kLength = 3;

// A row costs a tenth of the first one.
DraftCost linear_cost() {
  std::vector<CostPoint> points;
  for (int64_t t = 1; t <= 64; ++t) points.push_back({t, 1.0 + 0.1 * static_cast<double>(t - 1)});
  return DraftCost(*CostCurve::create(points, 64));
}

DraftScheduler scheduler_of(const std::string& policy) {
  return DraftScheduler(*parse_draft_policy(policy, kLength), kLength, linear_cost());
}

// All the step's token budget allows.
DraftDemand demand_of(const Ids& requests) {
  return {.requests = requests, .max_drafts = INT64_MAX};
}

void report(DraftScheduler& scheduler, int64_t step, const Ids& requests,
            const std::vector<float>& confidence) {
  const Status status = scheduler.processed(step, requests, confidence);
  ASSERT_TRUE(status) << status.error().message;
}

TEST(DraftPolicy, IsReadAndWritten) {
  for (const char* text :
       {"off", "fixed:0", "fixed:3", "dynamic", "dynamic-lagged", "dynamic-early-stop"}) {
    const auto policy = parse_draft_policy(text, kLength);
    ASSERT_TRUE(policy) << text;
    EXPECT_EQ(to_string(*policy), text);
  }
  for (const char* text : {"", "on", "fixed", "fixed:", "fixed:4", "fixed:-1", "fixed:2x",
                           "fixed: 2", "fixed:99999999999", "Dynamic"}) {
    const auto policy = parse_draft_policy(text, kLength);
    ASSERT_FALSE(policy) << text;
    EXPECT_EQ(policy.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(policy.error().message, HasSubstr("fixed:N with N from 0 to 3"));
  }
}

TEST(DraftScheduler, OffAndFixedNeedNoResults) {
  const Ids requests = {4, 5};
  DraftScheduler off = scheduler_of("off");
  EXPECT_THAT(off.plan(100, demand_of(requests))->lengths, ElementsAre(0, 0));
  DraftScheduler fixed = scheduler_of("fixed:2");
  const std::vector<int32_t> limits = {3, 1};
  DraftDemand demand = demand_of(requests);
  demand.limits = limits;
  const auto plan = fixed.plan(100, demand);
  EXPECT_THAT(plan->lengths, ElementsAre(2, 1));
  EXPECT_EQ(plan->drafts, 3);
  demand.max_drafts = 2;
  EXPECT_THAT(fixed.plan(100, demand)->lengths, ElementsAre(1, 1));
  demand.max_drafts = 1;  // not enough for one each
  EXPECT_THAT(fixed.plan(100, demand)->lengths, ElementsAre(0, 0));
}

TEST(DraftScheduler, PublishedTakesTheNumberFromTwoStepsAgoAndLeavesTheSplitToTheDevice) {
  DraftScheduler scheduler = scheduler_of("dynamic");
  const Ids requests = {4, 5};
  report(scheduler, 0, requests, {0.9f, 0.9f, 0.0f, 0.0f, 0.0f, 0.0f});
  report(scheduler, 1, requests, {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f});  // may not be seen yet
  const auto plan = scheduler.plan(2, demand_of(requests));
  EXPECT_EQ(plan->drafts, 2);
  EXPECT_THAT(plan->lengths, IsEmpty());
  EXPECT_NEAR(plan->expected_tokens, 2 + 0.9 + 0.81, 1e-6);
  EXPECT_NEAR(plan->expected_ms, 1.3, 1e-9);
  EXPECT_EQ(scheduler.plan(3, demand_of(requests))->drafts, 6);
}

TEST(DraftScheduler, LaggedFixesTheLengthsFromTwoStepsAgoAndOlder) {
  DraftScheduler scheduler = scheduler_of("dynamic-lagged");
  report(scheduler, 0, {4, 5}, {0.9f, 0.9f, 0.0f, 0.0f, 0.0f, 0.0f});
  report(scheduler, 1, {4, 5}, {0.0f, 0.0f, 0.0f, 0.9f, 0.9f, 0.9f});
  const Ids requests = {5, 4, 6};  // 6 is new
  EXPECT_THAT(scheduler.plan(2, demand_of(requests))->lengths, ElementsAre(0, 2, 3));
  // One step the other way is not enough to turn the smoothed values round.
  EXPECT_THAT(scheduler.plan(3, demand_of(requests))->lengths, ElementsAre(0, 2, 3));
}

TEST(DraftScheduler, EarlyStopNeedsTheNewestResults) {
  DraftScheduler scheduler = scheduler_of("dynamic-early-stop");
  const Ids requests = {4, 5};
  report(scheduler, 0, requests, {0.9f, 0.0f, 0.0f, 0.9f, 0.0f, 0.0f});
  EXPECT_THAT(scheduler.plan(2, demand_of(requests)).error().message,
              HasSubstr("with confidences of step 1"));
  report(scheduler, 1, requests, {0.9f, 0.9f, 0.0f, 0.0f, 0.0f, 0.0f});
  const auto plan = scheduler.plan(2, demand_of(requests));
  ASSERT_TRUE(plan) << plan.error().message;
  // From step 0: begin with one each or with none, which are equally good; from step 1: two of 4.
  EXPECT_EQ(plan->lengths[0], 2);
}

TEST(DraftScheduler, RefusesAPlanWithoutResultsOfItsAge) {
  for (const char* policy : {"dynamic", "dynamic-lagged", "dynamic-early-stop"}) {
    DraftScheduler scheduler = scheduler_of(policy);
    const Ids requests = {4};
    EXPECT_TRUE(scheduler.plan(0, demand_of(requests))) << policy;
    const auto plan = scheduler.plan(2, demand_of(requests));
    ASSERT_FALSE(plan) << policy;
    EXPECT_EQ(plan.error().code, ErrorCode::kInternal);
  }
}

TEST(DraftScheduler, RefusesLimitsThatDoNotMatch) {
  DraftScheduler scheduler = scheduler_of("fixed:1");
  const std::vector<int32_t> limits = {1};
  const Ids requests = {4, 5};
  EXPECT_THAT(scheduler.plan(0, {.requests = requests, .limits = limits}).error().message,
              HasSubstr("1 draft limits for 2 requests"));
}

TEST(DraftScheduler, KeepsToLimitsAndBudgetInAllModes) {
  const Ids requests = {4, 5};
  const std::vector<int32_t> limits = {0, 2};
  for (const char* policy : {"off", "fixed:3", "dynamic", "dynamic-lagged", "dynamic-early-stop"}) {
    DraftScheduler scheduler = scheduler_of(policy);
    for (int64_t budget = -1; budget < 4; ++budget) {
      const auto plan =
          scheduler.plan(0, {.requests = requests, .limits = limits, .max_drafts = budget});
      ASSERT_TRUE(plan) << policy;
      EXPECT_LE(plan->drafts, std::clamp<int64_t>(budget, 0, 2)) << policy;
      if (!plan->lengths.empty()) {
        EXPECT_EQ(plan->lengths[0], 0);
        EXPECT_EQ(plan->lengths[1], plan->drafts);
      }
    }
  }
}

// Measured steps that are slower than the profile make drafts dearer.
TEST(DraftScheduler, LearnsFromMeasuredSteps) {
  DraftScheduler scheduler = scheduler_of("dynamic");
  const Ids requests = {4};
  report(scheduler, 0, requests, {0.5f, 0.5f, 0.5f});
  EXPECT_EQ(scheduler.plan(2, demand_of(requests))->drafts, 2);
  for (int64_t tokens = 1; tokens < 5; ++tokens) {
    scheduler.cost().record_forward(tokens, 1.1 * static_cast<double>(tokens));
  }
  EXPECT_EQ(scheduler.plan(2, demand_of(requests))->drafts, 1);
}

}  // namespace
}  // namespace tidemill
