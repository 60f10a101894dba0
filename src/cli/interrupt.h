// Ctrl-C as a flag.
#pragma once

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

}  // namespace tidemill::cli
