// What goes from the loop to the device and back: plain values. Private to src/engine.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sample/grammar.h"
#include "sample/penalties.h"
#include "sched/step_plan.h"
#include "state/state_pool.h"
#include "state/suspend.h"
#include "state/window_snapshots.h"
#include "tidemill/request.h"

namespace tidemill {

// One answer on the device's side. The loop fills it in before the first job that names it; from
// then on it belongs to the device's thread, `dropped` apart. The loop knows what the outcomes say.
struct DeviceRequest {
  RequestId id = 0;
  SamplingParams sampling;
  std::vector<int32_t> ends;  // tokens that end the answer, ascending
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;
  int64_t max_drafts = 0;

  std::vector<int32_t> tokens;  // prompt and answer; the state lags behind by one token at least
  Sequence sequence;            // a copy: slot and blocks are the loop's
  TokenHistory history;
  std::optional<GrammarMatcher> matcher;
  std::vector<int32_t> drafts;    // after the last token, for the next step
  std::vector<float> confidence;  // of the drafts
  std::vector<float> draft_odds;  // [drafts, vocabulary], for verification by rejection
  int64_t drafted_at = 0;         // number of the step that made them
  int64_t windows_at = 0;         // latest boundary whose windows were to be copied
  bool ended = false;

  std::atomic<bool> dropped = false;  // nobody wants its rows any more

  int64_t outputs() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens; }
  int64_t outputs_left() const { return max_tokens - outputs(); }
  // Drafts that make sense behind the last token.
  int64_t drafts_wanted() const { return ended ? 0 : std::min(max_drafts, outputs_left() - 1); }
};
using DeviceRequestPtr = std::shared_ptr<DeviceRequest>;
using SuspendedPtr = std::shared_ptr<SuspendedSequence>;

struct JobItem {
  DeviceRequestPtr request;
  PlanItem plan;
  std::optional<Sequence> start;  // with PlanItem::start: the state to begin with
  SuspendedPtr restore;         // and the bytes of its slot and blocks, if they come from the host
  std::vector<int32_t> blocks;  // its block table, when that has changed
  // Boundaries inside a prompt whose windows are worth saving, besides its last one.
  std::vector<int64_t> save_at;
};

// A request whose state leaves the device's memory.
struct Suspension {
  DeviceRequestPtr request;
  SuspendedPtr to;
  std::vector<int32_t> blocks;  // its table as the loop has it: older ones may name others' blocks
};

struct StepJob {
  uint64_t step = 0;                    // of the scheduler; 0: no items, only suspensions
  int64_t fence = 0;                    // of the state pool
  std::vector<Suspension> suspensions;  // before the step
  std::vector<JobItem> items;
  // Drafts to verify in all, each item PlanItem::drafts at most, by fresh confidence; -1: every
  // item as many as its plan says.
  int64_t draft_budget = -1;
  bool copy_windows = false;
  bool make_drafts = true;  // behind the step
  // The device was not expected to have work before this job.
  bool after_pause = false;
};

struct ItemOutcome {
  std::vector<int32_t> outputs;
  std::vector<LogProbabilities> logprobs;
  FinishReason finish = FinishReason::kNone;
  Error error;
  int64_t length = 0;             // tokens in the caches now
  std::vector<float> confidence;  // of the drafts that were verified
  int64_t accepted = 0;           // of them
  std::vector<std::shared_ptr<WindowSnapshot>> windows;
};

struct StepOutcome {
  uint64_t step = 0;
  int64_t fence = 0;
  Status status;                   // an error is one of the whole engine
  std::vector<ItemOutcome> items;  // as in the job
  // Requests that drafted behind this step, and [requests, draft length] confidences of it.
  std::vector<RequestId> drafting;
  std::vector<float> confidence;

  int64_t prefill_rows = 0;
  int64_t decode_rows = 0;
  double forward_ms = 0;
  double sample_ms = 0;  // sampling and verification
  double draft_ms = 0;   // the draft pass
  double busy_ms = 0;
  double idle_ms = 0;  // before this step, without work
};

}  // namespace tidemill
