// How long a step takes, learnt from the steps measured so far:
//   ms = a + b * tokens + c * area        a, b, c >= 0, area as in StepShape
//
// Fitted by least squares on the relative error, so that short decode steps count as much as long
// prefill steps; a sample's weight falls by `memory` with every later one, a small ridge keeps
// coefficients finite that the samples do not determine. A sample far off the fit (a page fault, a
// suspended machine) is cut to `outlier` times the prediction and makes the past fade faster: a
// single one changes little, a lasting change gets through within some steps.
#pragma once

#include <array>
#include <cstdint>

#include "sched/step_plan.h"

namespace tidemill {

struct StepCostOptions {
  int64_t min_samples = 32;
  double memory = 0.99;
  double ridge = 1e-6;  // relative to the diagonal
  double outlier = 4.0;
};

class StepCost {
 public:
  struct Coefficients {
    double ms = 0, ms_per_token = 0, ms_per_area = 0;
  };

  explicit StepCost(StepCostOptions options = {}) : options_(options) {}

  // Ignores times that are not finite and positive, and empty steps.
  void record(const StepShape& shape, double ms);
  bool fitted() const { return samples_ >= options_.min_samples; }
  const Coefficients& coefficients() const { return coefficients_; }
  double predict(const StepShape& shape) const;
  // The longest chunk at `position` that a step of `shape` can take and still end within
  // `limit_ms`, at most `most`. 0 when the step is too long already.
  int64_t longest_chunk(const StepShape& shape, int64_t position, double limit_ms,
                        int64_t most) const;

 private:
  void solve();

  StepCostOptions options_;
  int64_t samples_ = 0;
  // Weighted normal equations of the scaled features (1, tokens, area).
  std::array<std::array<double, 3>, 3> normal_{};
  std::array<double, 3> moment_{};
  Coefficients coefficients_;
};

}  // namespace tidemill
