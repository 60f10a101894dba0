// From the outcome of a step to events, and to state that others can reuse.
#include <algorithm>

#include "engine/no_wait.h"
#include "engine/step_answer.h"

namespace tidemill {

Status StepLoop::commit() {
  const NoWait no_wait;
  while (auto outcome = device_->take()) {
    const Clock::time_point begin = Clock::now();
    const Status status = commit_one(*outcome);
    const double ms = 1e3 * seconds_since(begin);
    stats_.commit_ms += ms;
    if (flights_.empty()) stats_.exposed_ms += ms;
    if (!status) {
      fail_all(status.error());
      return status;
    }
  }
  return {};
}

Status StepLoop::commit_one(StepOutcome& outcome) {
  runner_.pool().finish_step(outcome.fence);
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  stalled_ = false;
  CHECK_OK(std::move(outcome.status));
  if (flight.step == 0 || failed_) return {};
  count(outcome);

  std::vector<ItemResult> results(flight.answers.size());
  std::vector<Event> events(flight.answers.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const auto found = answers_.find(flight.answers[i]);
    results[i] = found == answers_.end()
                     ? ItemResult{0, true}
                     : take_outputs(*found->second, outcome.items[i], events[i]);
  }
  CHECK_OK(scheduler_.commit(flight.step, results, outcome.busy_ms));
  for (size_t i = 0; i < results.size(); ++i) {
    const auto found = answers_.find(flight.answers[i]);
    if (found == answers_.end()) continue;
    Answer& answer = *found->second;
    ItemOutcome& out = outcome.items[i];
    settle(answer, out);
    if (!events[i].tokens.empty()) events_.push_back(std::move(events[i]));
    Group& group = *answer.group;
    if (answer.choice == 0 && flight.items[i].samples) release_siblings(group);
    if (out.finish != FinishReason::kNone) finish(answer, out.finish, std::move(out.error));
  }
  return learn(outcome);
}

// Tokens and text of one answer's step; a stop string may cut them.
ItemResult StepLoop::take_outputs(Answer& answer, ItemOutcome& out, Event& event) {
  const auto drafted = out.confidence.size();
  for (size_t j = 0; j < drafted; ++j) {
    const bool stands = static_cast<int64_t>(j) < out.accepted;
    ++answer.usage.drafted[j];
    answer.usage.accepted[j] += stands;
  }
  if (drafted > 0) {
    std::vector<float> confidence = out.confidence;
    confidence.resize(stats_.drafted.size());
    calibration_.add(answer.group->request.tag, confidence, static_cast<int32_t>(drafted),
                     static_cast<int32_t>(out.accepted));
  }
  ItemResult result{
      .outputs = static_cast<int64_t>(out.outputs.size()),
      .finished = out.finish == FinishReason::kStop || out.finish == FinishReason::kError};
  if (out.outputs.empty()) return result;

  if (answer.outputs() == 0) {
    answer.usage.first_token_ms = 1e3 * seconds_since(answer.group->submitted);
  }
  ++answer.usage.steps;
  event.id = answer.group->id;
  event.choice = answer.choice;
  for (size_t j = 0; j < out.outputs.size(); ++j) {
    answer.tokens.push_back(out.outputs[j]);
    event.tokens.push_back(out.outputs[j]);
    if (j < out.logprobs.size()) event.logprobs.push_back(std::move(out.logprobs[j]));
    if (answer.text.push(out.outputs[j], event.text)) {
      answer.stopped_by_string = true;
      out.finish = FinishReason::kStop;
      result = {.outputs = static_cast<int64_t>(j + 1), .finished = true};
      break;
    }
  }
  stats_.output_tokens += result.outputs;
  return result;
}

// Brings the loop's copy of the sequence up to date and makes reusable what is decided.
void StepLoop::settle(Answer& answer, ItemOutcome& out) {
  if (!answer.on_device()) return;  // preempted meanwhile
  Sequence& sequence = answer.sequence;
  const auto decided = static_cast<int64_t>(answer.tokens.size());
  const int64_t length = std::min(out.length, decided);
  const int64_t old = sequence.length();
  sequence.tokens.insert(sequence.tokens.end(), answer.tokens.begin() + old,
                         answer.tokens.begin() + std::max(old, length));
  if (const ScheduledRequest* r = scheduler_.find(answer.id); r != nullptr && r->running()) {
    runner_.pool().trim(sequence, r->blocks);
  }
  if (!options_.prefix_cache) return;
  prefixes_.publish(sequence, length, answer.group->chain);
  for (auto& windows : out.windows) {
    // A snapshot that finds no room, or none to share it with, only costs a later hit.
    (void)prefixes_.insert_windows(sequence, std::move(windows), answer.group->chain);
  }
}

// What the next decisions about drafts know.
Status StepLoop::learn(StepOutcome& outcome) {
  if (outcome.prefill_rows == 0 && outcome.decode_rows > 0) {
    drafts_.cost().record_forward(outcome.decode_rows, outcome.forward_ms);
    if (!outcome.drafting.empty()) {
      drafts_.cost().record_sampler(outcome.sample_ms + outcome.draft_ms);
      draft_time_.record(outcome.draft_ms);
    }
  }
  for (const ItemOutcome& item : outcome.items) feedback_.record(item.confidence, item.accepted);
  feedback_.correct(outcome.confidence);
  return drafts_.processed(processed_steps_++, outcome.drafting, outcome.confidence);
}

void StepLoop::count(const StepOutcome& outcome) {
  ++stats_.steps;
  stats_.prefill_tokens += outcome.prefill_rows;
  stats_.decode_rows += outcome.decode_rows;
  stats_.device_busy_ms += outcome.busy_ms;
  stats_.device_idle_ms += outcome.idle_ms;
  stats_.last_idle_ms = outcome.idle_ms;
  stats_.forward_ms += outcome.forward_ms;
  for (const ItemOutcome& item : outcome.items) {
    for (size_t j = 0; j < item.confidence.size(); ++j) {
      const auto position = static_cast<int64_t>(j);
      ++stats_.drafted[j];
      stats_.accepted[j] += position < item.accepted;
      if (position > item.accepted) continue;
      ++stats_.reached[j];
      stats_.predicted[j] += item.confidence[j];
    }
  }
}

Stats StepLoop::stats() {
  Stats out = stats_;
  const StatePool& pool = runner_.pool();
  out.running = scheduler_.running();
  out.waiting = scheduler_.waiting();
  out.pool_blocks = pool.block_pool().count();
  out.free_blocks = pool.free_blocks();
  out.slots = pool.slot_count();
  out.free_slots = pool.free_slots();
  out.suspended_bytes = suspended_total_;
  out.calibration = calibration_.text();

  const PrefixCacheStats prefix = prefixes_.stats();
  out.cache_lookups = prefix.lookups;
  out.cache_hits = prefix.hits;
  out.cache_asked_tokens = prefix.asked_tokens;
  out.cache_hit_tokens = prefix.hit_tokens;
  out.cache_replays = prefix.replays;
  out.cache_blocks = prefixes_.indexed_blocks();
  out.cache_evicted_blocks = prefix.evicted_blocks;
  out.window_bytes = prefixes_.windows().bytes();
  for (size_t i = 0; i < prefix.by_reason.size(); ++i) {
    out.cache_misses.emplace_back(to_string(static_cast<MissReason>(i)), prefix.by_reason[i]);
  }
  const GrammarCompiler::Stats grammars = constraints_.stats();
  out.grammar_entries = grammars.entries;
  out.grammar_bytes = grammars.bytes;
  out.grammars_compiling = constraints_.pending();
  return out;
}

}  // namespace tidemill
