// The thread that carries the engine's events to the threads of the connections that wait for them.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "serve/served_engine.h"

namespace tidemill {

// Ids of engine requests: they name the exchange they belong to and so its thread.
struct EngineId {
  static constexpr int kPromptBits = 7;
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

class EventPump {
 public:
  // Takes the events of one thread, in the order of their making.
  using Deliver = std::function<void(std::vector<Event>)>;

  // The engine must outlive the pump.
  EventPump(ServedEngine& engine, std::vector<Deliver> threads);
  // Waits for the poll in progress, at most kPoll. Events after that stay in the engine.
  ~EventPump();
  EventPump(const EventPump&) = delete;
  EventPump& operator=(const EventPump&) = delete;

 private:
  static constexpr Engine::Milliseconds kPoll{100};
  void run();

  ServedEngine& engine_;
  std::vector<Deliver> threads_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tidemill
