// The requests that are not on the device, and whose turn is next.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "sched/scheduled_request.h"
#include "sched/scheduler_options.h"

namespace tidemill {

// The one key of every order between requests for prefill (waiting ones and those in prefill).
// Smaller is sooner; compared field by field:
//
//   unclaimed  0 for a request for which others were preempted: the room is its own
//   level      priority - floor(age / (age_ms + age_ms_per_token * prompt tokens))
//              age = time since arrival. Ageing depends on the size: a short request overtakes a
//              long one soon, and still nothing is overtaken for ever, because every newcomer
//              starts at the level of its priority.
//   fresh      0 once started: a preempted request keeps its turn
//   round      floor(virtual tokens served to its tenant / fair_quantum), fixed at its first start:
//              tenants are served in proportion to their weights, to within a quantum
//   deadline   the earliest first, among equals of a round: a tight deadline cannot buy a tenant
//              more than its share
//   number     order of arrival
struct Turn {
  bool unclaimed = true;
  int64_t level = 0;
  bool fresh = true;
  int64_t round = 0;
  double deadline = 0;
  uint64_t number = 0;

  auto operator<=>(const Turn&) const = default;
};
Turn turn_of(const ScheduledRequest& request, double now, const SchedulerOptions& options);

// Does not own the requests. Constant time push and remove.
class RequestQueue {
 public:
  struct Backlog {
    int64_t requests = 0;
    int64_t tokens = 0;  // of their prompts
  };

  void push(ScheduledRequest& request);
  void remove(ScheduledRequest& request);

  std::span<ScheduledRequest* const> requests() const { return requests_; }
  int64_t size() const { return static_cast<int64_t>(requests_.size()); }
  bool empty() const { return requests_.empty(); }
  int64_t tokens() const { return tokens_; }
  // The most urgent priority that waits. The queue must not be empty.
  int32_t best_priority() const { return by_priority_.begin()->first; }
  // What waits at this priority or a more urgent one.
  Backlog ahead_of(int32_t priority) const;

 private:
  std::vector<ScheduledRequest*> requests_;  // in no order
  std::map<int32_t, Backlog> by_priority_;
  int64_t tokens_ = 0;
};

}  // namespace tidemill
