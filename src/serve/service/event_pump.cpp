#include "serve/service/event_pump.h"

#include <utility>

namespace tidemill {

EventPump::EventPump(ServedEngine& engine, std::vector<Deliver> threads)
    : engine_(engine), threads_(std::move(threads)), thread_([this] { run(); }) {}

EventPump::~EventPump() {
  stopping_ = true;
  thread_.join();
}

void EventPump::run() {
  while (!stopping_) {
    std::vector<std::vector<Event>> parts(threads_.size());
    for (Event& event : engine_.poll(kPoll)) {
      parts[EngineId::thread(event.id, threads_.size())].push_back(std::move(event));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i].empty()) threads_[i](std::move(parts[i]));
    }
  }
}

}  // namespace tidemill
