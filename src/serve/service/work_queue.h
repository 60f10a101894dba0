// Threads for what would hold up a connection's thread: reading and tokenising bodies.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "tidemill/request.h"

namespace tidemill {

// What may wait, not counting what runs.
struct WorkLimits {
  int64_t works = 1024;
  int64_t bytes = int64_t{256} << 20;  // of the bodies that come with it
};

// submit() from any thread. Tenants take turns, and the work of one runs in the order of its
// coming, so that nobody waits for all that another one has sent. Work must not throw.
class WorkQueue {
 public:
  WorkQueue(int threads, WorkLimits limits);
  // As stop().
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // False: too much is waiting, or the queue has stopped. `bytes`: that the work holds.
  bool submit(TenantId tenant, int64_t bytes, std::function<void()> work);
  // Work that waits or runs, and the bytes that it holds.
  int64_t pending() const;
  int64_t bytes() const;
  // Drops what has not begun, waits for what has.
  void stop();

 private:
  struct Work {
    int64_t bytes;
    std::function<void()> run;
  };
  struct Line {
    TenantId tenant;
    std::deque<Work> works;  // never empty
  };

  Work take();  // the next one, with mutex_ held
  void run();

  const WorkLimits limits_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Line> lines_;  // the first is next
  int64_t waiting_ = 0;
  int64_t waiting_bytes_ = 0;
  int64_t running_ = 0;
  int64_t running_bytes_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tidemill
