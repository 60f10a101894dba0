// Chunks of prompts, and the start of waiting requests.
#include <algorithm>

#include "sched/chunk.h"
#include "sched/planner.h"

namespace tidemill {

PrefixReuse StepPlanner::hit_of(const ScheduledRequest& r) const {
  if (r.has_snapshot) return {.tokens = r.length, .blocks = state_.blocks_for(r.length)};
  if (!capacity_.prefix_hit) return {};
  PrefixReuse hit = capacity_.prefix_hit(r.arrival.id);
  // At least one token has to be computed, to draw the next from it.
  const int64_t most = r.known_tokens() - 1;
  if (hit.tokens > most) hit = {most, state_.blocks_for(most), hit.shared_blocks};
  hit.tokens = std::max<int64_t>(hit.tokens, 0);
  hit.blocks = std::clamp<int64_t>(hit.blocks, state_.blocks_for(hit.tokens),
                                   state_.blocks_for(r.known_tokens()));
  hit.shared_blocks = std::clamp<int64_t>(hit.shared_blocks, 0, hit.blocks);
  return hit;
}

int64_t StepPlanner::admission_blocks(const ScheduledRequest& r, const PrefixReuse& hit) const {
  return state_.blocks_for(r.known_tokens()) - hit.shared_blocks;
}

std::vector<StepPlanner::Candidate> StepPlanner::prefill_candidates() {
  std::vector<Candidate> candidates;
  if (prefilling_ > 0) {
    for (ScheduledRequest* r : state_.running) {
      if (r->state == RequestState::kPrefilling) {
        candidates.push_back({turn_of(*r, now_, options_), r});
      }
    }
  }
  if (free_.slots > 0) {
    for (ScheduledRequest* r : state_.queue.requests()) {
      if (in_this_step(*r)) continue;  // preempted by this very plan
      if (r->arrival.held) continue;
      candidates.push_back({turn_of(*r, now_, options_), r});
    }
  }
  return candidates;
}

// The next chunk from `position` on, if it fits into what is left of the step; 0 if it does not.
int64_t StepPlanner::chunk_of(const ScheduledRequest& r, int64_t position, Why& why) const {
  const int64_t rest = r.known_tokens() - position;
  const auto cut = [&](int64_t room) {
    return chunk_size(position, rest, room, options_.min_chunk, options_.chunk_align);
  };
  const int64_t room = options_.max_step_tokens - plan_.shape.tokens;
  int64_t tokens = cut(room);
  why = tokens == rest ? Why::kWholeRest : Why::kTokenBudget;
  if (options_.step_ms <= 0 || !state_.cost.fitted() || tokens == 0) return tokens;

  const int64_t in_time =
      state_.cost.longest_chunk(plan_.shape, position, options_.step_ms, tokens);
  if (in_time >= tokens) return tokens;
  tokens = cut(in_time);
  why = Why::kTimeBudget;
  if (tokens > 0) return tokens;
  const bool due =
      plan_.items.empty() || (plan_.items.size() == decoded_.size() &&
                              state_.steps_without_prefill + 1 >= options_.floor_every);
  const int64_t smallest = rest < 2 * options_.min_chunk ? rest : options_.min_chunk;
  why = Why::kFloor;
  return due && smallest <= room ? smallest : 0;
}

void StepPlanner::add_chunk(ScheduledRequest& r, int64_t tokens, Start start, Why why) {
  PlanItem item{.id = r.arrival.id,
                .position = r.length,
                .tokens = tokens,
                .samples = r.length + tokens == r.target,
                .start = start,
                .why = why};
  const int64_t need = std::max<int64_t>(0, state_.blocks_for(r.length + tokens) - r.blocks);
  physical_ -= need;
  r.blocks += need;
  plan_.shape.add(r.length, tokens);
  r.length += tokens;
  r.planned_step = step_;
  ++r.steps_in_flight;
  if (item.samples) {
    ++r.samples_in_flight;
    r.state = RequestState::kDecoding;
  }
  plan_.items.push_back(item);
}

bool StepPlanner::continue_prefill(ScheduledRequest& r) {
  Why why = Why::kStepFull;
  const int64_t tokens = chunk_of(r, r.length, why);
  if (tokens == 0) {
    wait(r, Why::kStepFull);
    return false;
  }
  const int64_t need = state_.blocks_for(r.length + tokens) - r.blocks;
  if (need > physical_) {
    wait(r, Why::kNoBlocks, need, physical_);
    return false;
  }
  add_chunk(r, tokens, Start::kNone, why);
  return true;
}

// Starts a waiting request with its first chunk. One that is owed blocks (others were preempted for
// it, or it has waited too long) sets aside what it needs: those behind it see only what is left.
bool StepPlanner::admit(ScheduledRequest& r) {
  if (r.steps_in_flight > 0) {
    wait(r, Why::kInFlight);
    return false;
  }
  if (free_.slots <= 0) {
    wait(r, coming_.slots > 0 ? Why::kReturning : Why::kNoSlot);
    return false;
  }
  const PrefixReuse hit = hit_of(r);
  const int64_t need = admission_blocks(r, hit);
  const bool alone = state_.running.empty() && plan_.items.empty();
  const int64_t have = std::min(free_.blocks, physical_) - (alone ? 0 : watermark_);
  if (need > have) {
    const Why why = set_aside_                      ? Why::kReserved
                    : need <= have + coming_.blocks ? Why::kReturning
                                                    : Why::kNoBlocks;
    wait(r, why, need, std::max<int64_t>(0, have));
    if (r.blocked_since < 0) r.blocked_since = now_;
    if (r.claimed || now_ - r.blocked_since >= options_.reservation_ms) {
      free_.blocks -= need;
      free_.slots -= 1;
      set_aside_ = true;
    }
    return false;
  }
  Why why = Why::kStepFull;
  const int64_t tokens = chunk_of(r, hit.tokens, why);
  if (tokens == 0) {
    wait(r, Why::kStepFull);
    return false;
  }

  state_.queue.remove(r);
  state_.running.push_back(&r);
  free_.blocks -= need;
  free_.slots -= 1;
  Start start = Start::kFresh;
  if (r.started) {
    start = r.has_snapshot ? Start::kRestore : Start::kRecompute;
  } else {
    r.round = turn_of(r, now_, options_).round;
    r.started = true;
    r.start_number = ++state_.starts;
    FairShare::charge(*r.tenant, r.arrival.prompt_tokens - hit.tokens);
  }
  r.state = RequestState::kPrefilling;
  r.target = r.known_tokens();
  r.length = hit.tokens;
  r.slack = 0;
  // Blocks in use by others cost none; the rest of the hit is taken now.
  r.blocks = hit.blocks;
  r.shared_blocks = hit.shared_blocks;
  physical_ -= r.blocks - r.shared_blocks;
  r.has_snapshot = false;
  r.claimed = false;
  r.blocked_since = -1;
  add_chunk(r, tokens, start, why);
  return true;
}

void StepPlanner::plan_prefill() {
  std::vector<Candidate> heap = prefill_candidates();
  const bool due = !heap.empty();
  const auto later = [](const Candidate& a, const Candidate& b) { return a.turn > b.turn; };
  std::make_heap(heap.begin(), heap.end(), later);

  bool any = false;
  int64_t failed = 0;                // waiting requests that could not start
  int64_t in_prefill = prefilling_;  // still in the heap; these are never passed over
  while (!heap.empty() && (in_prefill > 0 || failed <= options_.lookahead)) {
    std::pop_heap(heap.begin(), heap.end(), later);
    Candidate next = heap.back();
    heap.pop_back();
    ScheduledRequest& r = *next.request;
    if (plan_.shape.tokens >= options_.max_step_tokens) {
      wait(r, Why::kStepFull);
      break;
    }
    // Starting a request of the same tenant has moved this one back.
    const Turn turn = turn_of(r, now_, options_);
    if (turn > next.turn) {
      heap.push_back({turn, &r});
      std::push_heap(heap.begin(), heap.end(), later);
      continue;
    }
    if (!r.queued()) {
      --in_prefill;
      any = continue_prefill(r) || any;
    } else if (failed <= options_.lookahead) {
      const bool started = admit(r);
      any = any || started;
      // Without a slot nobody else can start either.
      if (!started) failed = free_.slots > 0 ? failed + 1 : options_.lookahead + 1;
    }
  }
  state_.steps_without_prefill = any || !due ? 0 : state_.steps_without_prefill + 1;
}

}  // namespace tidemill
