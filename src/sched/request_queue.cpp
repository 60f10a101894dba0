#include "sched/request_queue.h"

#include <algorithm>
#include <cmath>

namespace tidemill {

Turn turn_of(const ScheduledRequest& request, double now, const SchedulerOptions& options) {
  const Arrival& arrival = request.arrival;
  const double age = std::max(0.0, now - request.arrived);
  const double span =
      options.age_ms + options.age_ms_per_token * static_cast<double>(arrival.prompt_tokens);
  // Bounded, so that no clock can overflow the level.
  const double levels = std::min(std::floor(age / span), 1e15);
  return {
      .unclaimed = !request.claimed,
      .level = arrival.priority - static_cast<int64_t>(levels),
      .fresh = !request.started,
      .round = request.started
                   ? request.round
                   : static_cast<int64_t>(std::min(
                         request.tenant->served / static_cast<double>(options.fair_quantum), 1e18)),
      .deadline = arrival.deadline,
      .number = request.number,
  };
}

void RequestQueue::push(ScheduledRequest& request) {
  request.queue_index = size();
  requests_.push_back(&request);
  const int64_t tokens = request.arrival.prompt_tokens;
  tokens_ += tokens;
  Backlog& backlog = by_priority_[request.arrival.priority];
  ++backlog.requests;
  backlog.tokens += tokens;
  ++request.tenant->waiting;
}

void RequestQueue::remove(ScheduledRequest& request) {
  ScheduledRequest* last = requests_.back();
  requests_[static_cast<size_t>(request.queue_index)] = last;
  last->queue_index = request.queue_index;
  requests_.pop_back();
  request.queue_index = -1;

  const int64_t tokens = request.arrival.prompt_tokens;
  tokens_ -= tokens;
  const auto found = by_priority_.find(request.arrival.priority);
  found->second.tokens -= tokens;
  if (--found->second.requests == 0) by_priority_.erase(found);
  --request.tenant->waiting;
}

RequestQueue::Backlog RequestQueue::ahead_of(int32_t priority) const {
  Backlog sum;
  for (const auto& [level, backlog] : by_priority_) {
    if (level > priority) break;
    sum.requests += backlog.requests;
    sum.tokens += backlog.tokens;
  }
  return sum;
}

}  // namespace tidemill
