#include "serve/service/event_pump.h"

#include <gtest/gtest.h>

#include <mutex>

#include "base/clock.h"
#include "base/result.h"

namespace tidemill {
namespace {

// Gives what it is told to.
class Source : public ServedEngine {
 public:
  Result<RequestId> submit(Request) override { return fail(ErrorCode::kInternal, "none"); }
  bool cancel(RequestId) override { return false; }
  Stats stats() const override { return {}; }
  const ModelInfo& info() const override { return info_; }
  std::vector<Event> poll(Engine::Milliseconds) override {
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }
  void add(RequestId id, int64_t choice) {
    const std::lock_guard lock(mutex_);
    events_.push_back({.id = id, .choice = choice});
  }

 private:
  ModelInfo info_;
  std::mutex mutex_;
  std::vector<Event> events_;
};

struct Taker {
  std::mutex mutex;
  std::vector<Event> events;
  std::vector<size_t> batches;
  std::function<void()> taken;

  EventPump::Deliver deliver(bool at_once) {
    return [this, at_once](std::vector<Event> batch, std::function<void()> done) {
      const std::lock_guard lock(mutex);
      batches.push_back(batch.size());
      for (Event& event : batch) events.push_back(std::move(event));
      taken = done;
      if (at_once) done();
    };
  }
  size_t count() {
    const std::lock_guard lock(mutex);
    return events.size();
  }
};

template <typename Condition>
bool eventually(Condition condition) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(30));
  while (!condition()) {
    if (deadline.expired()) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(EngineId, NamesExchangePromptAndThread) {
  const RequestId id = EngineId::of(12345, 127);
  EXPECT_EQ(EngineId::exchange(id), 12345u);
  EXPECT_EQ(EngineId::prompt(id), 127);
  EXPECT_EQ(EngineId::thread(id, 10), 5u);
}

TEST(EventPump, EachThreadGetsItsOwnInOrder) {
  Source source;
  Taker takers[3];
  EventPump pump(source,
                 {takers[0].deliver(true), takers[1].deliver(true), takers[2].deliver(true)});
  constexpr int64_t kEvents = 3000;
  for (int64_t i = 0; i < kEvents; ++i) source.add(EngineId::of(static_cast<uint64_t>(i), 0), i);
  for (size_t thread = 0; thread < 3; ++thread) {
    ASSERT_TRUE(eventually([&] { return takers[thread].count() == kEvents / 3; }));
    for (size_t i = 0; i < takers[thread].events.size(); ++i) {
      EXPECT_EQ(takers[thread].events[i].choice, static_cast<int64_t>(3 * i + thread));
    }
  }
}

TEST(EventPump, WhoIsBehindGetsNoMoreAndOthersGoOn) {
  Source source;
  Taker slow;
  Taker quick;
  EventPump pump(source, {slow.deliver(false), quick.deliver(true)});
  source.add(EngineId::of(2, 0), 0);
  ASSERT_TRUE(eventually([&] { return slow.count() == 1; }));
  const size_t many = 3 * EventPump::kMostAtOnce;
  for (size_t i = 0; i < many; ++i) {
    source.add(EngineId::of(2, 0), 0);
    source.add(EngineId::of(3, 0), 0);
  }
  ASSERT_TRUE(eventually([&] { return quick.count() == many; }));
  EXPECT_EQ(slow.count(), 1u);
  for (size_t round = 1; round <= 3; ++round) {
    std::unique_lock lock(slow.mutex);
    const auto taken = slow.taken;
    lock.unlock();
    taken();
    ASSERT_TRUE(eventually([&] { return slow.count() == 1 + round * EventPump::kMostAtOnce; }));
  }
  EXPECT_EQ(slow.batches, (std::vector<size_t>{1, 1024, 1024, 1024}));
}

}  // namespace
}  // namespace tidemill
