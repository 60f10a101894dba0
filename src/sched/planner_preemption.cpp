// Who makes way for whom.
#include <algorithm>

#include "sched/planner.h"

namespace tidemill {

Rank StepPlanner::rank_of(const ScheduledRequest& r) const {
  return {r.arrival.priority, r.arrival.deadline, r.start_number};
}

void StepPlanner::preempt(ScheduledRequest& victim, const ScheduledRequest& for_request, Why why) {
  const int64_t returning = victim.blocks - victim.shared_blocks;
  free_.blocks += state_.promised_blocks(victim);
  coming_.blocks += returning;
  ++coming_.slots;

  Preemption preemption{victim.arrival.id, for_request.arrival.id, PreemptionKind::kRecompute, why,
                        returning};
  victim.preempted_length = std::max(victim.preempted_length, victim.length);
  victim.has_snapshot =
      victim.length >= options_.snapshot_from && victim.blocks <= host_blocks_ && victim.length > 0;
  if (victim.has_snapshot) {
    host_blocks_ -= victim.blocks;
    preemption.kind = PreemptionKind::kSnapshot;
  } else {
    victim.length = 0;
  }
  prefilling_ -= victim.state == RequestState::kPrefilling;
  victim.state = RequestState::kPreempted;
  victim.planned_step = step_;
  victim.blocks = victim.shared_blocks = 0;
  ++victim.preemptions;
  if (why == Why::kHigherPriority) ++victim.priority_preemptions;
  state_.queue.push(victim);
  plan_.preemptions.push_back(preemption);
}

// Preempts what `r` is short of beyond what is coming back anyway. False when that cannot be had;
// then nobody is preempted.
bool StepPlanner::preempt_for(ScheduledRequest& r, Room short_of, Order order) {
  std::vector<VictimCandidate> candidates;
  std::vector<ScheduledRequest*> requests;
  const Rank rank = rank_of(r);
  for (ScheduledRequest* v : state_.running) {
    if (!v->running() || in_this_step(*v) || !v->progressed()) continue;
    const bool below = order == Order::kRank
                           ? rank_of(*v) > rank
                           : v->arrival.priority > r.arrival.priority &&
                                 v->priority_preemptions < options_.max_priority_preemptions;
    if (!below) continue;
    const int64_t blocks = v->blocks - v->shared_blocks + state_.promised_blocks(*v);
    candidates.push_back({rank_of(*v), blocks});
    requests.push_back(v);
  }
  const std::vector<size_t> victims = choose_victims(candidates, short_of.blocks, short_of.slots);
  const Why why = order == Order::kRank ? Why::kDecodeNeedsBlocks : Why::kHigherPriority;
  for (const size_t i : victims) preempt(*requests[i], r, why);
  return !victims.empty();
}

// Requests of a higher priority than some running one preempt what they need to start; equal
// priorities never do. Several of them count on different free and returning room.
void StepPlanner::make_way() {
  if (state_.queue.empty() || state_.queue.best_priority() >= worst_priority_) return;
  std::vector<Candidate> urgent;
  for (ScheduledRequest* r : state_.queue.requests()) {
    if (r->arrival.priority < worst_priority_ && r->steps_in_flight == 0 && !r->arrival.held) {
      urgent.push_back({turn_of(*r, now_, options_), r});
    }
  }
  std::sort(urgent.begin(), urgent.end(),
            [](const Candidate& a, const Candidate& b) { return a.turn < b.turn; });
  if (static_cast<int64_t>(urgent.size()) > options_.lookahead) {
    urgent.resize(static_cast<size_t>(options_.lookahead));
  }

  Room taken;
  for (const Candidate& candidate : urgent) {
    ScheduledRequest& r = *candidate.request;
    const int64_t need = admission_blocks(r, hit_of(r));
    taken.blocks += need;
    taken.slots += 1;
    const Room short_of{
        std::max<int64_t>(0, taken.blocks + watermark_ - free_.blocks - coming_.blocks),
        std::max<int64_t>(0, taken.slots - free_.slots - coming_.slots)};
    if (short_of.blocks == 0 && short_of.slots == 0) continue;
    if (preempt_for(r, short_of, Order::kPriority)) {
      r.claimed = true;
    } else {
      taken.blocks -= need;
      taken.slots -= 1;
    }
  }
}

}  // namespace tidemill
