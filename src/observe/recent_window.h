// What happened in the last minute, for rates that follow the load.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/clock.h"

namespace tidemill {

// A ring of seconds. Any thread. `now` comes from the caller, so that tests need not wait; one that
// lies before an earlier one counts in the latest second.
class RecentWindow {
 public:
  static constexpr int64_t kSeconds = 60;

  struct Amounts {
    int64_t output_tokens = 0;
    int64_t prompt_tokens = 0;
    int64_t requests = 0;
  };
  struct Rates {  // per second
    double output_tokens = 0;
    double prompt_tokens = 0;
    double requests = 0;
  };

  explicit RecentWindow(Clock::time_point start) : start_(start) {}

  void add(const Amounts& amounts, Clock::time_point now);

  // Mean over the last `seconds` whole ones (1 to kSeconds), or as many as there were since the
  // start; the one that is running does not count. Before the first has passed: 0.
  Rates rates(Clock::time_point now, int64_t seconds = 10);
  // The last kSeconds whole seconds, the latest last, for a chart.
  std::vector<Amounts> history(Clock::time_point now);

 private:
  void advance(Clock::time_point now);

  std::mutex mutex_;
  const Clock::time_point start_;
  int64_t second_ = 0;  // that is running, counted from the start
  std::array<Amounts, kSeconds + 1> ring_{};
};

}  // namespace tidemill
