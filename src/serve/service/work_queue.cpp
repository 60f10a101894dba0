#include "serve/service/work_queue.h"

#include <utility>

namespace tidemill {

WorkQueue::WorkQueue(int threads, int64_t most_waiting) : most_waiting_(most_waiting) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkQueue::~WorkQueue() { stop(); }

bool WorkQueue::submit(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || static_cast<int64_t>(work_.size()) >= most_waiting_) return false;
    work_.push_back(std::move(work));
  }
  changed_.notify_one();
  return true;
}

int64_t WorkQueue::pending() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(work_.size()) + running_;
}

void WorkQueue::stop() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(work_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkQueue::run() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !work_.empty(); });
      if (stopping_) return;
      work = std::move(work_.front());
      work_.pop_front();
      ++running_;
    }
    work();
    const std::lock_guard lock(mutex_);
    --running_;
  }
}

}  // namespace tidemill
