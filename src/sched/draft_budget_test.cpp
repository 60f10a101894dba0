#include "sched/draft_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "sched/draft_random.h"

namespace tidemill {
namespace {

using testing::Each;
using testing::ElementsAre;

DraftCost cost_of(std::vector<CostPoint> points) {
  const int64_t largest = points.back().tokens;
  auto curve = CostCurve::create(std::move(points), largest);
  EXPECT_TRUE(curve) << curve.error().message;
  return DraftCost(*curve);
}

// Graph sizes and times that jump, some by nothing, some by much.
DraftCost jagged_cost(Random& random, int64_t up_to) {
  std::vector<CostPoint> points;
  double ms = 1.0 + random.below(10);
  for (int64_t tokens = 1; tokens < up_to + 4; tokens += 1 + random.below(4)) {
    ms += random.below(3) * 0.5;
    points.push_back({tokens, ms});
  }
  points.push_back({up_to + 8, ms + 1.0});
  return cost_of(std::move(points));
}

struct RandomBatch {
  std::vector<float> confidence;
  std::vector<int32_t> limits;
  DraftBatch batch;

  RandomBatch(Random& random, int64_t requests, int32_t draft_length) {
    for (int64_t i = 0; i < requests * draft_length; ++i) {
      const float odd[] = {1.0f, 1.0f, 0.5f, 0.0f, NAN, 2.0f, -1.0f};  // ties and nonsense
      const int32_t kind = random.below(10);
      confidence.push_back(kind < 7 ? odd[kind] : static_cast<float>(random.uniform()));
    }
    for (int64_t r = 0; r < requests; ++r) {
      limits.push_back(random.below(draft_length + 3) - 1);
    }
    batch = {.confidence = confidence,
             .limits = random.below(3) == 0 ? std::span<const int32_t>() : limits,
             .requests = requests,
             .draft_length = draft_length,
             .other_tokens = random.below(4)};
  }
};

float acceptance(const DraftBatch& batch, int64_t request, int32_t position) {
  float a = 1.0f;
  for (int32_t j = 0; j <= position; ++j) {
    const float c = batch.confidence[request * batch.draft_length + j];
    a *= std::isnan(c) ? 0.0f : std::min(std::max(c, 0.0f), 1.0f);
  }
  return a;
}

double expected(const DraftBatch& batch, const std::vector<int32_t>& lengths) {
  double tokens = static_cast<double>(batch.requests);
  for (int64_t r = 0; r < batch.requests; ++r) {
    for (int32_t j = 0; j < lengths[r]; ++j) tokens += acceptance(batch, r, j);
  }
  return tokens;
}

int64_t sum(const std::vector<int32_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

// One at a time: among the next drafts of all requests the best, by position, then by request.
std::vector<int32_t> naive_allocation(const DraftBatch& batch, int64_t drafts) {
  std::vector<int32_t> lengths(static_cast<size_t>(batch.requests), 0);
  for (; drafts > 0; --drafts) {
    int64_t best = -1;
    for (int64_t r = 0; r < batch.requests; ++r) {
      if (lengths[r] >= batch.limit(r)) continue;
      if (best < 0) {
        best = r;
        continue;
      }
      const float a = acceptance(batch, r, lengths[r]);
      const float b = acceptance(batch, best, lengths[best]);
      if (a > b || (a == b && lengths[r] < lengths[best])) best = r;
    }
    if (best < 0) break;
    ++lengths[best];
  }
  return lengths;
}

TEST(AllocateDrafts, AgreesWithTakingTheBestOneAtATime) {
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    const RandomBatch random_batch(random, random.below(6), 1 + random.below(5));
    const DraftBatch& batch = random_batch.batch;
    const int64_t drafts = random.below(32) - 1;
    std::vector<int32_t> lengths(static_cast<size_t>(batch.requests), 77);
    allocate_drafts(batch, drafts, lengths);
    ASSERT_EQ(lengths, naive_allocation(batch, drafts)) << round;
    int64_t room = 0;
    for (int64_t r = 0; r < batch.requests; ++r) room += batch.limit(r);
    ASSERT_EQ(sum(lengths), std::min(std::max<int64_t>(drafts, 0), room));
  }
}

TEST(AllocateDrafts, TiesGoToTheSmallerPositionThenTheSmallerRequest) {
  const std::vector<float> ones(6, 1.0f);
  const DraftBatch batch{.confidence = ones, .requests = 3, .draft_length = 2};
  std::vector<int32_t> lengths(3);
  allocate_drafts(batch, 2, lengths);
  EXPECT_THAT(lengths, ElementsAre(1, 1, 0));
  allocate_drafts(batch, 4, lengths);
  EXPECT_THAT(lengths, ElementsAre(2, 1, 1));
}

TEST(SearchBudget, IsTheBestOfAllAssignmentsOfLengths) {
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    const RandomBatch random_batch(random, 1 + random.below(3), 1 + random.below(3));
    const DraftBatch& batch = random_batch.batch;
    const DraftCost cost = jagged_cost(random, 16);
    const auto n = batch.draft_length + 1;
    double best = 0.0;
    for (int64_t code = 0; code < n * n * n; ++code) {
      std::vector<int32_t> lengths;
      bool legal = true;
      int64_t rest = code;
      for (int64_t r = 0; r < batch.requests; ++r, rest /= n) {
        lengths.push_back(static_cast<int32_t>(rest % n));
        legal = legal && lengths.back() <= batch.limit(r);
      }
      if (!legal) continue;
      const double ms = cost.step_ms(batch.requests + batch.other_tokens + sum(lengths));
      best = std::max(best, expected(batch, lengths) / ms);
    }
    const DraftBudget budget = search_budget(batch, cost);
    ASSERT_NEAR(budget.tokens_per_ms(), best, 1e-12) << round;

    // What it promises is what allocate_drafts makes of it.
    std::vector<int32_t> lengths(static_cast<size_t>(batch.requests));
    allocate_drafts(batch, budget.drafts, lengths);
    ASSERT_EQ(sum(lengths), budget.drafts);
    ASSERT_NEAR(expected(batch, lengths), budget.expected_tokens, 1e-9);
  }
}

TEST(SearchBudget, AndBestStartNeverLoseToAFixedLength) {
  Random random(3);
  for (int round = 0; round < 1000; ++round) {
    const RandomBatch random_batch(random, random.below(12), 5);
    const DraftBatch& batch = random_batch.batch;
    const DraftCost cost = jagged_cost(random, 75);
    std::vector<int32_t> lengths(static_cast<size_t>(batch.requests));
    const double searched = search_budget(batch, cost).tokens_per_ms();
    const double early = early_stop(batch, cost, best_start(batch, cost), lengths).tokens_per_ms();
    for (int32_t length = 0; length <= 5; ++length) {
      const double fixed = fixed_budget(batch, cost, length).tokens_per_ms();
      ASSERT_GE(searched, fixed - 1e-9) << round << " " << length;
      ASSERT_GE(early, fixed - 1e-9) << round << " " << length;
    }
  }
}

TEST(SearchBudget, CrossesALocalMinimum) {
  // The second row costs much, the third almost nothing.
  const DraftCost cost = cost_of({{1, 1.0}, {2, 2.5}, {3, 2.6}, {4, 2.6}});
  const std::vector<float> sure(3, 1.0f);
  const DraftBatch batch{.confidence = sure, .requests = 1, .draft_length = 3};
  EXPECT_EQ(search_budget(batch, cost).drafts, 3);
}

TEST(SearchBudget, KeepsToMaxDraftsAndTakesTheSmallestOfEquals) {
  const DraftCost cost = cost_of({{16, 1.0}});
  const std::vector<float> confidence = {1.0f, 1.0f, 0.0f, 1.0f, 0.5f, 0.0f};
  DraftBatch batch{.confidence = confidence, .requests = 2, .draft_length = 3};
  EXPECT_EQ(search_budget(batch, cost).drafts, 4);  // the last two add nothing
  batch.max_drafts = 2;
  EXPECT_EQ(search_budget(batch, cost).drafts, 2);
  batch.max_drafts = -1;
  EXPECT_EQ(search_budget(batch, cost).drafts, 0);
  EXPECT_EQ(best_start(batch, cost).first, 0);
  batch.max_drafts = 3;
  std::vector<int32_t> lengths(2);
  EXPECT_EQ(early_stop(batch, cost, {}, lengths).drafts, 3);
}

TEST(SearchBudget, OfNoRequestsIsEmpty) {
  const DraftCost cost = cost_of({{16, 1.0}});
  const DraftBatch batch{.draft_length = 5, .other_tokens = 7};
  EXPECT_EQ(search_budget(batch, cost).drafts, 0);
  EXPECT_EQ(early_stop(batch, cost, best_start(batch, cost), {}).drafts, 0);
}

TEST(EarlyStop, StopsAtTheFirstDraftThatDoesNotPay) {
  // Time grows by a fifth of the first row's a row, so a draft pays above tokens / (5 + drafts).
  std::vector<CostPoint> points;
  for (int64_t t = 1; t <= 8; ++t) points.push_back({t, 1.0 + 0.2 * static_cast<double>(t - 1)});
  const DraftCost cost = cost_of(points);
  const std::vector<float> confidence = {0.9f, 0.5f, 0.5f};
  const DraftBatch batch{.confidence = confidence, .requests = 1, .draft_length = 3};
  std::vector<int32_t> lengths(1);
  // 1 / 1.0 < 1.9 / 1.2 < 2.35 / 1.4 > 2.575 / 1.6
  const DraftBudget budget = early_stop(batch, cost, {}, lengths);
  EXPECT_THAT(lengths, ElementsAre(2));
  EXPECT_NEAR(budget.expected_tokens, 2.35, 1e-6);
  EXPECT_NEAR(budget.step_ms, 1.4, 1e-12);
}

TEST(EarlyStop, FillsRowsThatWouldBePadding) {
  const DraftCost cost = cost_of({{1, 1.0}, {4, 1.5}, {8, 9.0}});
  const std::vector<float> confidence = {0.9f, 0.1f, 0.1f, 0.1f, 0.1f};
  const DraftBatch batch{.confidence = confidence, .requests = 1, .draft_length = 5};
  std::vector<int32_t> lengths(1);
  early_stop(batch, cost, {}, lengths);
  EXPECT_THAT(lengths, ElementsAre(3));
}

TEST(EarlyStop, KeepsToLimitsAndMaxDrafts) {
  Random random(4);
  for (int round = 0; round < 1000; ++round) {
    const RandomBatch random_batch(random, random.below(8), 4);
    DraftBatch batch = random_batch.batch;
    batch.max_drafts = random.below(20);
    const DraftCost cost = jagged_cost(random, 40);
    const EarlyStart start = best_start(batch, cost);
    std::vector<int32_t> lengths(static_cast<size_t>(batch.requests));
    const DraftBudget budget = early_stop(batch, cost, start, lengths);
    ASSERT_EQ(sum(lengths), budget.drafts);
    ASSERT_LE(budget.drafts, batch.max_drafts);
    for (int64_t r = 0; r < batch.requests; ++r) {
      ASSERT_GE(lengths[r], std::min(start.first, batch.limit(r)));
      ASSERT_LE(lengths[r], batch.limit(r));
    }
  }
}

}  // namespace
}  // namespace tidemill
