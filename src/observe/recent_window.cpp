#include "observe/recent_window.h"

#include <algorithm>

namespace tidemill {
namespace {

constexpr int64_t kRing = RecentWindow::kSeconds + 1;

size_t place(int64_t second) { return static_cast<size_t>(second % kRing); }

}  // namespace

void RecentWindow::advance(Clock::time_point now) {
  const int64_t second = std::chrono::floor<std::chrono::seconds>(now - start_).count();
  // After a pause longer than the ring every place is cleared once, and no more.
  second_ = std::max(second_, second - kRing);
  while (second_ < second) ring_[place(++second_)] = {};
}

void RecentWindow::add(const Amounts& amounts, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  advance(now);
  Amounts& running = ring_[place(second_)];
  running.output_tokens += amounts.output_tokens;
  running.prompt_tokens += amounts.prompt_tokens;
  running.requests += amounts.requests;
}

RecentWindow::Rates RecentWindow::rates(Clock::time_point now, int64_t seconds) {
  const std::lock_guard lock(mutex_);
  advance(now);
  seconds = std::min(std::clamp(seconds, int64_t{1}, kSeconds), second_);
  if (seconds == 0) return {};
  Amounts sum;
  for (int64_t second = second_ - seconds; second < second_; ++second) {
    const Amounts& one = ring_[place(second)];
    sum.output_tokens += one.output_tokens;
    sum.prompt_tokens += one.prompt_tokens;
    sum.requests += one.requests;
  }
  const auto per_second = [&](int64_t n) {
    return static_cast<double>(n) / static_cast<double>(seconds);
  };
  return {per_second(sum.output_tokens), per_second(sum.prompt_tokens), per_second(sum.requests)};
}

std::vector<RecentWindow::Amounts> RecentWindow::history(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  advance(now);
  std::vector<Amounts> seconds;
  seconds.reserve(kSeconds);
  for (int64_t second = second_ - kSeconds; second < second_; ++second) {
    seconds.push_back(second < 0 ? Amounts{} : ring_[place(second)]);
  }
  return seconds;
}

}  // namespace tidemill
