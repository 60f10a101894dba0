#include "engine/batch_engine.h"

#include <algorithm>

#include "engine/batch_entry.h"

namespace tidemill {
namespace {

SchedulerOptions with_sizes(SchedulerOptions options, ModelRunner& engine) {
  options.context = engine.options().context;
  options.pool_blocks = engine.pool().block_pool().count();
  options.block_tokens = kBlockTokens;
  options.max_step_tokens = engine.forward().max_tokens();
  options.max_sequences = std::min(options.max_sequences, engine.pool().slot_count());
  return options;
}

StateIdentity identity_of(const ModelRunner& engine, const std::string& salt) {
  const Model& model = engine.model();
  return {.weights = fmt::format("{} bytes, {} layers", model.checkpoint().file_bytes(),
                                 model.config().num_hidden_layers),
          .text = "",
          .layout =
              StateLayout::build(model.config(), model.topology(), engine.backend())->fingerprint(),
          .tenant = salt};
}

}  // namespace

std::string_view to_string(BatchFinish finish) {
  switch (finish) {
    case BatchFinish::kNone:
      return "none";
    case BatchFinish::kStop:
      return "stop";
    case BatchFinish::kLength:
      return "length";
    case BatchFinish::kCancelled:
      return "cancelled";
    case BatchFinish::kRefused:
      return "refused";
    case BatchFinish::kError:
      return "error";
  }
  return "";
}

BatchEngine::BatchEngine(ModelRunner& engine, const BatchOptions& options, Scheduler scheduler)
    : engine_(engine),
      options_(options),
      scheduler_(std::move(scheduler)),
      prefixes_(engine.pool(), options.windows),
      sampler_(engine.model().config().vocab_size),
      ends_(engine.model().generation().eos_token_ids),
      mask_(static_cast<size_t>((engine.model().config().vocab_size + 31) / 32)) {
  ends_.push_back(engine.model().config().eos_token_id);
}

BatchEngine::~BatchEngine() {
  for (auto& [id, entry] : entries_) {
    if (entry->on_device()) engine_.pool().release(entry->sequence);
  }
}

Result<std::unique_ptr<BatchEngine>> BatchEngine::create(ModelRunner& engine,
                                                         const BatchOptions& options) {
  if (engine.options().replay_keep > 0) {
    return fail(ErrorCode::kConflictingOptions,
                "the batch engine runs prompts exactly; bounded replay is not supported in it yet");
  }
  const int64_t block = engine.model().config().dspark_block_size;
  if (options.drafts < 0 || options.drafts > block) {
    return fail(ErrorCode::kInvalidArgument, "drafts is {}; this model drafts 0 to {} tokens",
                options.drafts, block);
  }
  TRY(Scheduler scheduler, Scheduler::create(with_sizes(options.scheduler, engine)));
  return std::unique_ptr<BatchEngine>(new BatchEngine(engine, options, std::move(scheduler)));
}

double BatchEngine::now_ms() const { return 1e3 * seconds_since(epoch_); }

Status BatchEngine::check(const BatchRequest& request) const {
  const int64_t vocabulary = engine_.model().config().vocab_size;
  CHECK_OK(request.sampling.validate(vocabulary));
  if (request.prompt.empty()) return fail(ErrorCode::kRequest, "the prompt is empty");
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= vocabulary) {
      return fail(ErrorCode::kTokenOutOfRange, "token id {} is outside the vocabulary of {}", id,
                  vocabulary);
    }
  }
  if (request.max_tokens < 1) {
    return fail(ErrorCode::kRequest, "max_tokens is {}; at least 1 is needed", request.max_tokens);
  }
  const int64_t block = engine_.model().config().dspark_block_size;
  if (request.drafts < -1 || request.drafts > block) {
    return fail(ErrorCode::kRequest, "drafts is {}; this model drafts 0 to {} tokens",
                request.drafts, block);
  }
  return {};
}

Result<RequestId> BatchEngine::submit(BatchRequest request) {
  CHECK_OK(check(request));
  const RequestId id = next_id_;
  auto accepted = scheduler_.submit({.id = id,
                                     .tenant = request.tenant,
                                     .priority = request.priority,
                                     .deadline = now_ms() + request.timeout_ms,
                                     .prompt_tokens = static_cast<int64_t>(request.prompt.size()),
                                     .max_tokens = request.max_tokens},
                                    now_ms());
  if (!accepted) return tl::unexpected(std::move(accepted.error().error));

  auto entry = std::make_unique<Entry>(Entry{.id = id,
                                             .request = std::move(request),
                                             .chain = KeyChain({}, 128),
                                             .submitted = Clock::now()});
  entry->chain = KeyChain(identity_of(engine_, entry->request.cache_salt));
  entry->tokens = entry->request.prompt;
  entry->usage.prompt_tokens = static_cast<int64_t>(entry->tokens.size());
  if (entry->request.drafts < 0) entry->request.drafts = options_.drafts;
  if (entry->request.sampling.uses_history()) entry->history.add_prompt(entry->tokens);
  if (entry->request.grammar != nullptr) {
    auto matcher = GrammarMatcher::make(entry->request.grammar, entry->request.start);
    if (!matcher) {
      scheduler_.cancel(id);
      return tl::unexpected(std::move(matcher).error());
    }
    entry->matcher.emplace(std::move(*matcher));
  }
  entries_.emplace(id, std::move(entry));
  ++next_id_;
  return id;
}

bool BatchEngine::cancel(RequestId id) {
  if (!entries_.contains(id) || !scheduler_.cancel(id)) return false;
  cancelled_.push_back(id);
  return true;
}

bool BatchEngine::is_end(const Entry& entry, int32_t id) const {
  const auto& stops = entry.request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), id) != stops.end()) return true;
  return !entry.request.ignore_end && std::find(ends_.begin(), ends_.end(), id) != ends_.end();
}

void BatchEngine::finish(Entry& entry, BatchFinish finish, std::vector<BatchEvent>& events,
                         Error error) {
  if (entry.on_device()) engine_.pool().release(entry.sequence);
  BatchEvent event{.id = entry.id,
                   .tokens = {},
                   .finish = finish,
                   .error = std::move(error),
                   .usage = entry.usage};
  // The last tokens of a step and the end are one event.
  if (!events.empty() && events.back().id == entry.id &&
      events.back().finish == BatchFinish::kNone) {
    event.tokens = std::move(events.back().tokens);
    events.pop_back();
  }
  events.push_back(std::move(event));
  entries_.erase(entry.id);
}

Result<bool> BatchEngine::step(std::vector<BatchEvent>& events) {
  const Clock::time_point begin = Clock::now();
  for (const RequestId id : std::exchange(cancelled_, {})) {
    if (const auto found = entries_.find(id); found != entries_.end()) {
      finish(*found->second, BatchFinish::kCancelled, events);
    }
  }
  StepPlan plan;
  // A plan without items may still preempt; what that frees is there for the next one.
  do {
    plan = scheduler_.plan(now_ms(), capacity());
    for (Refusal& refusal : plan.refusals) {
      if (const auto found = entries_.find(refusal.id); found != entries_.end()) {
        finish(*found->second, BatchFinish::kRefused, events, std::move(refusal.error));
      }
    }
    for (const Preemption& preemption : plan.preemptions) {
      preempt(*entries_.at(preemption.id));
    }
  } while (plan.step == 0 && !plan.preemptions.empty());
  if (plan.step == 0) {
    for (auto& [id, entry] : entries_) entry->hit.abandon();
    return !entries_.empty() && (!plan.refusals.empty() || scheduler_.waiting() > 0);
  }

  const Clock::time_point device_begin = Clock::now();
  std::vector<Row> rows;
  CHECK_OK(run(plan, rows));
  std::vector<ItemResult> results;
  for (Row& row : rows) {
    Entry& entry = *row.entry;
    if (row.finish == BatchFinish::kNone && row.item.samples && entry.outputs_left() == 0) {
      row.finish = BatchFinish::kLength;
    }
    results.push_back(
        {.outputs = static_cast<int64_t>(row.outputs.size()),
         .finished = row.finish == BatchFinish::kStop || row.finish == BatchFinish::kError});
    if (!row.outputs.empty()) {
      events.push_back(
          {.id = entry.id, .tokens = row.outputs, .finish = {}, .error = {}, .usage = entry.usage});
    }
    if (row.finish != BatchFinish::kNone) finish(entry, row.finish, events, std::move(row.error));
  }
  CHECK_OK(draft());
  const double device_ms = 1e3 * seconds_since(device_begin);
  CHECK_OK(scheduler_.commit(plan.step, results, device_ms));
  for (const auto& [id, entry] : entries_) {
    scheduler_.set_drafts(id, static_cast<int64_t>(entry->drafts.size()));
  }
  ++stats_.steps;
  stats_.device_ms += device_ms;
  stats_.total_ms += 1e3 * seconds_since(begin);
  return true;
}

BatchStats BatchEngine::stats() {
  stats_.running = scheduler_.running();
  stats_.waiting = scheduler_.waiting();
  stats_.free_blocks = engine_.pool().free_blocks();
  stats_.free_slots = engine_.pool().free_slots();
  stats_.prefix = prefixes_.stats();
  return stats_;
}

}  // namespace tidemill
