#include "cli/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tidemill::cli {
namespace {

int percent_of(double fraction) {
  return fraction > 0 ? static_cast<int>(std::min(fraction, 1.0) * 100) : 0;  // NaN gives 0
}

}  // namespace

std::string draw_bar(const std::string& label, double fraction) {
  constexpr int kWidth = 30;
  const int percent = percent_of(fraction);
  return fmt::format("{} [{:<{}}] {:3} %", label,
                     std::string(static_cast<size_t>(percent * kWidth / 100), '#'), kWidth,
                     percent);
}

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), on_terminal_(::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::update(double fraction) {
  const int percent = percent_of(fraction);
  if (!on_terminal_ || percent == shown_percent_) return;
  shown_percent_ = percent;
  fmt::print(stderr, "\r{}", draw_bar(label_, fraction));
  std::fflush(stderr);
}

void ProgressBar::finish() {
  if (shown_percent_ < 0) return;
  shown_percent_ = -1;
  fmt::print(stderr, "\r\x1b[K");  // back to the start of the line, and wipe it
  std::fflush(stderr);
}

}  // namespace tidemill::cli
