#include "serve/service/event_pump.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tidemill {

EventPump::EventPump(ServedEngine& engine, std::vector<Deliver> threads) : engine_(engine) {
  for (Deliver& deliver : threads) threads_.push_back({.deliver = std::move(deliver)});
  thread_ = std::thread([this] { run(); });
}

EventPump::~EventPump() {
  stopping_ = true;
  thread_.join();
}

bool EventPump::deliver_to(Thread& thread) {
  if (thread.waiting.empty()) return true;
  if (thread.is_busy->exchange(true)) return false;
  const size_t count = std::min(thread.waiting.size(), kMostAtOnce);
  const auto end = thread.waiting.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<Event> events(std::make_move_iterator(thread.waiting.begin()),
                            std::make_move_iterator(end));
  thread.waiting.erase(thread.waiting.begin(), end);
  thread.deliver(std::move(events), [is_busy = thread.is_busy] { *is_busy = false; });
  return thread.waiting.empty();
}

void EventPump::run() {
  bool is_behind = false;
  while (!stopping_) {
    for (Event& event : engine_.poll(is_behind ? kBusyPoll : kPoll)) {
      threads_[EngineId::thread(event.id, threads_.size())].waiting.push_back(std::move(event));
    }
    is_behind = false;
    for (Thread& thread : threads_) is_behind |= !deliver_to(thread);
  }
}

}  // namespace tidemill
