// Which requests run which tokens in the next step, and why: continuous batching with chunked
// prefill under token, sequence and time budgets; priorities, deadlines, fairness between tenants;
// preemption; admission control. Pure host code: it knows counts, no tokens and no memory, and
// reads no clock.
//
// Steps overlap: a step may be planned while earlier ones are in flight, and is committed in the
// order of planning. A request that ends or is preempted stays known until its last step in flight
// is committed; what it held is the pool's to release behind that step.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "sched/scheduler_options.h"
#include "sched/scheduler_state.h"
#include "sched/step_plan.h"

namespace tidemill {

// Tokens of a request's prefix whose state the pool has.
struct PrefixReuse {
  int64_t tokens = 0;
  int64_t blocks = 0;         // that adopting it gives the request; at least those of `tokens`
  int64_t shared_blocks = 0;  // of them, in use by others now: adopting them takes none
};

// What the state pool has at the moment of planning. Cached blocks that nobody uses are free.
struct Capacity {
  int64_t free_blocks = 0;
  int64_t free_slots = 0;
  int64_t returning_blocks = 0;  // released, but a step in flight may still read them
  int64_t returning_slots = 0;
  int64_t host_blocks = 0;  // room for snapshots of preempted requests
  // Asked for requests that are about to start, maybe in several plans. Empty: no prefix cache.
  std::function<PrefixReuse(RequestId)> prefix_hit = {};
};

// What became of an item of a step.
struct ItemResult {
  int64_t outputs = 0;    // tokens drawn and kept: 1 to 1 + drafts; 0 for a chunk that draws none
  bool finished = false;  // by a stop token, a stop string, or an error; then outputs may be 0
};

// Not thread safe. All times are milliseconds on one monotonic clock.
class Scheduler {
 public:
  // Error kInvalidArgument.
  static Result<Scheduler> create(const SchedulerOptions& options);

  // ---- life of a request
  tl::expected<void, Refusal> submit(const Arrival& arrival, double now);
  // Drafts that its next decode items shall verify. Fewer are planned where tokens, blocks or
  // max_tokens do not allow them. Unknown ids are ignored here and in lose_snapshot.
  void set_drafts(RequestId id, int64_t drafts);
  // Lets a held arrival start: its constraint is compiled, or what it shares is computed.
  void release(RequestId id);
  // The snapshot of a preempted request is gone: it will be recomputed.
  void lose_snapshot(RequestId id);
  // Ends a request whatever it does; false if it is not known or has ended.
  bool cancel(RequestId id);
  // From now on every arrival is refused; what is known goes on.
  void drain() { draining_ = true; }
  void set_weight(TenantId tenant, double weight) { state_.tenants.set_weight(tenant, weight); }

  // ---- steps
  // Never plans more blocks and slots than are free. Without items nothing is in flight for it, and
  // step is 0; then something else has to happen first: a commit, a preempted request's release, an
  // arrival. Refusals are of requests whose deadline has passed; they have ended.
  StepPlan plan(double now, const Capacity& capacity);
  // Results of the oldest step in flight, one per item and in the same order; `ms` is how long it
  // took (<= 0: unknown). Results of requests that have ended meanwhile are ignored. A request ends
  // when it is finished or has max_tokens outputs. What drafts that were not accepted had reserved
  // is expected back in the pool.
  // Error kInternal, with nothing changed: not that step, a wrong number of results or outputs.
  Status commit(uint64_t step, std::span<const ItemResult> results, double ms);

  // ---- counts
  // Null once a request has ended and no step in flight names it. Valid until the next call.
  const ScheduledRequest* find(RequestId id) const;
  int64_t known() const { return static_cast<int64_t>(requests_.size()); }
  int64_t running() const { return static_cast<int64_t>(state_.running.size()); }
  int64_t waiting() const { return state_.queue.size(); }
  int64_t in_flight() const { return static_cast<int64_t>(flights_.size()); }
  const StepCost& cost() const { return state_.cost; }
  const FairShare& tenants() const { return state_.tenants; }
  const SchedulerOptions& options() const { return state_.options; }

 private:
  struct FlightItem {
    ScheduledRequest* request = nullptr;
    int64_t drafts = 0;
    bool samples = false;
  };
  struct Flight {
    uint64_t step = 0;
    StepShape shape;
    std::vector<FlightItem> items;
  };

  Scheduler() = default;
  Status check(const Flight& flight, uint64_t step, std::span<const ItemResult> results) const;
  void commit_item(const FlightItem& item, const ItemResult& result);
  void expire(double now, StepPlan& plan);
  void end(ScheduledRequest& request);
  void forget(ScheduledRequest& request);

  SchedulerState state_;
  std::unordered_map<RequestId, std::unique_ptr<ScheduledRequest>> requests_;
  std::deque<Flight> flights_;
  uint64_t arrivals_ = 0;
  bool draining_ = false;
};

}  // namespace tidemill
