// The thread that carries the engine's events to the threads of the connections that wait for them.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "serve/served_engine.h"

namespace tidemill {

// Ids of engine requests: they name the exchange they belong to and so its thread.
struct EngineId {
  static constexpr int kPromptBits = 7;
  // A body has no more prompts than kMaxChoices: each has one choice at least.
  static_assert((1 << kPromptBits) >= Request::kMaxChoices);

  static RequestId of(uint64_t exchange, int64_t prompt) {
    return exchange << kPromptBits | static_cast<uint64_t>(prompt);
  }
  static uint64_t exchange(RequestId id) { return id >> kPromptBits; }
  static int64_t prompt(RequestId id) {
    return static_cast<int64_t>(id & ((uint64_t{1} << kPromptBits) - 1));
  }
  // Exchange numbers of thread i of n are i modulo n.
  static size_t thread(RequestId id, size_t threads) { return exchange(id) % threads; }
};

// A thread gets its next events when it has taken the last ones, and not too many at a time:
// between them it looks after its sockets, however fast the engine is.
class EventPump {
 public:
  // Hands one thread its events, in the order of their making, and calls `taken` (from any thread)
  // when it is done with them.
  using Deliver = std::function<void(std::vector<Event>, std::function<void()> taken)>;

  static constexpr size_t kMostAtOnce = 1024;  // events

  // The engine must outlive the pump.
  EventPump(ServedEngine& engine, std::vector<Deliver> threads);
  // Waits for the poll in progress, at most kPoll. Events after that stay in the engine.
  ~EventPump();
  EventPump(const EventPump&) = delete;
  EventPump& operator=(const EventPump&) = delete;

 private:
  static constexpr Engine::Milliseconds kPoll{100};
  static constexpr Engine::Milliseconds kBusyPoll{1};  // while a thread is behind

  struct Thread {
    Deliver deliver;
    std::deque<Event> waiting;
    std::shared_ptr<std::atomic<bool>> is_busy = std::make_shared<std::atomic<bool>>(false);
  };

  void run();
  // False: events still wait.
  static bool deliver_to(Thread& thread);

  ServedEngine& engine_;
  std::vector<Thread> threads_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tidemill
