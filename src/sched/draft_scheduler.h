// Decides for each step how many drafts it verifies: the policy, the dated confidences and the
// measured costs in one place. What simulate_drafts() shows is what this class does.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sched/draft_budget.h"
#include "sched/draft_confidences.h"
#include "sched/draft_cost.h"

namespace tidemill {

// All keep the target's distribution (draft_budget.h); they differ in what they know and need.
enum class DraftMode {
  kOff,
  // The same length for all requests.
  kFixed,
  // As published: how many from the confidences of N - 2, which from those of N - 1, on the device
  // (allocate_drafts). The number is known before the drafts are, nothing waits.
  kPublished,
  // Lengths from the confidences of N - 2 and older alone, smoothed. The host knows every length
  // at planning, and no argument about order, ties or a device's rounding is needed: the lengths
  // do not depend on the drafts at all. Places drafts less well.
  kLagged,
  // Paper, section "greedy admission": how many and which from N - 1, stopping at the first draft
  // that does not pay. Needs the results of N - 1 on the host before N is planned: the loop waits.
  kEarlyStop,
};

struct DraftPolicy {
  DraftMode mode = DraftMode::kOff;
  int32_t length = 0;  // of kFixed

  // Does it look at confidences and costs?
  bool learns() const { return mode != DraftMode::kOff && mode != DraftMode::kFixed; }
};

// "off", "fixed:N" with N from 0 to draft_length, "dynamic" (kPublished), "dynamic-lagged",
// "dynamic-early-stop". Errors: kInvalidArgument.
Result<DraftPolicy> parse_draft_policy(std::string_view text, int32_t draft_length);
std::string to_string(const DraftPolicy& policy);

// What a step may verify. Spans belong to the caller.
struct DraftDemand {
  std::span<const RequestId> requests;  // in decode, each once
  // Drafts at most, [requests]: what is left of max_tokens and of the context, 0 for a request
  // that has none. Not a function of the drafts' own tokens (draft_budget.h).
  std::span<const int32_t> limits;
  int64_t other_tokens = 0;  // prefill rows of the step
  int64_t max_drafts = 0;    // what is left of the step's token budget
};

struct DraftPlan {
  // Rows to launch beyond one per request and other_tokens. On the device a few may stay unused
  // where limits changed in between.
  int64_t drafts = 0;
  // Of each request; empty if the device says (kPublished): allocate_drafts with fresh confidences.
  std::vector<int32_t> lengths;
  double expected_tokens = 0.0;  // of the step, drafts' confidences taken at their word
  double expected_ms = 0.0;
};

// One thread (the engine's).
class DraftScheduler {
 public:
  // Weight of the past in kLagged's confidences.
  static constexpr float kSmoothing = 0.8f;

  DraftScheduler(DraftPolicy policy, int32_t draft_length, DraftCost cost);

  // Steps count from 0. Modes that learn need each step's results in turn (processed), up to
  // step - 2 before `step` is planned (kEarlyStop: step - 1). Errors: kInternal otherwise, or for
  // sizes that do not match.
  Result<DraftPlan> plan(int64_t step, const DraftDemand& demand);

  // Confidences [requests, draft_length] of the drafts made at the end of `step`; empty ones too.
  // Errors: those of DraftConfidences::store.
  Status processed(int64_t step, std::span<const RequestId> requests,
                   std::span<const float> confidence) {
    return confidences_.store(step, requests, confidence);
  }

  const DraftPolicy& policy() const { return policy_; }
  DraftCost& cost() { return cost_; }
  const DraftCost& cost() const { return cost_; }

 private:
  DraftPlan fixed(DraftBatch batch, int32_t length) const;

  DraftPolicy policy_;
  int32_t draft_length_;
  DraftCost cost_;
  DraftConfidences confidences_;
  std::vector<float> old_;  // confidences for the plan in the making
  std::vector<float> fresh_;
};

}  // namespace tidemill
