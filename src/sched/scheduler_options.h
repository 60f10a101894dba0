// The policies of the scheduler, as numbers.
#pragma once

#include <cstdint>
#include <limits>

#include "base/result.h"
#include "sched/step_cost.h"

namespace tidemill {

struct SchedulerOptions {
  // ---- the device
  int64_t context = 0;      // prompt + output tokens of one request
  int64_t pool_blocks = 0;  // of the whole state pool
  int64_t block_tokens = 128;

  // ---- one step
  int64_t max_step_tokens = 512;
  int64_t max_sequences = 64;  // requests on the device at a time
  // Milliseconds that a step should take, by the fitted cost; 0: no limit. Decode always runs, so
  // the limit bounds prefill.
  double step_ms = 0;
  // Prefill gets its smallest chunk at least in every floor_every-th step, even without time left.
  int64_t floor_every = 8;
  // No chunk is shorter, and none leaves a shorter rest, except a prompt's last one.
  int64_t min_chunk = 16;
  // A chunk that is cut ends at a multiple of it where it can: window snapshots lie there.
  int64_t chunk_align = 128;
  StepCostOptions cost;

  // ---- admission
  int64_t max_waiting = 4096;
  int64_t max_tenant_waiting = 4096;
  int64_t max_waiting_tokens = int64_t{1} << 26;  // prompts
  // Blocks that a newcomer leaves free for the growth of those that decode, in parts of the pool.
  double watermark = 0.01;
  // A request that found no blocks for so long has what is free set aside for it.
  double reservation_ms = 2000;
  // Waiting requests that one plan looks at beyond those it can start.
  int64_t lookahead = 64;

  // ---- order (request_queue.h has the formula)
  double age_ms = 2000;
  double age_ms_per_token = 0.05;
  int64_t fair_quantum = 4096;  // virtual tokens by which tenants may differ and count as equal

  // ---- preemption
  // State of at least so many tokens is saved to host memory when it has room; less is recomputed.
  int64_t snapshot_from = std::numeric_limits<int64_t>::max();
  // So often a request makes way for a higher priority.
  int64_t max_priority_preemptions = 3;

  // kInvalidArgument with the option, its value and its range.
  Status check() const;
};

}  // namespace tidemill
