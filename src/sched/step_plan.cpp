#include "sched/step_plan.h"

#include <fmt/format.h>

namespace tidemill {
namespace {

std::string describe(const Preemption& p) {
  return fmt::format("preempt {} {} for {} ({})", p.id,
                     p.kind == PreemptionKind::kRecompute ? "recompute" : "snapshot", p.for_id,
                     why_text(p.why));
}

std::string describe(const PlanItem& item) {
  std::string line =
      fmt::format("{} {} @{}", item.decode ? "decode" : "prefill", item.id, item.position);
  if (item.slack > 0) line += fmt::format("..{}", item.position + item.slack);
  line += fmt::format(" +{}", item.tokens);
  if (item.drafts > 0) line += fmt::format(" drafts {}", item.drafts);
  if (item.decode) return line;
  if (item.start == Start::kFresh) line += " start";
  if (item.start == Start::kRecompute) line += " recompute";
  if (item.start == Start::kRestore) line += " restore";
  return line + fmt::format(" ({})", why_text(item.why));
}

std::string describe(const Wait& wait) {
  if (wait.need == 0) return fmt::format("wait {} ({})", wait.id, why_text(wait.why));
  return fmt::format("wait {} ({}: needs {}, {} free)", wait.id, why_text(wait.why), wait.need,
                     wait.have);
}

}  // namespace

std::string_view why_text(Why why) {
  switch (why) {
    case Why::kNextToken:
      return "next token";
    case Why::kWholeRest:
      return "last";
    case Why::kTokenBudget:
      return "token budget";
    case Why::kTimeBudget:
      return "time budget";
    case Why::kFloor:
      return "floor";
    case Why::kDecodeNeedsBlocks:
      return "decode needs blocks";
    case Why::kHigherPriority:
      return "higher priority";
    case Why::kNoBlocks:
      return "no blocks";
    case Why::kNoSlot:
      return "no slot";
    case Why::kReturning:
      return "on their way back";
    case Why::kInFlight:
      return "in flight";
    case Why::kReserved:
      return "set aside";
    case Why::kStepFull:
      return "step full";
    case Why::kInvalid:
      return "invalid";
    case Why::kDuplicateId:
      return "duplicate id";
    case Why::kDraining:
      return "draining";
    case Why::kContext:
      return "context";
    case Why::kPool:
      return "pool";
    case Why::kQueueRequests:
      return "queue full";
    case Why::kQueueTokens:
      return "queued tokens";
    case Why::kTenantQueue:
      return "tenant queue full";
    case Why::kWaitTooLong:
      return "wait too long";
    case Why::kDeadlinePassed:
      return "deadline passed";
  }
  return "?";
}

std::string describe(const Refusal& refusal) {
  return fmt::format(
      "refuse {} ({}) {}, retry {}", refusal.id, why_text(refusal.why), refusal.error.message,
      refusal.retry_after > 0 ? fmt::format("after {} s", refusal.retry_after) : "never");
}

std::vector<std::string> describe(const StepPlan& plan) {
  std::vector<std::string> lines;
  for (const Refusal& refusal : plan.refusals) lines.push_back(describe(refusal));
  for (const Preemption& preemption : plan.preemptions) lines.push_back(describe(preemption));
  for (const PlanItem& item : plan.items) lines.push_back(describe(item));
  for (const Wait& wait : plan.waits) lines.push_back(describe(wait));
  return lines;
}

}  // namespace tidemill
