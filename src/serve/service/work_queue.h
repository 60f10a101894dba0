// Threads for what would hold up a connection's thread: reading and tokenising bodies.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tidemill {

// submit() from any thread. Work runs in the order of its coming, on any of the threads, and must
// not throw.
class WorkQueue {
 public:
  WorkQueue(int threads, int64_t most_waiting);
  // As stop().
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // False: too much is waiting, or the queue has stopped.
  bool submit(std::function<void()> work);
  // Work that waits or runs.
  int64_t pending() const;
  // Drops what has not begun, waits for what has.
  void stop();

 private:
  void run();

  const int64_t most_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  int64_t running_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tidemill
