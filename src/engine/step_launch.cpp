// From a plan to a job of the device.
#include <algorithm>

#include "base/log.h"
#include "engine/no_wait.h"
#include "engine/step_answer.h"

namespace tidemill {
namespace {

// What a client may know of a hit: nothing of what other tenants have cached.
std::string told(const PrefixHit& hit) {
  if (hit.reason != MissReason::kOtherNamespace) return hit.text;
  return fmt::format("hit 0 of {} tokens: nothing cached goes on after token 0", hit.asked);
}

}  // namespace

Capacity StepLoop::capacity() {
  const StatePool& pool = runner_.pool();
  const StateLayout& layout = pool.layout();
  Capacity capacity{.free_blocks = pool.free_blocks(),
                    .free_slots = pool.free_slots(),
                    .returning_blocks = pool.returning_blocks(),
                    .returning_slots = pool.returning_slots()};
  const int64_t host = options_.suspend_bytes - suspended_total_ - layout.slot_bytes;
  if (host > 0 && layout.block_bytes > 0) capacity.host_blocks = host / layout.block_bytes;
  if (options_.prefix_cache) {
    capacity.prefix_hit = [this](RequestId id) { return find_prefix(*answers_.at(id)); };
  } else if (options_.fill_context > 0) {
    capacity.prefix_hit = [this](RequestId id) { return filled_prefix(*answers_.at(id)); };
  }
  return capacity;
}

std::string StepLoop::cache_rule() const {
  if (!options_.prefix_cache) return "no prefix is reused (prefix_cache is off)";
  LookupOptions lookup{.tail = options_.replay_keep};
  if (options_.replay_keep > 0) {
    lookup.reuse = options_.encoder_replay ? Reuse::kEncoderReplay : Reuse::kDecoderTail;
  }
  return prefixes_.rule(lookup);
}

PrefixReuse StepLoop::find_prefix(Answer& answer) {
  const Group& group = *answer.group;
  fill_tokens(answer);
  const auto length = static_cast<int64_t>(answer.tokens.size());
  LookupOptions lookup;
  if (options_.replay_keep > 0) {
    lookup.reuse = options_.encoder_replay ? Reuse::kEncoderReplay : Reuse::kDecoderTail;
    // What came behind the prompt has been computed by the decoder, and will be again.
    const auto prompt = static_cast<int64_t>(group.request.prompt.size());
    lookup.tail = options_.replay_keep + length - prompt;
  }
  // Nothing is handed out while a plan is made; those that start hold their blocks then.
  lookup.hold = false;
  lookup.known_keys = &answer.group->keys;
  answer.hit = prefixes_.lookup({.tokens = answer.tokens, .images = {}}, group.chain, lookup);
  looked_up_.push_back(&answer);
  const BlockPool& blocks = runner_.pool().block_pool();
  const auto shared = [&](int32_t block) { return blocks.references(block) > 0; };
  const auto& found = answer.hit.blocks();
  return {.tokens = answer.hit.length,
          .blocks = static_cast<int64_t>(found.size()),
          .shared_blocks = std::count_if(found.begin(), found.end(), shared)};
}

// State that is taken for granted. Blocks of its own hold it: none is shared.
PrefixReuse StepLoop::filled_prefix(Answer& answer) {
  fill_tokens(answer);
  const auto others = static_cast<int64_t>(answer.tokens.size()) - 1;
  const int64_t blocks = std::min(options_.fill_context, others) / kBlockTokens;
  return {.tokens = blocks * kBlockTokens, .blocks = blocks};
}

// What starts keeps its hit, whatever is handed out from here on; the others look again.
void StepLoop::end_lookups(const StepPlan& plan) {
  for (const PlanItem& item : plan.items) {
    if (options_.prefix_cache && (item.start == Start::kFresh || item.start == Start::kRecompute)) {
      prefixes_.hold(answers_.at(item.id)->hit);
    }
  }
  for (Answer* answer : std::exchange(looked_up_, {})) {
    if (!answer->hit.held()) answer->hit.abandon();
  }
}

Result<bool> StepLoop::launch() {
  const NoWait no_wait;
  const Clock::time_point begin = Clock::now();
  take_grammars();
  if (failed_) return false;
  StepJob job;
  StepPlan plan;
  // A plan without items may still preempt; what that frees at once is there for the next one.
  do {
    plan = scheduler_.plan(now_ms(), capacity());
    end_lookups(plan);
    for (Refusal& refusal : plan.refusals) {
      if (const auto found = answers_.find(refusal.id); found != answers_.end()) {
        const bool started = found->second->started;
        finish(*found->second, started ? FinishReason::kError : FinishReason::kRefused,
               std::move(refusal.error));
      }
    }
    for (const Preemption& preemption : plan.preemptions) preempt(preemption, job);
  } while (plan.step == 0 && !plan.preemptions.empty() && flights_.empty() &&
           job.suspensions.empty());

  stalled_ = plan.items.empty();
  if (stalled_ && job.suspensions.empty()) {
    if (scheduler_.running() == 0) idle_ = true;
    return false;
  }
  job.step = plan.step;
  job.fence = runner_.pool().begin_step();
  for (const Suspension& suspension : job.suspensions) {
    // Behind this step, which copies it out before it does anything else.
    runner_.pool().release(answers_.at(suspension.request->id)->sequence);
  }
  Flight flight{.step = plan.step};
  for (const PlanItem& item : plan.items) CHECK_OK(add_item(item, job, flight));
  if (plan.step != 0) CHECK_OK(plan_drafts(plan, job));
  const bool exposed = flights_.empty() && !idle_;
  send(std::move(job), std::move(flight));
  const double ms = 1e3 * seconds_since(begin);
  stats_.plan_ms += ms;
  if (exposed) stats_.exposed_ms += ms;
  return true;
}

void StepLoop::send(StepJob job, Flight flight) {
  job.copy_windows = options_.prefix_cache;
  job.after_pause = std::exchange(idle_, false);
  if (flights_.empty() && !job.after_pause) ++stats_.late_steps;
  flights_.push_back(std::move(flight));
  ++launched_;
  device_->launch(std::move(job));
}

void StepLoop::preempt(const Preemption& preemption, StepJob& job) {
  Answer& answer = *answers_.at(preemption.id);
  ++answer.usage.preemptions;
  ++stats_.preemptions;
  // State after an encoder replay is not worth keeping apart from what is cached.
  if (preemption.kind == PreemptionKind::kSnapshot && answer.sequence.replay_from < 0) {
    // Blocks are held for all that steps in flight may write.
    const StateLayout& layout = runner_.pool().layout();
    const auto blocks = static_cast<int64_t>(answer.sequence.blocks.size());
    const int64_t bytes = layout.slot_bytes + blocks * layout.block_bytes;
    if (suspended_total_ + bytes <= options_.suspend_bytes) {
      answer.suspended = std::make_shared<SuspendedSequence>();
      answer.suspended_bytes = bytes;
      suspended_total_ += bytes;
      ++stats_.suspends;
      job.suspensions.push_back({answer.device, answer.suspended, answer.sequence.blocks});
      return;  // released with the step that copies it
    }
  }
  scheduler_.lose_snapshot(answer.id);
  // What was computed stays in the prefix cache as long as there is room.
  if (answer.on_device()) runner_.pool().release(answer.sequence);
}

// A queued answer has no copy of the prompt before its turn comes near.
void StepLoop::fill_tokens(Answer& answer) {
  if (answer.tokens.empty()) answer.tokens = answer.group->request.prompt;
}

// Slot, blocks and tokens of a request that comes (back) to the device.
Status StepLoop::start(Answer& answer, const PlanItem& plan, JobItem& item) {
  fill_tokens(answer);
  StatePool& pool = runner_.pool();
  TRY(answer.sequence, pool.acquire());
  Sequence& sequence = answer.sequence;
  if (plan.start == Start::kRestore) {
    const auto first = answer.tokens.begin();
    sequence.tokens.assign(first, first + plan.position);
    item.restore = std::exchange(answer.suspended, nullptr);
    suspended_total_ -= answer.suspended_bytes;
  } else if (plan.position > 0 && options_.fill_context > 0) {
    CHECK_OK(pool.reserve(sequence, plan.position));
    const auto first = answer.tokens.begin();
    sequence.tokens.assign(first, first + plan.position);
  } else if (plan.position > 0) {
    prefixes_.adopt(std::move(answer.hit), {.tokens = answer.tokens, .images = {}}, sequence);
  }
  answer.hit.abandon();
  sequence.decoder_floor = answer.group->decoder_floor;
  if (sequence.length() != plan.position) {
    return fail(ErrorCode::kInternal, "request {} starts at token {}, its prefix has {}", answer.id,
                plan.position, sequence.length());
  }
  if (!answer.started) {
    answer.started = true;
    answer.device->tokens = answer.tokens;
    if (answer.device->sampling.uses_history()) answer.device->history.add_prompt(answer.tokens);
    answer.usage.cached_tokens = plan.position;
    answer.usage.queued_ms = 1e3 * seconds_since(answer.group->submitted);
  }
  return {};
}

Status StepLoop::add_item(const PlanItem& plan, StepJob& job, Flight& flight) {
  Answer& answer = *answers_.at(plan.id);
  JobItem item{.request = answer.device, .plan = plan};
  if (plan.start != Start::kNone) {
    // Where the next request like this one could start: at the end of what is cached, if only the
    // windows were missing there, and before the tail that bounded replay always computes.
    answer.save_at = {answer.hit.matched,
                      answer.group->decoder_floor / kBlockTokens * kBlockTokens};
    if (answer.usage.cache_text.empty()) answer.usage.cache_text = told(answer.hit);
    log_debug("request {}: {}", answer.group->id, answer.hit.text);
    CHECK_OK(start(answer, plan, item));
  }
  CHECK_OK(runner_.pool().reserve(answer.sequence, plan.reserve()));
  if (plan.start != Start::kNone) {
    item.start = answer.sequence;
    answer.device_blocks = answer.sequence.blocks;
  } else if (answer.device_blocks != answer.sequence.blocks) {
    answer.device_blocks = item.blocks = answer.sequence.blocks;
  }
  if (!plan.decode) item.save_at = answer.save_at;
  flight.answers.push_back(plan.id);
  flight.items.push_back(plan);
  job.items.push_back(std::move(item));
  return {};
}

// How many of the drafts that the plan has room for the step verifies.
Status StepLoop::plan_drafts(const StepPlan& plan, StepJob& job) {
  std::vector<RequestId> requests;
  std::vector<int32_t> limits;
  std::vector<PlanItem*> items;
  DraftDemand demand;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    PlanItem& item = job.items[i].plan;
    if (!item.decode) {
      demand.other_tokens += item.tokens;
      continue;
    }
    requests.push_back(item.id);
    if (feedback_.pausing()) item.drafts = 0;
    limits.push_back(static_cast<int32_t>(item.drafts));
    items.push_back(&item);
    demand.max_drafts += item.drafts;
  }
  demand.requests = requests;
  demand.limits = limits;
  TRY(const DraftPlan drafts, drafts_.plan(draft_steps_++, demand));
  if (drafts.lengths.empty()) job.draft_budget = drafts.drafts;
  for (size_t i = 0; i < drafts.lengths.size(); ++i) items[i]->drafts = drafts.lengths[i];
  job.make_drafts = !feedback_.pausing();
  if (!requests.empty() && drafts_.policy().learns()) weigh_drafts(demand, drafts);
  return {};
}

// Do drafts pay at all now? Without them the step is shorter, and nothing is drafted behind it.
void StepLoop::weigh_drafts(const DraftDemand& demand, const DraftPlan& drafts) {
  if (feedback_.pausing()) return feedback_.pause_step();
  const auto requests = static_cast<int64_t>(demand.requests.size());
  const double plain_ms = drafts_.cost().step_ms(requests + demand.other_tokens) - draft_time_.ms();
  feedback_.compare({drafts.expected_tokens, drafts.expected_ms},
                    {static_cast<double>(requests), plain_ms});
}

}  // namespace tidemill
