// Makes one StepPlan. The order of work:
//   1. higher priorities that wait make way for themselves (preemption)
//   2. every decoding request gets its next token; who lacks a block waits for returning ones, or
//      preempts a lower rank
//   3. drafts, as far as the step has tokens left beyond the smallest prefill
//   4. prefill chunks in the order of Turn, of running requests and of waiting ones that are
//      admitted here, as far as tokens, milliseconds, slots and blocks go
#pragma once

#include <vector>

#include "sched/scheduler.h"
#include "sched/scheduler_state.h"
#include "sched/victims.h"

namespace tidemill {

class StepPlanner {
 public:
  StepPlanner(SchedulerState& state, double now, const Capacity& capacity);
  StepPlan run();

 private:
  struct Room {
    int64_t blocks = 0;
    int64_t slots = 0;
  };
  enum class Order : uint8_t { kPriority, kRank };  // who may preempt whom
  struct Candidate {
    Turn turn;
    ScheduledRequest* request = nullptr;
  };

  void make_way();
  void plan_decode();
  void plan_scarce_decode(std::vector<ScheduledRequest*>& due);
  void plan_drafts();
  void plan_prefill();

  // Prefill.
  std::vector<Candidate> prefill_candidates();
  int64_t chunk_of(const ScheduledRequest& r, int64_t position, Why& why) const;
  bool continue_prefill(ScheduledRequest& r);
  bool admit(ScheduledRequest& r);
  void add_chunk(ScheduledRequest& r, int64_t tokens, Start start, Why why);
  int64_t admission_blocks(const ScheduledRequest& r, const PrefixReuse& hit) const;
  PrefixReuse hit_of(const ScheduledRequest& r) const;

  // Preemption.
  Rank rank_of(const ScheduledRequest& r) const;
  bool preempt_for(ScheduledRequest& r, Room short_of, Order order);
  void preempt(ScheduledRequest& victim, const ScheduledRequest& for_request, Why why);

  int64_t decode_need(const ScheduledRequest& r) const;
  void add_decode(ScheduledRequest& r, int64_t need);
  void wait(const ScheduledRequest& r, Why why, int64_t need = 0, int64_t have = 0);
  bool in_this_step(const ScheduledRequest& r) const { return r.planned_step == step_; }

  SchedulerState& state_;
  const SchedulerOptions& options_;
  const double now_;
  const Capacity& capacity_;
  const uint64_t step_;  // number of this plan, and of its step if it gets items
  StepPlan plan_;

  Room free_;             // not held, not promised to a request in prefill
  Room coming_;           // behind a step in flight
  int64_t physical_ = 0;  // blocks not held
  int64_t host_blocks_ = 0;
  int64_t watermark_ = 0;
  int32_t worst_priority_ = 0;  // of the running requests
  int64_t prefilling_ = 0;
  bool set_aside_ = false;
  std::vector<ScheduledRequest*> decoded_;  // request of plan_.items[i], for the decode items
};

}  // namespace tidemill
