// Confidences of drafts, each with the step that made them, so that no decision mixes ages.
//
// Step N verifies the drafts made at the end of step N - 1. It is planned while N - 1 runs, when
// the newest results on the host are those of N - 2. Therefore:
//   lagged(N): made at the end of N - 2; says how many drafts step N verifies
//   fresh(N):  made at the end of N - 1; says only which (on the device, or later on the host)
// When the host has caught up (an idle device, a flush) N - 1 is processed before N is planned;
// lagged(N) is the older data all the same, because the drafts of N - 1 must not have a say in how
// many of them are verified (draft_budget.h).
//
// A request without data of that step is new, or was away (prefill, preemption): its confidences
// are 1. For two steps its drafts are thus verified whenever any are. A request that has ended
// since is merely not asked for.
//
// One thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "sched/step_plan.h"

namespace tidemill {

class DraftConfidences {
 public:
  // `smoothing`, 0 to below 1: weight of the past in the smoothed values.
  DraftConfidences(int32_t draft_length, float smoothing)
      : draft_length_(draft_length), smoothing_(smoothing) {}

  // The results of `step` have reached the host: `confidence` [requests, draft_length] of the
  // drafts it made, clamped to 0..1 (NaN: 0). Steps count from 0 and come one by one, also those
  // without drafts. Errors: kInternal (a step out of turn, a request twice, sizes); nothing is
  // stored then.
  Status store(int64_t step, std::span<const RequestId> requests,
               std::span<const float> confidence);

  // For planning `step`; `out`: [requests, draft_length]. Smoothed values are the average of the
  // steps that a request was present in without a gap, the newest weighted 1 - smoothing; the
  // first one starts it. Errors: kInternal if step - 2 (step - 1) is not yet processed, or if
  // `step` itself already is.
  Status lagged(int64_t step, std::span<const RequestId> requests, std::span<float> out) const;
  Status lagged_smoothed(int64_t step, std::span<const RequestId> requests,
                         std::span<float> out) const;
  Status fresh(int64_t step, std::span<const RequestId> requests, std::span<float> out) const;

  int64_t processed() const { return processed_; }  // the newest step stored; -1: none

 private:
  struct Row {
    RequestId request;
    int64_t index;  // of the row in the arrays
  };
  // What one step made.
  struct Generation {
    std::vector<Row> rows;  // sorted by request
    std::vector<float> confidence;
    std::vector<float> smoothed;

    int64_t find(RequestId request) const;  // index, or -1
  };

  const Generation& generation(int64_t made) const { return generations_[made & 1]; }
  Status read(int64_t step, int64_t made, bool smoothed, std::span<const RequestId> requests,
              std::span<float> out) const;

  int32_t draft_length_;
  float smoothing_;
  int64_t processed_ = -1;
  std::array<Generation, 2> generations_;  // processed_ and the one before, by parity
};

}  // namespace tidemill
