#include "serve/scripted_engine.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "engine/answer_text.h"
#include "text/special_tokens.h"

namespace tidemill {
namespace {

constexpr int64_t kBlock = 128;
constexpr int64_t kDraftedPerStep = 3;
constexpr int64_t kAcceptedPerStep = 2;
constexpr std::string_view kReasoning = "Let me see.</think>";

double milliseconds_between(Clock::time_point begin, Clock::time_point end) {
  return 1e3 * seconds_between(begin, end);
}

Clock::time_point later(Clock::time_point time, double milliseconds) {
  return time + std::chrono::duration_cast<Clock::duration>(
                    std::chrono::duration<double, std::milli>(milliseconds));
}

uint64_t mix(uint64_t hash, int32_t token) {
  return (hash ^ static_cast<uint64_t>(token)) * 0x100000001b3ull;
}

// Behind `word`, if the text begins with it.
bool take_word(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  if (text.starts_with(' ')) text.remove_prefix(1);
  return true;
}

}  // namespace

struct ScriptedEngine::Script {
  std::vector<int32_t> tokens;  // then the end of the answer
  bool counts = false;          // no tokens of its own: numbers, without an end
  bool hangs = false;
  FinishReason end = FinishReason::kStop;
  std::string error;
};

struct ScriptedEngine::Answer {
  Request request;
  int64_t choice = 0;
  Script script;
  AnswerText text;
  Clock::time_point submitted;
  Clock::time_point due;  // of its next token
  int64_t next = 0;       // tokens so far
  Usage usage;
  bool ended = false;
};

ScriptedEngine::ScriptedEngine(const Tokenizer& tokenizer, ScriptedOptions options)
    : tokenizer_(tokenizer), options_(options) {
  info_.vocabulary = tokenizer.size();
  info_.context = options.context;
  stats_.slots = options.most_requests;
}

ScriptedEngine::~ScriptedEngine() = default;

ScriptedEngine::Script ScriptedEngine::script_of(const Request& request) const {
  const std::vector<int32_t>& prompt = request.prompt;
  const int32_t user = tokenizer_.added_token(special::kUser).value_or(-1);
  const int32_t assistant = tokenizer_.added_token(special::kAssistant).value_or(-1);
  const auto from = std::find(prompt.rbegin(), prompt.rend(), user).base();
  const auto to = std::find(from, prompt.end(), assistant);
  const bool is_chat = from != prompt.begin();
  const std::string message =
      tokenizer_.decode(is_chat ? std::span(from, to) : std::span(prompt), true);
  std::string_view text = message;

  Script script;
  std::string said;
  if (request.start == AnswerStart::kReasoning) said = kReasoning;
  if (take_word(text, "say:")) {
    said += text;
  } else if (take_word(text, "fail:")) {
    said += text;
    script.end = FinishReason::kError;
    script.error = "the script says so";
  } else if (take_word(text, "refuse:")) {
    script.end = FinishReason::kRefused;
    script.error = text;
    return script;
  } else {
    script.hangs = text.starts_with("hang");
    script.counts = true;
  }
  script.tokens = tokenizer_.encode_with_added_tokens(said);
  return script;
}

Result<RequestId> ScriptedEngine::submit(Request request) {
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens + request.max_tokens > options_.context) {
    return fail(ErrorCode::kContextLength, "the prompt has {} tokens; the context is {}",
                prompt_tokens, options_.context);
  }
  Script script = script_of(request);
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(open_.size()) >= options_.most_requests) {
    return fail(ErrorCode::kNoCapacity, "{} requests are here; try again in 1 s", open_.size());
  }
  if (request.id == 0) request.id = uint64_t{1} << 63 | next_;
  if (open_.contains(request.id)) {
    return fail(ErrorCode::kInvalidArgument, "id: {} is in use", request.id);
  }

  Usage usage{.prompt_tokens = prompt_tokens};
  const bool starts = !script.hangs && script.end != FinishReason::kRefused;
  usage.queued_ms = starts ? 1e-3 : 0;
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : request.cache_salt) hash = mix(hash, c);
  for (int64_t at = 0; at < prompt_tokens; ++at) {
    hash = mix(hash, request.prompt[static_cast<size_t>(at)]);
    if ((at + 1) % kBlock != 0) continue;
    const bool is_known = !seen_.insert(hash).second;
    if (is_known && at + 1 < prompt_tokens) usage.cached_tokens = at + 1;
  }

  open_[request.id] = request.n;
  stats_.submitted += request.n;
  for (int64_t choice = 0; choice < request.n; ++choice) {
    AnswerText text(tokenizer_, request.stop, request.start);
    answers_.emplace(next_++, std::make_unique<Answer>(
                                  Answer{request, choice, script, std::move(text), now,
                                         later(now, options_.first_token_ms), 0, usage, false}));
  }
  arrived_.notify_one();
  return request.id;
}

bool ScriptedEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (!open_.contains(id)) return false;
  for (auto at = answers_.begin(); at != answers_.end();) {
    Answer& answer = *at->second;
    if (answer.request.id != id) {
      ++at;
      continue;
    }
    Event event{.id = id, .choice = answer.choice};
    answer.text.finish(event.text);
    end(answer, FinishReason::kCancelled, event);
    cancelled_.push_back(std::move(event));
    at = answers_.erase(at);
  }
  arrived_.notify_one();
  return true;
}

// With mutex_ held.
void ScriptedEngine::end(Answer& answer, FinishReason reason, Event& event) {
  answer.ended = true;
  answer.usage.total_ms = milliseconds_between(answer.submitted, Clock::now());
  event.finish = reason;
  event.usage = answer.usage;
  const auto open = open_.find(answer.request.id);
  event.last = --open->second == 0;
  if (event.last) open_.erase(open);
  ++stats_.finished;
}

void ScriptedEngine::step(Answer& answer, Clock::time_point now, std::vector<Event>& events) {
  Script& script = answer.script;
  Event event{.id = answer.request.id, .choice = answer.choice};
  const double elapsed_ms = milliseconds_between(answer.submitted, now);
  if (elapsed_ms > answer.request.timeout_ms) {
    event.error = {ErrorCode::kDeadline,
                   fmt::format("no answer within {} ms", answer.request.timeout_ms)};
    const bool began = answer.next > 0;
    end(answer, began ? FinishReason::kError : FinishReason::kRefused, event);
    events.push_back(std::move(event));
    return;
  }
  if (script.hangs || now < answer.due) return;
  answer.due = options_.token_ms > 0 ? later(answer.due, options_.token_ms) : now;
  if (answer.next == 0 && script.end != FinishReason::kRefused) {
    answer.usage.first_token_ms = elapsed_ms;
  }

  std::optional<FinishReason> finish;
  if (answer.next < static_cast<int64_t>(script.tokens.size()) || script.counts) {
    const bool own = answer.next < static_cast<int64_t>(script.tokens.size());
    const int32_t token = own ? script.tokens[static_cast<size_t>(answer.next)]
                              : tokenizer_.encode(fmt::format(" {}", answer.next)).back();
    ++answer.next;
    ++answer.usage.output_tokens;
    ++answer.usage.steps;
    answer.usage.drafted.assign(kDraftedPerStep, answer.usage.steps);
    answer.usage.accepted.assign(kDraftedPerStep, 0);
    for (size_t i = 0; i < kAcceptedPerStep; ++i) answer.usage.accepted[i] = answer.usage.steps;
    ++stats_.output_tokens;
    event.tokens.push_back(token);
    const auto& ids = answer.request.stop_tokens;
    if (std::find(ids.begin(), ids.end(), token) != ids.end()) {
      finish = FinishReason::kStop;
      answer.text.finish(event.text);
    } else if (answer.text.push(token, event.text)) {
      finish = FinishReason::kStop;
    } else if (answer.next >= answer.request.max_tokens) {
      finish = FinishReason::kLength;
      answer.text.finish(event.text);
    }
  } else {
    finish = script.end;
    answer.text.finish(event.text);
    if (!script.error.empty()) event.error = {ErrorCode::kInternal, script.error};
    if (script.end == FinishReason::kRefused) event.error.code = ErrorCode::kRequest;
  }
  if (finish) end(answer, *finish, event);
  events.push_back(std::move(event));
}

std::vector<Event> ScriptedEngine::poll(Engine::Milliseconds wait) {
  const Clock::time_point deadline = Clock::now() + wait;
  std::unique_lock lock(mutex_);
  for (;;) {
    std::vector<Event> events = std::exchange(cancelled_, {});
    const Clock::time_point now = Clock::now();
    Clock::time_point due = deadline;
    for (auto at = answers_.begin(); at != answers_.end();) {
      Answer& answer = *at->second;
      step(answer, now, events);
      if (!answer.script.hangs && !answer.ended) due = std::min(due, answer.due);
      at = answer.ended ? answers_.erase(at) : std::next(at);
    }
    if (!events.empty() || now >= deadline) return events;
    arrived_.wait_until(lock, due);
  }
}

Stats ScriptedEngine::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.running = static_cast<int64_t>(answers_.size());
  stats.free_slots = stats.slots - stats.running;
  return stats;
}

}  // namespace tidemill
