// The answer to an arrival: welcome, or an early refusal with its numbers.
#pragma once

#include <optional>

#include "sched/request_queue.h"
#include "sched/scheduled_request.h"
#include "sched/scheduler_options.h"

namespace tidemill {

// Running averages of what the device delivers. All 0 until measured; nothing is refused for an
// estimated wait before that.
struct Throughput {
  double step_tokens = 0;  // prefill and decode together
  double step_ms = 0;
  double outputs = 0;  // of a finished request

  double tokens_per_ms() const { return step_ms > 0 ? step_tokens / step_ms : 0; }
  void add_step(int64_t tokens, double ms);
  void add_finished(int64_t request_outputs);
  // Time until `backlog` has been worked off.
  double drain_ms(RequestQueue::Backlog backlog) const;
};

struct AdmissionView {
  const RequestQueue* queue = nullptr;
  const Throughput* throughput = nullptr;
  int64_t tenant_waiting = 0;
};

// Refusals in this order: what can never work (kRequest, kContextLength; retry_after 0), full
// queues (kNoCapacity), a deadline that the estimated wait and work exceed (kDeadline).
std::optional<Refusal> refuse(const Arrival& arrival, double now, const SchedulerOptions& options,
                              const AdmissionView& view);

}  // namespace tidemill
