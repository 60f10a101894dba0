#include "sched/draft_scheduler.h"

#include <algorithm>
#include <charconv>
#include <numeric>

namespace tidemill {

Result<DraftPolicy> parse_draft_policy(std::string_view text, int32_t draft_length) {
  if (text == "off") return DraftPolicy{DraftMode::kOff, 0};
  if (text == "dynamic") return DraftPolicy{DraftMode::kPublished, 0};
  if (text == "dynamic-lagged") return DraftPolicy{DraftMode::kLagged, 0};
  if (text == "dynamic-early-stop") return DraftPolicy{DraftMode::kEarlyStop, 0};
  constexpr std::string_view kFixed = "fixed:";
  if (text.starts_with(kFixed)) {
    const std::string_view number = text.substr(kFixed.size());
    int32_t length = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), length);
    if (error == std::errc() && end == number.data() + number.size() && length >= 0 &&
        length <= draft_length) {
      return DraftPolicy{DraftMode::kFixed, length};
    }
  }
  return fail(ErrorCode::kInvalidArgument,
              "drafts cannot be \"{}\"; one of off, fixed:N with N from 0 to {}, dynamic, "
              "dynamic-lagged, dynamic-early-stop",
              text, draft_length);
}

std::string to_string(const DraftPolicy& policy) {
  switch (policy.mode) {
    case DraftMode::kOff:
      return "off";
    case DraftMode::kFixed:
      return fmt::format("fixed:{}", policy.length);
    case DraftMode::kPublished:
      return "dynamic";
    case DraftMode::kLagged:
      return "dynamic-lagged";
    case DraftMode::kEarlyStop:
      return "dynamic-early-stop";
  }
  return "?";
}

DraftScheduler::DraftScheduler(DraftPolicy policy, int32_t draft_length, DraftCost cost)
    : policy_(policy),
      draft_length_(draft_length),
      cost_(std::move(cost)),
      confidences_(draft_length, kSmoothing) {}

// Where max_drafts leaves no room for `length`, the longest that fits.
DraftPlan DraftScheduler::fixed(DraftBatch batch, int32_t length) const {
  DraftBudget budget = fixed_budget(batch, cost_, length);
  while (length > 0 && budget.drafts > batch.max_drafts) {
    budget = fixed_budget(batch, cost_, --length);
  }
  DraftPlan plan{.drafts = budget.drafts,
                 .lengths = std::vector<int32_t>(static_cast<size_t>(batch.requests)),
                 .expected_tokens = budget.expected_tokens,
                 .expected_ms = budget.step_ms};
  for (int64_t r = 0; r < batch.requests; ++r) plan.lengths[r] = std::min(length, batch.limit(r));
  return plan;
}

Result<DraftPlan> DraftScheduler::plan(int64_t step, const DraftDemand& demand) {
  const size_t requests = demand.requests.size();
  if (!demand.limits.empty() && demand.limits.size() != requests) {
    return fail(ErrorCode::kInternal, "step {} has {} draft limits for {} requests", step,
                demand.limits.size(), requests);
  }
  old_.assign(requests * static_cast<size_t>(draft_length_), 1.0f);
  DraftBatch batch{.confidence = old_,
                   .limits = demand.limits,
                   .requests = static_cast<int64_t>(requests),
                   .draft_length = draft_length_,
                   .other_tokens = demand.other_tokens,
                   .max_drafts = std::max<int64_t>(demand.max_drafts, 0)};
  switch (policy_.mode) {
    case DraftMode::kOff:
      return fixed(batch, 0);
    case DraftMode::kFixed:
      return fixed(batch, policy_.length);
    case DraftMode::kPublished: {
      CHECK_OK(confidences_.lagged(step, demand.requests, old_));
      const DraftBudget budget = search_budget(batch, cost_);
      return DraftPlan{budget.drafts, {}, budget.expected_tokens, budget.step_ms};
    }
    case DraftMode::kLagged: {
      CHECK_OK(confidences_.lagged_smoothed(step, demand.requests, old_));
      const DraftBudget budget = search_budget(batch, cost_);
      DraftPlan plan{budget.drafts, std::vector<int32_t>(requests), budget.expected_tokens,
                     budget.step_ms};
      allocate_drafts(batch, budget.drafts, plan.lengths);
      return plan;
    }
    case DraftMode::kEarlyStop: {
      CHECK_OK(confidences_.lagged_smoothed(step, demand.requests, old_));
      const EarlyStart start = best_start(batch, cost_);
      fresh_.resize(old_.size());
      CHECK_OK(confidences_.fresh(step, demand.requests, fresh_));
      batch.confidence = fresh_;
      DraftPlan plan;
      plan.lengths.resize(requests);
      const DraftBudget budget = early_stop(batch, cost_, start, plan.lengths);
      plan.drafts = budget.drafts;
      plan.expected_tokens = budget.expected_tokens;
      plan.expected_ms = budget.step_ms;
      return plan;
    }
  }
  return fail(ErrorCode::kInternal, "unknown draft mode {}", static_cast<int>(policy_.mode));
}

}  // namespace tidemill
