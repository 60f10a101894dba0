#include "serve/service/work_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace tidemill {
namespace {

TEST(WorkQueue, RunsInOrder) {
  WorkQueue queue(1, 100);
  std::vector<int> order;
  std::promise<void> done;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(queue.submit([&, i] { order.push_back(i); }));
  EXPECT_TRUE(queue.submit([&] { done.set_value(); }));
  ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(WorkQueue, RefusesWhatIsTooMuch) {
  WorkQueue queue(1, 2);
  std::promise<void> begun;
  std::promise<void> go;
  EXPECT_TRUE(queue.submit([&] {
    begun.set_value();
    go.get_future().wait_for(std::chrono::seconds(30));
  }));
  ASSERT_EQ(begun.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_TRUE(queue.submit([] {}));
  EXPECT_TRUE(queue.submit([] {}));
  EXPECT_FALSE(queue.submit([] {}));
  EXPECT_EQ(queue.pending(), 3);
  go.set_value();
}

TEST(WorkQueue, StopDropsWhatHasNotBegun) {
  WorkQueue queue(1, 10);
  std::promise<void> begun;
  std::atomic<bool> go{false};
  std::atomic<int> ran{0};
  EXPECT_TRUE(queue.submit([&] {
    begun.set_value();
    while (!go) std::this_thread::yield();
    ++ran;
  }));
  EXPECT_TRUE(queue.submit([&] { ++ran; }));
  ASSERT_EQ(begun.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  std::thread stopper([&] { queue.stop(); });
  while (queue.pending() > 1) std::this_thread::yield();
  go = true;
  stopper.join();
  EXPECT_EQ(ran, 1);
  EXPECT_FALSE(queue.submit([] {}));
}

}  // namespace
}  // namespace tidemill
