// What one step of the device is to do, and why: request ids and token ranges, no memory. The
// engine turns it into step items.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tidemill/request.h"

namespace tidemill {

// The reason of a decision; why_text() is its text in traces.
enum class Why : uint8_t {
  // of an item
  kNextToken,    // decode
  kWholeRest,    // the last chunk of a prompt
  kTokenBudget,  // the chunk ends where the step's tokens do
  kTimeBudget,   // the chunk ends where the step's milliseconds do
  kFloor,        // no time left, but prefill has waited long enough: the smallest chunk
  // of a preemption
  kDecodeNeedsBlocks,
  kHigherPriority,
  // of a wait
  kNoBlocks,
  kNoSlot,
  kReturning,  // blocks or a slot are on their way back, behind a step in flight
  kInFlight,   // how far the request has come is known when a step in flight ends
  kReserved,   // what is free is set aside for a request that has waited longer
  kStepFull,
  // of a refusal
  kInvalid,
  kDuplicateId,
  kDraining,
  kContext,
  kPool,
  kQueueRequests,
  kQueueTokens,
  kTenantQueue,
  kWaitTooLong,
  kDeadlinePassed,
};
std::string_view why_text(Why why);

// How a request that was waiting comes (back) to the device.
enum class Start : uint8_t {
  kNone,       // it is there already
  kFresh,      // acquire a slot, adopt the `position` tokens of its prefix hit
  kRecompute,  // the same, after a preemption: tokens = prompt and outputs so far
  kRestore,    // acquire a slot and bring its host snapshot of `position` tokens back
};

// Tokens of one request in one step.
struct PlanItem {
  RequestId id = 0;
  // First position. While drafts of a step in flight are undecided it is the lowest possible one
  // and the true one, known to the device, is in [position, position + slack].
  int64_t position = 0;
  int64_t slack = 0;
  int64_t tokens = 0;    // drafts included
  int64_t drafts = 0;    // the last ones of `tokens`
  bool decode = false;   // else a prefill chunk
  bool samples = false;  // draws at least one output: decode, or a prompt's last chunk
  Start start = Start::kNone;
  Why why = Why::kNextToken;

  // Blocks must be held for this many tokens before the step is launched.
  int64_t reserve() const { return position + slack + tokens; }
};

enum class PreemptionKind : uint8_t {
  kRecompute,  // its state is dropped
  kSnapshot,   // its state is copied to host memory once the steps in flight have ended
};

struct Preemption {
  RequestId id = 0;
  RequestId for_id = 0;
  PreemptionKind kind = PreemptionKind::kRecompute;
  Why why = Why::kDecodeNeedsBlocks;
  int64_t blocks = 0;  // that are expected back
};

// A request that this plan looked at and left out.
struct Wait {
  RequestId id = 0;
  Why why = Why::kNoBlocks;
  int64_t need = 0;  // blocks, with kNoBlocks, kReserved and kReturning
  int64_t have = 0;
};

struct Refusal {
  RequestId id = 0;
  Why why = Why::kInvalid;
  Error error;
  // Seconds after which trying again makes sense; 0: never, the request itself must change.
  int64_t retry_after = 0;
};

// Time of a step depends on its tokens and on how many pairs (token, earlier token) it visits.
struct StepShape {
  int64_t tokens = 0;
  double area = 0;  // sum over items of tokens * (position + tokens / 2)

  void add(int64_t position, int64_t count) {
    tokens += count;
    area += static_cast<double>(count) *
            (static_cast<double>(position) + 0.5 * static_cast<double>(count));
  }
};

// To be carried out in this order: refusals (end them), preemptions (release behind the last step
// launched), items with a start (slot, prefix or snapshot), blocks of all items.
struct StepPlan {
  uint64_t step = 0;  // to be named in Scheduler::commit; 0 when there are no items
  std::vector<Refusal> refusals;
  std::vector<Preemption> preemptions;
  std::vector<PlanItem> items;
  std::vector<Wait> waits;
  StepShape shape;
  double predicted_ms = 0;  // 0 while the cost model is not fitted
};

// One line per decision, in the order of StepPlan (tests/cases/sched, traces).
std::vector<std::string> describe(const StepPlan& plan);
std::string describe(const Refusal& refusal);

}  // namespace tidemill
