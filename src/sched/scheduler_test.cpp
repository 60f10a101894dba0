// What traces cannot say: options, and calls that an engine should not make.
#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "sched/fake_device.h"

namespace tidemill {
namespace {

SchedulerOptions small() {
  SchedulerOptions options;
  options.context = 1000;
  options.pool_blocks = 100;
  options.block_tokens = 16;
  options.max_step_tokens = 64;
  options.max_sequences = 4;
  return options;
}

TEST(SchedulerOptions, Ranges) {
  EXPECT_TRUE(small().check());
  const auto refused = [](auto change, std::string_view name) {
    SchedulerOptions options = small();
    change(options);
    const auto scheduler = Scheduler::create(options);
    ASSERT_FALSE(scheduler) << name;
    EXPECT_EQ(scheduler.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(scheduler.error().message.find(name), std::string::npos);
  };
  refused([](auto& o) { o.context = 0; }, "context");
  refused([](auto& o) { o.pool_blocks = -1; }, "pool_blocks");
  refused([](auto& o) { o.block_tokens = 0; }, "block_tokens");
  refused([](auto& o) { o.max_sequences = 0; }, "max_sequences");
  refused([](auto& o) { o.min_chunk = 0; }, "min_chunk");
  refused([](auto& o) { o.min_chunk = 31; }, "max_step_tokens");
  refused([](auto& o) { o.step_ms = std::numeric_limits<double>::quiet_NaN(); }, "step_ms");
  refused([](auto& o) { o.watermark = 1; }, "watermark");
  refused([](auto& o) { o.age_ms = 0; }, "age_ms");
  refused([](auto& o) { o.fair_quantum = 0; }, "fair_quantum");
  refused([](auto& o) { o.cost.memory = 1.5; }, "cost.memory");
}

class SchedulerCalls : public testing::Test {
 protected:
  void SetUp() override {
    for (RequestId id : {1, 2}) {
      const Arrival arrival{.id = id, .prompt_tokens = 20, .max_tokens = 8};
      ASSERT_TRUE(scheduler.submit(arrival, 0));
    }
  }
  StepPlan plan() { return scheduler.plan(0, {.free_blocks = 100, .free_slots = 4}); }
  ErrorCode commit(uint64_t step, std::vector<ItemResult> results) {
    const Status status = scheduler.commit(step, results, 1.0);
    return status ? ErrorCode{} : status.error().code;
  }

  Scheduler scheduler = Scheduler::create(small()).value();
};

TEST_F(SchedulerCalls, WrongCommitsChangeNothing) {
  EXPECT_EQ(commit(1, {}), ErrorCode::kInternal);  // nothing in flight
  scheduler.set_drafts(1, 2);
  const uint64_t first = plan().step;
  const uint64_t second = plan().step;
  const std::vector<ItemResult> right = {{1, false}, {1, false}};
  EXPECT_EQ(commit(second, right), ErrorCode::kInternal);
  EXPECT_EQ(commit(first, {{1, false}}), ErrorCode::kInternal);
  EXPECT_EQ(commit(first, {{1, false}, {0, false}}), ErrorCode::kInternal);
  EXPECT_EQ(commit(first, {{1, false}, {2, false}}), ErrorCode::kInternal);
  EXPECT_EQ(scheduler.find(1)->outputs, 0);
  EXPECT_EQ(commit(first, right), ErrorCode{});
  EXPECT_EQ(commit(second, {{4, false}, {1, false}}), ErrorCode::kInternal);
  EXPECT_EQ(commit(second, {{3, false}, {-1, false}}), ErrorCode::kInternal);
  EXPECT_EQ(commit(second, {{3, false}, {0, true}}), ErrorCode{});
  EXPECT_EQ(scheduler.find(1)->outputs, 4);
  EXPECT_EQ(scheduler.find(2), nullptr);
}

TEST_F(SchedulerCalls, UnknownIds) {
  EXPECT_FALSE(scheduler.cancel(77));
  scheduler.set_drafts(77, 5);
  scheduler.lose_snapshot(77);
  scheduler.lose_snapshot(1);
  scheduler.set_drafts(1, -5);
  EXPECT_EQ(scheduler.find(77), nullptr);
  EXPECT_EQ(plan().items.size(), 2u);
}

TEST_F(SchedulerCalls, AnEmptyPoolPlansNothing) {
  const StepPlan plan = scheduler.plan(0, {});
  EXPECT_EQ(plan.step, 0u);
  EXPECT_TRUE(plan.items.empty());
  EXPECT_EQ(scheduler.in_flight(), 0);
}

// What is served to a tenant moves its later requests back, not those that have started.
TEST(SchedulerOrder, TheRoundIsFixedAtTheStart) {
  SchedulerOptions options = small();
  options.fair_quantum = 10;
  Scheduler scheduler = Scheduler::create(options).value();
  for (RequestId id : {1, 2}) {
    ASSERT_TRUE(scheduler.submit({.id = id, .prompt_tokens = 25, .max_tokens = 8}, 0));
  }
  scheduler.plan(0, {.free_blocks = 100, .free_slots = 4});
  EXPECT_EQ(scheduler.find(1)->round, 0);
  EXPECT_EQ(scheduler.find(2)->round, 2);
  EXPECT_EQ(turn_of(*scheduler.find(1), 0, options).round, 0);
}

TEST_F(SchedulerCalls, AHeldRequestKeepsItsPlaceAndWaits) {
  ASSERT_TRUE(scheduler.submit(
      {.id = 3, .priority = -5, .prompt_tokens = 8, .max_tokens = 4, .held = true}, 0));
  ASSERT_TRUE(scheduler.submit({.id = 4, .prompt_tokens = 8, .max_tokens = 4}, 0));
  const auto started = [&](RequestId id) {
    const StepPlan step = plan();
    return std::any_of(step.items.begin(), step.items.end(),
                       [&](const PlanItem& item) { return item.id == id; });
  };
  EXPECT_TRUE(started(4));
  EXPECT_FALSE(started(3));
  scheduler.release(77);
  scheduler.release(3);
  EXPECT_TRUE(started(3));
}

// A hit that is computed again in part (encoder replay) brings more blocks than tokens.
TEST_F(SchedulerCalls, BlocksOfAHitAreCountedAsHeld) {
  SchedulerOptions options = small();
  Scheduler fresh = Scheduler::create(options).value();
  const int64_t block = options.block_tokens;
  ASSERT_TRUE(fresh.submit({.id = 1, .prompt_tokens = 5 * block, .max_tokens = 2}, 0));
  Capacity capacity{.free_blocks = 100, .free_slots = 4};
  capacity.prefix_hit = [&](RequestId) {
    return PrefixReuse{.tokens = block, .blocks = 3, .shared_blocks = 3};
  };
  fresh.plan(0, capacity);
  EXPECT_GE(fresh.find(1)->blocks, 3);
  EXPECT_EQ(fresh.find(1)->shared_blocks, 3);
}

TEST_F(SchedulerCalls, AbsurdPrefixHits) {
  for (const PrefixReuse hit : {PrefixReuse{-5, -5, -5}, PrefixReuse{1 << 30, 1 << 30, 1 << 30}}) {
    Scheduler fresh = Scheduler::create(small()).value();
    const Arrival arrival{.id = 1, .prompt_tokens = 20, .max_tokens = 8};
    ASSERT_TRUE(fresh.submit(arrival, 0));
    Capacity capacity{.free_blocks = 100, .free_slots = 4};
    capacity.prefix_hit = [&](RequestId) { return hit; };
    const StepPlan plan = fresh.plan(0, capacity);
    ASSERT_EQ(plan.items.size(), 1u);
    EXPECT_EQ(plan.items[0].position + plan.items[0].tokens, 20);
  }
}

// The time budget in a loop: a noisy device with known costs, a stream of long prompts beside
// decoding requests. Steps keep to the budget that the true costs define.
TEST(SchedulerTime, StepsKeepToTheBudget) {
  SchedulerOptions options;
  options.context = 40000;
  options.pool_blocks = 2000;
  options.max_step_tokens = 4096;
  options.max_sequences = 32;
  options.step_ms = 20;
  Scheduler scheduler = Scheduler::create(options).value();
  FakeDevice device(2000, 32, 128);
  std::mt19937 random(11);
  std::lognormal_distribution<double> noise(0, 0.05);
  RequestId next = 1;
  int64_t late = 0, steps = 0, prefills = 0;
  double total = 0;
  for (double now = 0; steps < 3000;) {
    while (scheduler.waiting() < 4) {
      const auto prompt = std::uniform_int_distribution<int64_t>(10, 30000)(random);
      const Arrival arrival{.id = next++, .prompt_tokens = prompt, .max_tokens = 100};
      ASSERT_TRUE(scheduler.submit(arrival, now));
      device.arrive(arrival);
    }
    const StepPlan plan = scheduler.plan(now, device.capacity());
    device.launch(plan);
    ASSERT_NE(plan.step, 0u);
    const double truth = 3 + 0.01 * static_cast<double>(plan.shape.tokens) + 2e-7 * plan.shape.area;
    const auto results = device.finish([](const PlanItem&) { return ItemResult{1, false}; });
    ASSERT_TRUE(scheduler.commit(plan.step, results, truth * noise(random)));
    ASSERT_EQ(device.complaint(), "");
    now += truth;
    if (++steps <= 100) continue;  // learning
    late += truth > options.step_ms * 1.1;
    total += truth;
    prefills += !plan.items.empty() && !plan.items.back().decode;
  }
  EXPECT_LT(late, 30);        // 1 %
  EXPECT_GT(prefills, 2500);  // and the budget is used:
  EXPECT_GT(total / 2900, 0.85 * 20.0);
}

}  // namespace
}  // namespace tidemill
