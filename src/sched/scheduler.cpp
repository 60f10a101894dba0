#include "sched/scheduler.h"

#include <algorithm>
#include <cmath>

#include "sched/admission.h"
#include "sched/planner.h"

namespace tidemill {

Result<Scheduler> Scheduler::create(const SchedulerOptions& options) {
  CHECK_OK(options.check());
  Scheduler scheduler;
  scheduler.state_.options = options;
  scheduler.state_.cost = StepCost(options.cost);
  return scheduler;
}

tl::expected<void, Refusal> Scheduler::submit(const Arrival& arrival, double now) {
  const auto refused = [&](Why why, ErrorCode code, std::string text, int64_t retry_after) {
    return tl::unexpected<Refusal>({arrival.id, why, {code, std::move(text)}, retry_after});
  };
  if (draining_) {
    return refused(Why::kDraining, ErrorCode::kNoCapacity,
                   "the engine is draining and takes no new requests", 1);
  }
  if (requests_.contains(arrival.id)) {
    return refused(Why::kDuplicateId, ErrorCode::kRequest,
                   fmt::format("request {} is known already", arrival.id), 0);
  }
  const FairShare::Tenant* known = state_.tenants.find(arrival.tenant);
  const AdmissionView view{&state_.queue, &state_.throughput, known ? known->waiting : 0};
  if (auto refusal = refuse(arrival, now, state_.options, view)) {
    return tl::unexpected<Refusal>(std::move(*refusal));
  }

  auto owned = std::make_unique<ScheduledRequest>();
  ScheduledRequest& request = *owned;
  request.arrival = arrival;
  request.number = ++arrivals_;
  request.arrived = now;
  request.tenant = &state_.tenants.enter(arrival.tenant);
  state_.queue.push(request);
  if (std::isfinite(arrival.deadline)) {
    state_.deadlines.emplace(std::pair(arrival.deadline, request.number), &request);
  }
  requests_.emplace(arrival.id, std::move(owned));
  return {};
}

const ScheduledRequest* Scheduler::find(RequestId id) const {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second.get();
}

void Scheduler::set_drafts(RequestId id, int64_t drafts) {
  const auto found = requests_.find(id);
  if (found != requests_.end()) found->second->drafts_wanted = std::max<int64_t>(0, drafts);
}

void Scheduler::release(RequestId id) {
  const auto found = requests_.find(id);
  if (found != requests_.end()) found->second->arrival.held = false;
}

void Scheduler::lose_snapshot(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end() || !found->second->has_snapshot) return;
  found->second->has_snapshot = false;
  found->second->length = 0;
}

bool Scheduler::cancel(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end() || found->second->state == RequestState::kFinished) return false;
  ScheduledRequest& request = *found->second;
  const bool running = request.running();
  end(request);
  if (running) std::erase(state_.running, &request);
  forget(request);
  return true;
}

// Leaves `running` to the caller, who may end many.
void Scheduler::end(ScheduledRequest& request) {
  if (request.queued()) state_.queue.remove(request);
  state_.deadlines.erase({request.arrival.deadline, request.number});
  state_.tenants.leave(request.arrival.tenant);
  request.tenant = nullptr;
  request.state = RequestState::kFinished;
}

void Scheduler::forget(ScheduledRequest& request) {
  if (request.state == RequestState::kFinished && request.steps_in_flight == 0) {
    requests_.erase(request.arrival.id);
  }
}

void Scheduler::expire(double now, StepPlan& plan) {
  auto& deadlines = state_.deadlines;
  while (!deadlines.empty() && deadlines.begin()->first.first <= now) {
    ScheduledRequest& request = *deadlines.begin()->second;
    plan.refusals.push_back(
        {request.arrival.id, Why::kDeadlinePassed,
         Error{ErrorCode::kDeadline,
               fmt::format("the deadline passed with {} of at most {} tokens answered",
                           request.outputs, request.arrival.max_tokens)},
         0});
    end(request);
  }
  if (plan.refusals.empty()) return;
  std::erase_if(state_.running, [](const ScheduledRequest* r) { return !r->running(); });
  for (const Refusal& refusal : plan.refusals) forget(*requests_.at(refusal.id));
}

StepPlan Scheduler::plan(double now, const Capacity& capacity) {
  StepPlan expired;
  expire(now, expired);
  StepPlan plan = StepPlanner(state_, now, capacity).run();
  plan.refusals = std::move(expired.refusals);
  if (plan.items.empty()) return plan;

  Flight flight{plan.step, plan.shape, {}};
  flight.items.reserve(plan.items.size());
  for (const PlanItem& item : plan.items) {
    flight.items.push_back({requests_.at(item.id).get(), item.drafts, item.samples});
  }
  flights_.push_back(std::move(flight));
  return plan;
}

Status Scheduler::check(const Flight& flight, uint64_t step,
                        std::span<const ItemResult> results) const {
  if (flight.step != step) {
    return fail(ErrorCode::kInternal, "step {} was committed, but step {} is the oldest in flight",
                step, flight.step);
  }
  if (results.size() != flight.items.size()) {
    return fail(ErrorCode::kInternal, "step {} has {} items, but {} results", step,
                flight.items.size(), results.size());
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const FlightItem& item = flight.items[i];
    if (item.request->state == RequestState::kFinished) continue;
    const int64_t least = item.samples && !results[i].finished ? 1 : 0;
    const int64_t most = item.samples ? 1 + item.drafts : 0;
    if (results[i].outputs < least || results[i].outputs > most) {
      return fail(ErrorCode::kInternal,
                  "request {} drew {} tokens in step {}; between {} and {} were possible",
                  item.request->arrival.id, results[i].outputs, step, least, most);
    }
  }
  return {};
}

void Scheduler::commit_item(const FlightItem& item, const ItemResult& result) {
  ScheduledRequest& r = *item.request;
  --r.steps_in_flight;
  if (r.state == RequestState::kFinished) return;
  if (item.samples) {
    --r.samples_in_flight;
    r.slack -= item.drafts;
    r.outputs += result.outputs;
    FairShare::charge(*r.tenant, result.outputs);
    const bool has_state = r.running() || r.has_snapshot;
    if (has_state) r.length += result.outputs - 1;
    if (r.running() && item.drafts > 0) r.blocks = state_.blocks_for(r.length + r.slack);
  }
  if (result.finished || r.outputs >= r.arrival.max_tokens) {
    state_.throughput.add_finished(r.outputs);
    end(r);
  }
}

Status Scheduler::commit(uint64_t step, std::span<const ItemResult> results, double ms) {
  if (flights_.empty()) {
    return fail(ErrorCode::kInternal, "step {} was committed, but none is in flight", step);
  }
  CHECK_OK(check(flights_.front(), step, results));
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();

  for (size_t i = 0; i < results.size(); ++i) commit_item(flight.items[i], results[i]);
  std::erase_if(state_.running, [](const ScheduledRequest* r) { return !r->running(); });
  for (const FlightItem& item : flight.items) forget(*item.request);
  state_.cost.record(flight.shape, ms);
  state_.throughput.add_step(flight.shape.tokens, ms);
  return {};
}

}  // namespace tidemill
