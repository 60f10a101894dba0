#include "engine/step_loop.h"

#include <algorithm>
#include <utility>

#include "engine/no_wait.h"
#include "engine/step_answer.h"

namespace tidemill {
namespace {

SchedulerOptions with_sizes(SchedulerOptions options, ModelRunner& runner) {
  options.context = runner.options().context;
  options.pool_blocks = runner.pool().block_pool().count();
  options.block_tokens = kBlockTokens;
  options.max_step_tokens = runner.forward().max_tokens();
  options.max_sequences = std::min(options.max_sequences, runner.pool().slot_count());
  return options;
}

int64_t draft_length(const DraftPolicy& policy, const Config& config) {
  switch (policy.mode) {
    case DraftMode::kOff:
      return 0;
    case DraftMode::kFixed:
      return policy.length;
    default:
      return config.dspark_block_size;
  }
}

}  // namespace

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kRefused:
      return "refused";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

StepLoop::StepLoop(ModelRunner& runner, Constraints& constraints, LoopOptions options,
                   Scheduler scheduler, DraftScheduler drafts)
    : runner_(runner),
      constraints_(constraints),
      options_(std::move(options)),
      scheduler_(std::move(scheduler)),
      drafts_(std::move(drafts)),
      feedback_(static_cast<int32_t>(draft_length(options_.drafts, runner.model().config()))),
      calibration_(static_cast<int32_t>(
          std::max<int64_t>(1, draft_length(options_.drafts, runner.model().config())))),
      prefixes_(runner.pool(), options_.windows),
      identity_{.weights = options_.identity,
                .text = "",
                .layout = runner.pool().layout().fingerprint(),
                .tenant = "",
                .approximate = options_.encoder_replay},
      ends_(runner.model().generation().eos_token_ids) {
  ends_.push_back(runner.model().config().eos_token_id);
  // The published rule for early stop looks at the confidences of the step before.
  if (options_.drafts.mode == DraftMode::kEarlyStop) depth_ = 1;
  const int64_t length = draft_length(options_.drafts, runner.model().config());
  const auto positions = static_cast<size_t>(length);
  stats_.drafted.resize(positions);
  stats_.accepted.resize(positions);
  stats_.reached.resize(positions);
  stats_.predicted.resize(positions);
  device_ = std::make_unique<Device>(runner, DeviceOptions{.draft_length = length,
                                                           .temperatures = options_.temperatures,
                                                           .verification = options_.verification});
}

StepLoop::~StepLoop() {
  device_.reset();
  for (auto& [id, answer] : answers_) {
    answer->hit.abandon();
    if (answer->on_device()) runner_.pool().release(answer->sequence);
  }
}

Result<std::unique_ptr<StepLoop>> StepLoop::create(ModelRunner& runner, Constraints& constraints,
                                                   LoopOptions options) {
  TRY(Scheduler scheduler, Scheduler::create(with_sizes(options.scheduler, runner)));
  const int64_t length = draft_length(options.drafts, runner.model().config());
  DraftScheduler drafts(options.drafts, static_cast<int32_t>(length),
                        DraftCost(*options.draft_cost));
  return std::unique_ptr<StepLoop>(new StepLoop(runner, constraints, std::move(options),
                                                std::move(scheduler), std::move(drafts)));
}

// ---- requests

Status StepLoop::check(const Request& request) const {
  const Config& config = runner_.model().config();
  const int64_t vocabulary = config.vocab_size;
  if (request.prompt.empty()) return fail(ErrorCode::kRequest, "the prompt is empty");
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt >= runner_.options().context) {
    return fail(ErrorCode::kContextLength,
                "a prompt of {} tokens leaves no room for an answer in a context of {}; shorten it",
                prompt, runner_.options().context);
  }
  const auto in_range = [](int64_t value, int64_t low, int64_t high,
                           std::string_view name) -> Status {
    if (value >= low && value <= high) return {};
    return fail(ErrorCode::kRequest, "{} is {}; it must be between {} and {}", name, value, low,
                high);
  };
  const auto size = [](const auto& list) { return static_cast<int64_t>(list.size()); };
  if (request.max_tokens < 1) {
    return fail(ErrorCode::kRequest, "max_tokens is {}; at least 1 is needed", request.max_tokens);
  }
  CHECK_OK(in_range(request.n, 1, Request::kMaxChoices, "n"));
  CHECK_OK(in_range(size(request.stop), 0, Request::kMaxStopStrings, "the number of stop strings"));
  CHECK_OK(
      in_range(size(request.stop_tokens), 0, Request::kMaxListed, "the number of stop_tokens"));
  CHECK_OK(in_range(size(request.sampling.logit_bias), 0, Request::kMaxListed,
                    "the number of logit_bias entries"));
  CHECK_OK(in_range(request.drafts, -1, config.dspark_block_size, "drafts"));
  CHECK_OK(request.sampling.validate(vocabulary));
  int64_t stop_bytes = 0;
  for (size_t i = 0; i < request.stop.size(); ++i) {
    stop_bytes += size(request.stop[i]);
    if (!request.stop[i].empty() && stop_bytes <= Request::kMaxStopBytes) continue;
    return fail(ErrorCode::kRequest, "stop[{}] has {} bytes; 1 are needed, and {} allowed in all",
                i, request.stop[i].size(), Request::kMaxStopBytes);
  }
  if (!(request.timeout_ms > 0)) {
    return fail(ErrorCode::kRequest, "timeout_ms is {}; it must be above 0", request.timeout_ms);
  }
  const bool calls = request.constraint &&
                     request.constraint->kind == Constraint::Kind::kToolCalls &&
                     request.constraint->choice != Constraint::Choice::kAuto;
  if (request.start == AnswerStart::kToolCalls && !calls) {
    return fail(ErrorCode::kRequest,
                "an answer that starts in tool calls needs a constraint to tool calls, required or "
                "named");
  }
  const auto check_ids = [&](const std::vector<int32_t>& ids, std::string_view where) -> Status {
    for (const int32_t id : ids) {
      if (id >= 0 && id < vocabulary) continue;
      return fail(ErrorCode::kTokenOutOfRange, "{}: token id {} is outside the vocabulary of {}",
                  where, id, vocabulary);
    }
    return {};
  };
  CHECK_OK(check_ids(request.stop_tokens, "stop_tokens"));
  return check_ids(request.prompt, "prompt");
}

Result<RequestId> StepLoop::submit(Request request, std::optional<GrammarSpec> constraint) {
  if (failed_) return tl::unexpected(*failed_);
  if (request.id != 0 && groups_.contains(request.id)) {
    return fail(ErrorCode::kRequest, "request {} is in the engine already; ids must differ",
                request.id);
  }
  while (next_request_ == 0 || groups_.contains(next_request_)) ++next_request_;
  if (request.id == 0) request.id = next_request_++;

  StateIdentity identity = identity_;
  identity.tenant = request.cache_salt;
  auto group = std::make_unique<Group>(Group{.id = request.id,
                                             .request = std::move(request),
                                             .chain = KeyChain(identity),
                                             .submitted = Clock::now()});
  if (options_.replay_keep > 0) {
    const auto prompt = static_cast<int64_t>(group->request.prompt.size());
    group->decoder_floor = std::max<int64_t>(0, prompt - options_.replay_keep);
  }
  const double now = now_ms();
  CHECK_OK(enqueue(*group, now));
  if (constraint) {
    const double ms = group->request.timeout_ms;
    const Deadline deadline =
        ms < 1e12 ? Deadline::after(std::chrono::nanoseconds(static_cast<int64_t>(1e6 * ms)))
                  : Deadline::never();
    const auto ticket = constraints_.submit(std::move(*constraint), deadline);
    if (!ticket) {
      for (const RequestId id : group->answers) scheduler_.cancel(id);
      return tl::unexpected(ticket.error());
    }
    group->ticket = *ticket;
    compiling_.emplace(*ticket, group.get());
  }
  for (int64_t k = 0; k < group->request.n; ++k) add_answer(*group, k);
  stats_.submitted += group->request.n;
  const RequestId id = group->id;
  groups_.emplace(id, std::move(group));
  return id;
}

// Is there a boundary in the prompt that its answers can all start from?
bool StepLoop::shares_prompt(const Group& group) const {
  const auto prompt = static_cast<int64_t>(group.request.prompt.size());
  int64_t limit = prompt - 1;
  if (options_.replay_keep > 0) {
    const int64_t tail = prompt - group.decoder_floor;
    limit = prompt - std::max(tail, runner_.pool().layout().recomputed_tail());
  }
  return options_.prefix_cache && group.request.n > 1 && limit >= kBlockTokens;
}

// A place in the queue for every answer, or for none.
Status StepLoop::enqueue(Group& group, double now) {
  const Request& request = group.request;
  group.siblings_held = shares_prompt(group);
  for (int64_t k = 0; k < request.n; ++k) {
    const RequestId id = next_answer_ + static_cast<RequestId>(k);
    const Arrival arrival{.id = id,
                          .tenant = request.tenant,
                          .priority = request.priority,
                          .deadline = now + request.timeout_ms,
                          .prompt_tokens = static_cast<int64_t>(request.prompt.size()),
                          .max_tokens = request.max_tokens,
                          .held = request.constraint.has_value() || (k > 0 && group.siblings_held)};
    if (auto accepted = scheduler_.submit(arrival, now); !accepted) {
      for (const RequestId taken : group.answers) scheduler_.cancel(taken);
      Refusal& refusal = accepted.error();
      if (refusal.retry_after > 0) {
        refusal.error.message += fmt::format("; try again in {} s", refusal.retry_after);
      }
      return tl::unexpected(std::move(refusal.error));
    }
    group.answers.push_back(id);
  }
  next_answer_ += static_cast<RequestId>(request.n);
  return {};
}

void StepLoop::add_answer(Group& group, int64_t choice) {
  const Request& request = group.request;
  auto device = std::make_shared<DeviceRequest>();
  device->id = group.answers[static_cast<size_t>(choice)];
  device->sampling = request.sampling;
  device->sampling.seed += static_cast<uint64_t>(choice);
  device->ends = request.stop_tokens;
  if (!request.ignore_end) device->ends.insert(device->ends.end(), ends_.begin(), ends_.end());
  std::sort(device->ends.begin(), device->ends.end());
  device->prompt_tokens = static_cast<int64_t>(request.prompt.size());
  device->max_tokens = request.max_tokens;
  const auto most = static_cast<int64_t>(stats_.drafted.size());
  device->max_drafts = request.drafts < 0 ? most : std::min(request.drafts, most);
  scheduler_.set_drafts(device->id, device->max_drafts);

  auto answer = std::make_unique<Answer>(
      Answer{.id = device->id,
             .group = &group,
             .choice = choice,
             .device = std::move(device),
             .text = AnswerText(runner_.model().tokenizer(), request.stop, request.start)});
  answer->usage.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  answer->usage.drafted.resize(stats_.drafted.size());
  answer->usage.accepted.resize(stats_.drafted.size());
  answers_.emplace(answer->id, std::move(answer));
}

bool StepLoop::cancel(RequestId id) {
  const auto found = groups_.find(id);
  if (found == groups_.end()) return false;
  const std::vector<RequestId> answers = found->second->answers;
  for (const RequestId answer : answers) {
    scheduler_.cancel(answer);
    finish(*answers_.at(answer), FinishReason::kCancelled);
  }
  return true;
}

std::vector<RequestId> StepLoop::ids() const {
  std::vector<RequestId> out;
  for (const auto& [id, group] : groups_) out.push_back(id);
  return out;
}

void StepLoop::fail_all(const Error& error) {
  failed_ = error;
  for (const RequestId id : ids()) {
    const std::vector<RequestId> answers = groups_.at(id)->answers;
    for (const RequestId answer : answers) {
      scheduler_.cancel(answer);
      finish(*answers_.at(answer), FinishReason::kError, error);
    }
  }
}

// The prompt is in the cache, or will not be by the first answer.
void StepLoop::release_siblings(Group& group) {
  if (!group.siblings_held || group.ticket != 0) return;
  group.siblings_held = false;
  for (const RequestId id : group.answers) scheduler_.release(id);
}

// Constraints that have been compiled since.
void StepLoop::take_grammars() {
  for (GrammarPool::Done& done : constraints_.take_done()) {
    const auto found = compiling_.find(done.ticket);
    if (found == compiling_.end()) continue;
    Group& group = *found->second;
    compiling_.erase(found);
    group.ticket = 0;
    const auto start = group.request.start == AnswerStart::kReasoning   ? Prompt::Start::kReasoning
                       : group.request.start == AnswerStart::kToolCalls ? Prompt::Start::kToolCalls
                                                                        : Prompt::Start::kContent;
    std::optional<Error> error;
    if (!done.grammar) error = done.grammar.error();
    const std::vector<RequestId> ids = group.answers;
    for (size_t k = 0; k < ids.size(); ++k) {
      Answer& answer = *answers_.at(ids[k]);
      if (!error) {
        auto matcher = GrammarMatcher::make(*done.grammar, start);
        if (matcher) {
          answer.device->matcher.emplace(std::move(*matcher));
          if (k == 0 || !group.siblings_held) scheduler_.release(answer.id);
          continue;
        }
        error = std::move(matcher).error();
      }
      scheduler_.cancel(answer.id);
      finish(answer, FinishReason::kRefused, *error);  // the last one takes the group with it
    }
  }
}

void StepLoop::finish(Answer& answer, FinishReason reason, Error error) {
  Group& group = *answer.group;
  answer.device->dropped.store(true, std::memory_order_relaxed);
  answer.hit.abandon();
  if (answer.on_device()) runner_.pool().release(answer.sequence);
  if (answer.suspended != nullptr) suspended_total_ -= answer.suspended_bytes;

  Event event{.id = group.id, .choice = answer.choice};
  // The last tokens of a step and the end are one event.
  if (!events_.empty() && events_.back().id == group.id && events_.back().choice == answer.choice &&
      events_.back().finish == FinishReason::kNone) {
    event = std::move(events_.back());
    events_.pop_back();
  }
  if (!answer.stopped_by_string) answer.text.finish(event.text);
  event.finish = reason;
  event.error = std::move(error);
  answer.usage.output_tokens = answer.outputs();
  answer.usage.total_ms = 1e3 * seconds_since(group.submitted);
  event.usage = std::move(answer.usage);

  std::erase(group.answers, answer.id);
  if (answer.choice == 0) release_siblings(group);
  answers_.erase(answer.id);
  ++stats_.finished;
  event.last = group.answers.empty();
  if (event.last) {
    if (group.ticket != 0) {
      constraints_.cancel(group.ticket);
      compiling_.erase(group.ticket);
    }
    groups_.erase(group.id);
  }
  events_.push_back(std::move(event));
}

}  // namespace tidemill
