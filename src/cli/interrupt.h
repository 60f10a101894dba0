// Ctrl-C as a flag.
#pragma once

#include <signal.h>

#include <atomic>

namespace tidemill::cli {

// While one exists, SIGINT sets flag() instead of ending the program. One at a time.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  const std::atomic<bool>& flag() const;
  void clear();
};

// While one exists, SIGINT goes to another thread of the program, so that a terminal that takes its
// time does not fail this thread's writes ("interrupted system call").
class InterruptElsewhere {
 public:
  InterruptElsewhere();
  ~InterruptElsewhere();
  InterruptElsewhere(const InterruptElsewhere&) = delete;
  InterruptElsewhere& operator=(const InterruptElsewhere&) = delete;

 private:
  sigset_t before_;
};

}  // namespace tidemill::cli
