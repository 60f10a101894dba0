// A request as the scheduler knows it: counts and a state, no tokens and no memory.
#pragma once

#include <cstdint>
#include <limits>

#include "sched/fair_share.h"
#include "sched/step_plan.h"

namespace tidemill {

// What a client asks for. Times are milliseconds on any one monotonic clock.
struct Arrival {
  RequestId id = 0;
  TenantId tenant = 0;
  int32_t priority = 0;                                       // the lower, the more urgent
  double deadline = std::numeric_limits<double>::infinity();  // of the whole answer
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;
  bool held = false;  // takes its place in the queue, but does not start before Scheduler::release

  static constexpr int32_t kMaxPriority = 100;  // priorities are in [-100, 100]
};

enum class RequestState : uint8_t { kWaiting, kPrefilling, kDecoding, kPreempted, kFinished };

// Invariant of a decoding request: length == prompt_tokens + outputs + samples_in_flight - 1, as
// every sampled token but the last has been, or is being, computed.
struct ScheduledRequest {
  Arrival arrival;
  uint64_t number = 0;  // order of arrival
  FairShare::Tenant* tenant = nullptr;
  RequestState state = RequestState::kWaiting;

  int64_t outputs = 0;        // committed
  int64_t drafts_wanted = 0;  // for its next decode item
  // Positions whose state is computed or in a planned step: at least `length`, and up to `slack`
  // more if drafts in flight are accepted.
  int64_t length = 0;
  int64_t slack = 0;
  int64_t target = 0;  // prefill until length == target: prompt and the outputs known by then
  int64_t samples_in_flight = 0;
  int64_t steps_in_flight = 0;

  int64_t blocks = 0;         // held
  int64_t shared_blocks = 0;  // of them, held by others too: releasing them frees nothing

  // Order (request_queue.h).
  double arrived = 0;
  bool started = false;
  bool claimed = false;  // others were preempted for it
  int64_t round = 0;     // fair-share round, fixed at the first start
  uint64_t start_number = 0;

  // Waiting for blocks since then; negative: it is not.
  double blocked_since = -1;

  // Preemption.
  bool has_snapshot = false;
  int64_t preemptions = 0;
  int64_t priority_preemptions = 0;
  int64_t preempted_length = 0;  // the longest it was when preempted
  uint64_t planned_step = 0;     // the last plan that names it in an item or a preemption

  // Position in the queue; maintained by RequestQueue.
  int64_t queue_index = -1;

  int64_t known_tokens() const { return arrival.prompt_tokens + outputs; }
  bool queued() const { return queue_index >= 0; }
  bool running() const {
    return state == RequestState::kPrefilling || state == RequestState::kDecoding;
  }
  // Outputs that may still be planned. Those in flight count as one token per step.
  int64_t outputs_left() const { return arrival.max_tokens - outputs - samples_in_flight; }
  // Has it computed anything new since it was last preempted?
  bool progressed() const { return preemptions == 0 || length > preempted_length; }
};

}  // namespace tidemill
