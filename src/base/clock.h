// Monotonic time. Wall-clock time has no place in measurements or time limits: it jumps.
#pragma once

#include <chrono>

namespace tidemill {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}
inline double seconds_since(Clock::time_point begin) {
  return seconds_between(begin, Clock::now());
}

// A point in time by which something must have happened. Passed down by value, so that nested
// waits share one limit instead of adding theirs up.
class Deadline {
 public:
  static Deadline never() { return Deadline(Clock::time_point::max()); }
  static Deadline at(Clock::time_point time) { return Deadline(time); }
  // Saturates: a duration too long for the clock is never().
  static Deadline after(std::chrono::nanoseconds duration, Clock::time_point now = Clock::now()) {
    if (duration > Clock::time_point::max() - now) return never();
    return Deadline(now + duration);
  }

  bool is_never() const { return time_ == Clock::time_point::max(); }
  Clock::time_point time() const { return time_; }
  bool expired(Clock::time_point now = Clock::now()) const { return now >= time_; }
  // Zero once expired; nanoseconds::max() for never().
  std::chrono::nanoseconds remaining(Clock::time_point now = Clock::now()) const {
    if (is_never()) return std::chrono::nanoseconds::max();
    return expired(now) ? std::chrono::nanoseconds::zero() : time_ - now;
  }
  Deadline earlier(Deadline other) const { return time_ < other.time_ ? *this : other; }

 private:
  explicit Deadline(Clock::time_point time) : time_(time) {}
  Clock::time_point time_;
};

}  // namespace tidemill
