#include "engine/device.h"

#include <utility>

#include "engine/no_wait.h"

namespace tidemill {

Device::Device(ModelRunner& runner, DeviceOptions options)
    : runner_(runner),
      options_(std::move(options)),
      vocabulary_(runner.model().config().vocab_size),
      sampler_(vocabulary_),
      mask_(static_cast<size_t>((vocabulary_ + 31) / 32)),
      thread_([this] { work(); }) {}

Device::~Device() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  launched_.notify_one();
  thread_.join();
}

void Device::launch(StepJob job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  launched_.notify_one();
}

std::optional<StepOutcome> Device::take() {
  const std::lock_guard lock(mutex_);
  if (outcomes_.empty()) return std::nullopt;
  std::optional<StepOutcome> outcome(std::move(outcomes_.front()));
  outcomes_.pop_front();
  return outcome;
}

bool Device::wait(Deadline deadline) {
  NoWait::about_to_wait();
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return !outcomes_.empty(); };
  if (deadline.is_never()) {
    finished_.wait(lock, ready);
    return true;
  }
  return finished_.wait_until(lock, deadline.time(), ready);
}

void Device::work() {
  Clock::time_point free_since = Clock::now();
  std::unique_lock lock(mutex_);
  for (;;) {
    launched_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    StepJob job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();

    const Clock::time_point begin = Clock::now();
    StepOutcome outcome = execute(job);
    if (!job.after_pause) outcome.idle_ms = 1e3 * seconds_between(free_since, begin);
    free_since = Clock::now();
    outcome.busy_ms = 1e3 * seconds_between(begin, free_since);

    lock.lock();
    outcomes_.push_back(std::move(outcome));
    finished_.notify_one();
    lock.unlock();
    job = {};  // what ended with it may be large: after the loop has heard
    lock.lock();
  }
}

}  // namespace tidemill
