#include "sched/planner.h"

#include <algorithm>
#include <limits>

namespace tidemill {

StepPlanner::StepPlanner(SchedulerState& state, double now, const Capacity& capacity)
    : state_(state),
      options_(state.options),
      now_(now),
      capacity_(capacity),
      step_(++state.plans),
      coming_{capacity.returning_blocks, capacity.returning_slots},
      physical_(capacity.free_blocks),
      host_blocks_(capacity.host_blocks) {
  int64_t promised = 0;
  worst_priority_ = std::numeric_limits<int32_t>::min();
  for (const ScheduledRequest* r : state.running) {
    promised += state.promised_blocks(*r);
    prefilling_ += r->state == RequestState::kPrefilling;
    worst_priority_ = std::max(worst_priority_, r->arrival.priority);
  }
  const auto running = static_cast<int64_t>(state.running.size());
  free_ = {physical_ - promised, std::min(capacity.free_slots, options_.max_sequences - running)};
  watermark_ = static_cast<int64_t>(options_.watermark * static_cast<double>(options_.pool_blocks));
  plan_.items.reserve(state.running.size());
  decoded_.reserve(state.running.size());
}

StepPlan StepPlanner::run() {
  make_way();
  plan_decode();
  plan_drafts();
  plan_prefill();
  if (!plan_.preemptions.empty()) {
    std::erase_if(state_.running, [](const ScheduledRequest* r) { return !r->running(); });
  }
  if (!plan_.items.empty()) {
    plan_.step = step_;
    if (state_.cost.fitted()) plan_.predicted_ms = state_.cost.predict(plan_.shape);
  }
  return std::move(plan_);
}

void StepPlanner::wait(const ScheduledRequest& r, Why why, int64_t need, int64_t have) {
  plan_.waits.push_back({r.arrival.id, why, need, have});
}

// ---- decode

int64_t StepPlanner::decode_need(const ScheduledRequest& r) const {
  return std::max<int64_t>(0, state_.blocks_for(r.length + r.slack + 1) - r.blocks);
}

void StepPlanner::add_decode(ScheduledRequest& r, int64_t need) {
  plan_.items.push_back({.id = r.arrival.id,
                         .position = r.length,
                         .slack = r.slack,
                         .tokens = 1,
                         .decode = true,
                         .samples = true,
                         .why = Why::kNextToken});
  decoded_.push_back(&r);
  free_.blocks -= need;
  physical_ -= need;
  r.blocks += need;
  r.length += 1;
  r.planned_step = step_;
  ++r.samples_in_flight;
  ++r.steps_in_flight;
}

void StepPlanner::plan_decode() {
  std::vector<ScheduledRequest*> due;
  due.reserve(state_.running.size());
  int64_t need = 0;
  for (ScheduledRequest* r : state_.running) {
    if (r->state != RequestState::kDecoding || r->outputs_left() <= 0) continue;
    due.push_back(r);
    need += decode_need(*r);
  }
  if (need > std::min(free_.blocks, physical_)) return plan_scarce_decode(due);
  for (ScheduledRequest* r : due) add_decode(*r, decode_need(*r));
}

// Blocks are short: the best rank is served first and can always get what it lacks from lower
// ranks, or from those that have not progressed since a preemption (what they need to do so is
// promised to them); so there is always one that goes on.
void StepPlanner::plan_scarce_decode(std::vector<ScheduledRequest*>& due) {
  std::sort(due.begin(), due.end(), [this](const ScheduledRequest* a, const ScheduledRequest* b) {
    return rank_of(*a) < rank_of(*b);
  });
  for (ScheduledRequest* r : due) {
    if (!r->running()) continue;  // preempted by one before it
    const int64_t need = decode_need(*r);
    const int64_t have = std::max<int64_t>(0, std::min(free_.blocks, physical_));
    if (need <= have) {
      add_decode(*r, need);
      continue;
    }
    if (r->slack > 0) {
      wait(*r, Why::kInFlight);
      continue;
    }
    const int64_t missing = need - have - coming_.blocks;
    if (missing > 0 && !preempt_for(*r, {missing, 0}, Order::kRank)) {
      wait(*r, Why::kNoBlocks, need, have);
      continue;
    }
    wait(*r, Why::kReturning, need, have);
    free_.blocks -= have;  // its own by now, like its part of what is coming
    coming_.blocks -= need - have;
  }
}

// Every request gets its first draft before any gets a second.
void StepPlanner::plan_drafts() {
  const auto decodes = static_cast<int64_t>(decoded_.size());
  const bool prefill_due = prefilling_ > 0 || (!state_.queue.empty() && free_.slots > 0);
  int64_t room = options_.max_step_tokens - decodes - (prefill_due ? 2 * options_.min_chunk : 0);
  bool granted = true;
  for (int64_t k = 0; granted && room > 0; ++k) {
    granted = false;
    for (size_t i = 0; i < decoded_.size() && room > 0; ++i) {
      ScheduledRequest& r = *decoded_[i];
      PlanItem& item = plan_.items[i];
      // outputs_left() counts the item's first output already.
      if (item.drafts != k || k >= std::min(r.drafts_wanted, r.outputs_left())) continue;
      const int64_t need = std::max<int64_t>(0, state_.blocks_for(item.reserve() + 1) - r.blocks);
      if (need > 0 && need > std::min(free_.blocks, physical_)) continue;
      free_.blocks -= need;
      physical_ -= need;
      r.blocks += need;
      ++item.drafts;
      ++item.tokens;
      ++r.slack;
      --room;
      granted = true;
    }
  }
  for (const PlanItem& item : plan_.items) plan_.shape.add(item.position, item.tokens);
}

}  // namespace tidemill
