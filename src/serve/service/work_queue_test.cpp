#include "serve/service/work_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>

namespace tidemill {
namespace {

TEST(WorkQueue, RunsInOrder) {
  std::vector<int> order;
  std::promise<void> done;
  WorkQueue queue(1, {});
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(queue.submit(0, 1, [&, i] { order.push_back(i); }));
  EXPECT_TRUE(queue.submit(0, 1, [&] { done.set_value(); }));
  ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(WorkQueue, RefusesWhatIsTooMuch) {
  std::promise<void> begun;
  std::promise<void> go;
  WorkQueue queue(1, {.works = 2, .bytes = 100});
  EXPECT_TRUE(queue.submit(0, 1000, [&] {
    begun.set_value();
    go.get_future().wait_for(std::chrono::seconds(30));
  }));
  ASSERT_EQ(begun.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_TRUE(queue.submit(0, 60, [] {}));
  EXPECT_FALSE(queue.submit(0, 60, [] {}));
  EXPECT_TRUE(queue.submit(0, 40, [] {}));
  EXPECT_FALSE(queue.submit(0, 0, [] {}));
  EXPECT_EQ(queue.pending(), 3);
  EXPECT_EQ(queue.bytes(), 1100);
  go.set_value();
}

TEST(WorkQueue, StopDropsWhatHasNotBegun) {
  std::promise<void> begun;
  std::atomic<bool> go{false};
  std::atomic<int> ran{0};
  WorkQueue queue(1, {});
  EXPECT_TRUE(queue.submit(0, 1, [&] {
    begun.set_value();
    while (!go) std::this_thread::yield();
    ++ran;
  }));
  EXPECT_TRUE(queue.submit(0, 1, [&] { ++ran; }));
  ASSERT_EQ(begun.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  std::thread stopper([&] { queue.stop(); });
  while (queue.pending() > 1) std::this_thread::yield();
  go = true;
  stopper.join();
  EXPECT_EQ(ran, 1);
  EXPECT_FALSE(queue.submit(0, 1, [] {}));
}

TEST(WorkQueue, TenantsTakeTurns) {
  std::promise<void> begun;
  std::promise<void> go;
  std::promise<void> done;
  std::string order;
  WorkQueue queue(1, {});
  EXPECT_TRUE(queue.submit(1, 1, [&] {
    begun.set_value();
    go.get_future().wait_for(std::chrono::seconds(30));
  }));
  ASSERT_EQ(begun.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.submit(1, 1, [&] { order += 'a'; }));
  EXPECT_TRUE(queue.submit(2, 1, [&] { order += 'b'; }));
  EXPECT_TRUE(queue.submit(2, 1, [&] { order += 'b'; }));
  EXPECT_TRUE(queue.submit(3, 1, [&] { order += 'c'; }));
  EXPECT_TRUE(queue.submit(1, 1, [&] { done.set_value(); }));
  go.set_value();
  ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(order, "abcaba");
}

}  // namespace
}  // namespace tidemill
