// What the server needs of an engine. Tests and benchmarks put a scripted one in its place.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "serve/http_error.h"
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
  // False: it has failed for good, and every request will.
  virtual bool is_healthy() const { return true; }
};

class LoadedEngine : public ServedEngine {
 public:
  explicit LoadedEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  Result<RequestId> submit(Request request) override {
    auto id = engine_->submit(std::move(request));
    if (!id && http_error(id.error()).status == 500) healthy_ = false;
    return id;
  }
  bool is_healthy() const override { return healthy_; }
  bool cancel(RequestId id) override { return engine_->cancel(id); }
  std::vector<Event> poll(Engine::Milliseconds wait) override { return engine_->poll(wait); }
  Stats stats() const override { return engine_->stats(); }
  const ModelInfo& info() const override { return engine_->info(); }

 private:
  std::unique_ptr<Engine> engine_;
  std::atomic<bool> healthy_{true};
};

}  // namespace tidemill
