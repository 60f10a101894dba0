// Throughput of a draft policy on a simulated device: the real DraftScheduler with its two-step
// lag over a cost curve and a synthetic population of requests. For comparing policies and
// concurrencies; absolute numbers are those of the curve.
//
// The population. Half of the requests are prose, half code, and each has its own level; the level
// drifts from step to step (a request's easy and hard stretches) and differs from draft to draft:
//
//   logit of confidence = kind's mean + request's level + drift(step) + draft's own - decay * j
//
// The confidence is calibrated but not sharp: the probability that the target really accepts is
// p + uniform(-1, 1) * p * (1 - p) around the confidence p, whose mean is p. A step counts its
// expected tokens, not a draw, which leaves the same mean and far less noise. After a geometric
// number of steps a request ends and another takes its slot. All of it depends on (seed, slot,
// step) alone: policies are compared on the same confidences.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "sched/draft_cost.h"
#include "sched/draft_scheduler.h"

namespace tidemill {

struct DraftSimulation {
  int64_t concurrency = 1;  // requests in every step, >= 1
  int64_t steps = 2000;
  uint64_t seed = 1;
  int32_t draft_length = 5;
  double steps_per_request = 200.0;
  double sampler_ms = 0.3;
  // The draft pass costs this share of a forward pass over draft_length rows a request, whatever
  // is verified; a policy without drafts runs none.
  double drafter_share = 0.04;
};

struct DraftThroughput {
  double tokens_per_second = 0.0;
  double tokens_per_step = 0.0;     // of one request
  double drafts_per_request = 0.0;  // verified in a step
  double step_ms = 0.0;
};

// Errors: kInvalidArgument for options out of range.
Result<DraftThroughput> simulate_drafts(const CostCurve& curve, const DraftPolicy& policy,
                                        const DraftSimulation& options);

}  // namespace tidemill
