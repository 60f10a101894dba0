#include "serve/service/work_queue.h"

#include <algorithm>
#include <utility>

namespace tidemill {

WorkQueue::WorkQueue(int threads, WorkLimits limits) : limits_(limits) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkQueue::~WorkQueue() { stop(); }

bool WorkQueue::submit(TenantId tenant, int64_t bytes, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    const bool fits = waiting_ == 0 || waiting_bytes_ + bytes <= limits_.bytes;
    if (stopping_ || waiting_ >= limits_.works || !fits) return false;
    auto line = std::find_if(lines_.begin(), lines_.end(),
                             [&](const Line& one) { return one.tenant == tenant; });
    if (line == lines_.end()) line = lines_.insert(lines_.end(), Line{tenant, {}});
    line->works.push_back({bytes, std::move(work)});
    ++waiting_;
    waiting_bytes_ += bytes;
  }
  changed_.notify_one();
  return true;
}

int64_t WorkQueue::pending() const {
  const std::lock_guard lock(mutex_);
  return waiting_ + running_;
}

int64_t WorkQueue::bytes() const {
  const std::lock_guard lock(mutex_);
  return waiting_bytes_ + running_bytes_;
}

void WorkQueue::stop() {
  std::list<Line> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(lines_);
    waiting_ = 0;
    waiting_bytes_ = 0;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

WorkQueue::Work WorkQueue::take() {
  Line& line = lines_.front();
  Work work = std::move(line.works.front());
  line.works.pop_front();
  if (line.works.empty()) {
    lines_.pop_front();
  } else {
    lines_.splice(lines_.end(), lines_, lines_.begin());
  }
  --waiting_;
  waiting_bytes_ -= work.bytes;
  return work;
}

void WorkQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !lines_.empty(); });
    if (stopping_) return;
    Work work = take();
    ++running_;
    running_bytes_ += work.bytes;
    lock.unlock();
    work.run();
    work.run = nullptr;  // what it holds goes before it counts as done
    lock.lock();
    --running_;
    running_bytes_ -= work.bytes;
  }
}

}  // namespace tidemill
