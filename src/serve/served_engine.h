// What the server needs of an engine. Tests and benchmarks put a scripted one in its place.
#pragma once

#include <vector>

#include "tidemill/engine.h"

namespace tidemill {

// As Engine: submit, cancel and stats from any thread, poll by one.
class ServedEngine {
 public:
  virtual ~ServedEngine() = default;
  virtual Result<RequestId> submit(Request request) = 0;
  virtual bool cancel(RequestId id) = 0;
  virtual std::vector<Event> poll(Engine::Milliseconds wait) = 0;
  virtual Stats stats() const = 0;
  virtual const ModelInfo& info() const = 0;
};

class LoadedEngine : public ServedEngine {
 public:
  explicit LoadedEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  Result<RequestId> submit(Request request) override { return engine_->submit(std::move(request)); }
  bool cancel(RequestId id) override { return engine_->cancel(id); }
  std::vector<Event> poll(Engine::Milliseconds wait) override { return engine_->poll(wait); }
  Stats stats() const override { return engine_->stats(); }
  const ModelInfo& info() const override { return engine_->info(); }

 private:
  std::unique_ptr<Engine> engine_;
};

}  // namespace tidemill
