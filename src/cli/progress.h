// A progress bar for people: on stderr, and only when that is a terminal.
#pragma once

#include <string>

namespace tidemill::cli {

// One thread. The bar is wiped by finish() or the destructor, so that it never mixes with output.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Redraws when the whole percent changes.
  void update(double fraction);
  void finish();

 private:
  std::string label_;
  bool on_terminal_;
  int shown_percent_ = -1;
};

// "loading  [#########           ]  45 %"; the fraction is clamped to 0..1.
std::string draw_bar(const std::string& label, double fraction);

}  // namespace tidemill::cli
