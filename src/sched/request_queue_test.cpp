#include "sched/request_queue.h"

#include <gtest/gtest.h>

#include "sched/chunk.h"

namespace tidemill {
namespace {

class TurnTest : public testing::Test {
 protected:
  TurnTest() {
    options.age_ms = 100;
    options.age_ms_per_token = 1;
    options.fair_quantum = 50;
    a.tenant = &first;
    b.tenant = &second;
    for (ScheduledRequest* r : {&a, &b}) r->arrival.prompt_tokens = 100;
    a.number = 1;
    b.number = 2;
  }
  bool a_first(double now = 0) const { return turn_of(a, now, options) < turn_of(b, now, options); }

  SchedulerOptions options;
  FairShare::Tenant first, second;
  ScheduledRequest a, b;
};

TEST_F(TurnTest, ArrivalDecidesLast) { EXPECT_TRUE(a_first()); }

TEST_F(TurnTest, DeadlineBeforeArrival) {
  b.arrival.deadline = 1e9;
  EXPECT_FALSE(a_first());
}

TEST_F(TurnTest, ShareBeforeDeadline) {
  b.arrival.deadline = 1e9;
  second.served = 49;  // the same round still
  EXPECT_FALSE(a_first());
  second.served = 50;
  EXPECT_TRUE(a_first());
}

TEST_F(TurnTest, StartedBeforeShare) {
  first.served = 1000;
  EXPECT_FALSE(a_first());
  a.started = true;
  EXPECT_TRUE(a_first());
}

TEST_F(TurnTest, LevelBeforeStarted) {
  a.started = true;
  a.arrival.priority = 1;
  EXPECT_FALSE(a_first());
}

TEST_F(TurnTest, ALevelPerSpanOfAge) {
  a.arrival.priority = 2;
  b.arrived = 390;  // spans of 100 + 100 * 1 ms
  EXPECT_FALSE(a_first(399));
  EXPECT_TRUE(a_first(400));
  a.arrival.prompt_tokens = 101;
  EXPECT_FALSE(a_first(400));
  EXPECT_TRUE(a_first(402));
}

TEST_F(TurnTest, ClaimBeforeEverything) {
  b.claimed = true;
  b.arrival.priority = 100;
  EXPECT_FALSE(a_first());
}

TEST_F(TurnTest, ClocksCannotOverflowIt) {
  EXPECT_EQ(turn_of(a, -1e300, options).level, 0);
  EXPECT_LT(turn_of(a, 1e300, options).level, -1000);
}

TEST(RequestQueue, CountsByPriority) {
  FairShare::Tenant tenant;
  std::vector<ScheduledRequest> requests(5);
  RequestQueue queue;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].tenant = &tenant;
    requests[i].arrival.priority = static_cast<int32_t>(i) / 2;
    requests[i].arrival.prompt_tokens = 10;
    queue.push(requests[i]);
  }
  EXPECT_EQ(queue.tokens(), 50);
  EXPECT_EQ(queue.ahead_of(-1).requests, 0);
  EXPECT_EQ(queue.ahead_of(1).requests, 4);
  EXPECT_EQ(queue.ahead_of(1).tokens, 40);
  EXPECT_EQ(tenant.waiting, 5);
  queue.remove(requests[0]);
  queue.remove(requests[1]);
  EXPECT_EQ(queue.best_priority(), 1);
  for (size_t i = 2; i < 5; ++i) queue.remove(requests[i]);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.tokens(), 0);
  EXPECT_EQ(tenant.waiting, 0);
}

TEST(Chunk, Rules) {
  for (int64_t rest = 1; rest < 100; ++rest) {
    for (int64_t room = 0; room < 100; ++room) {
      for (const int64_t shortest : {1, 5, 16}) {
        for (const int64_t align : {1, 8}) {
          for (const int64_t position : {0, 3, 8}) {
            const int64_t n = chunk_size(position, rest, room, shortest, align);
            ASSERT_LE(n, room);
            ASSERT_TRUE(n > 0 || room < 2 * shortest);
            if (n == 0 || n == rest) continue;
            ASSERT_GT(rest, room);
            ASSERT_GE(n, shortest);
            ASSERT_GE(rest - n, shortest);
            if ((position + n) % align != 0) {
              // A cut at the multiple below would have been too short.
              ASSERT_LT((position + n) / align * align - position, shortest);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tidemill
