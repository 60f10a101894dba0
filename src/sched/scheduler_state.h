// What the scheduler remembers between calls; shared by Scheduler (life of requests) and
// StepPlanner (one plan). Internal to this room.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "sched/admission.h"
#include "sched/fair_share.h"
#include "sched/request_queue.h"
#include "sched/scheduled_request.h"
#include "sched/scheduler_options.h"
#include "sched/step_cost.h"

namespace tidemill {

struct SchedulerState {
  SchedulerOptions options;
  FairShare tenants;
  RequestQueue queue;                      // kWaiting and kPreempted
  std::vector<ScheduledRequest*> running;  // in the order of their start
  // The requests that have a deadline, by it and by arrival.
  std::map<std::pair<double, uint64_t>, ScheduledRequest*> deadlines;
  StepCost cost;
  Throughput throughput;
  uint64_t plans = 0;                 // made so far; numbers the steps
  uint64_t starts = 0;                // of requests, so far
  int64_t steps_without_prefill = 0;  // though some was due

  int64_t blocks_for(int64_t tokens) const {
    return (tokens + options.block_tokens - 1) / options.block_tokens;
  }
  // Blocks that a request in prefill will still take: nobody else may count on them, or two prompts
  // could each hold half of what both need.
  int64_t promised_blocks(const ScheduledRequest& r) const {
    return r.state == RequestState::kPrefilling ? blocks_for(r.target) - r.blocks : 0;
  }
};

}  // namespace tidemill
