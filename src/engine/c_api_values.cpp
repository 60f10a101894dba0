#include "engine/c_api_values.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "model/config.h"

namespace tidemill::c_api {
namespace {

constexpr bool same(ErrorCode code, tidemill_status status) {
  return static_cast<int32_t>(code) == status;
}
static_assert(same(ErrorCode::kInvalidArgument, TIDEMILL_INVALID_ARGUMENT) &&
              same(ErrorCode::kConflictingOptions, TIDEMILL_CONFLICTING_OPTIONS) &&
              same(ErrorCode::kFileNotFound, TIDEMILL_FILE_NOT_FOUND) &&
              same(ErrorCode::kFileRead, TIDEMILL_FILE_READ) &&
              same(ErrorCode::kFileWrite, TIDEMILL_FILE_WRITE) &&
              same(ErrorCode::kOutOfMemory, TIDEMILL_OUT_OF_MEMORY) &&
              same(ErrorCode::kDevice, TIDEMILL_DEVICE) &&
              same(ErrorCode::kConfig, TIDEMILL_CONFIG) &&
              same(ErrorCode::kSafetensors, TIDEMILL_SAFETENSORS) &&
              same(ErrorCode::kTensorMissing, TIDEMILL_TENSOR_MISSING) &&
              same(ErrorCode::kTensorMismatch, TIDEMILL_TENSOR_MISMATCH) &&
              same(ErrorCode::kTensorValue, TIDEMILL_TENSOR_VALUE) &&
              same(ErrorCode::kTokenizer, TIDEMILL_TOKENIZER) &&
              same(ErrorCode::kEngramMap, TIDEMILL_ENGRAM_MAP) &&
              same(ErrorCode::kRequest, TIDEMILL_REQUEST) &&
              same(ErrorCode::kTokenOutOfRange, TIDEMILL_TOKEN_OUT_OF_RANGE) &&
              same(ErrorCode::kContextLength, TIDEMILL_CONTEXT_LENGTH) &&
              same(ErrorCode::kUtf8, TIDEMILL_UTF8) &&
              same(ErrorCode::kNoCapacity, TIDEMILL_NO_CAPACITY) &&
              same(ErrorCode::kCancelled, TIDEMILL_CANCELLED) &&
              same(ErrorCode::kDeadline, TIDEMILL_DEADLINE) &&
              same(ErrorCode::kInternal, TIDEMILL_INTERNAL));
static_assert(static_cast<int>(FinishReason::kError) == TIDEMILL_FINISH_ERROR &&
              static_cast<int>(FinishReason::kLength) == TIDEMILL_FINISH_LENGTH &&
              static_cast<int>(FinishReason::kRefused) == TIDEMILL_FINISH_REFUSED);
static_assert(static_cast<int>(AnswerStart::kToolCalls) == TIDEMILL_START_TOOL_CALLS &&
              static_cast<int>(AnswerStart::kReasoning) == TIDEMILL_START_REASONING);
// One more than the kind: 0 is none.
static_assert(static_cast<int>(Constraint::Kind::kJsonObject) + 1 ==
                  TIDEMILL_CONSTRAINT_JSON_OBJECT &&
              static_cast<int>(Constraint::Kind::kJsonSchema) + 1 ==
                  TIDEMILL_CONSTRAINT_JSON_SCHEMA &&
              static_cast<int>(Constraint::Kind::kRegex) + 1 == TIDEMILL_CONSTRAINT_REGEX &&
              static_cast<int>(Constraint::Kind::kEbnf) + 1 == TIDEMILL_CONSTRAINT_EBNF &&
              static_cast<int>(Constraint::Kind::kToolCalls) + 1 == TIDEMILL_CONSTRAINT_TOOL_CALLS);
static_assert(static_cast<int>(Constraint::Choice::kRequired) == TIDEMILL_TOOLS_REQUIRED &&
              static_cast<int>(Constraint::Choice::kNamed) == TIDEMILL_TOOLS_NAMED);

// The caller's request, which may be that of an older or a newer header.
Result<tidemill_request> known_request(const tidemill_request* request,
                                       const SamplingParams& sampling) {
  CHECK_OK(needs(request, "request"));
  const size_t size = request->struct_size;
  CHECK_OK(check_request_size(size));
  tidemill_request out = default_request(sampling);
  std::memcpy(&out, request, std::min(size, sizeof(out)));
  const auto* const bytes = reinterpret_cast<const char*>(request);
  if (std::any_of(bytes + std::min(size, sizeof(out)), bytes + size,
                  [](char byte) { return byte != 0; })) {
    return fail(ErrorCode::kInvalidArgument,
                "the request sets a field that this library ({}) does not know yet",
                tidemill_version());
  }
  return out;
}

Status check_choice(int32_t value, int32_t most, std::string_view name) {
  if (value >= 0 && value <= most) return {};
  return fail(ErrorCode::kInvalidArgument, "{} is {}, not one of 0 to {}", name, value, most);
}

SamplingParams sampling_of(const tidemill_request& in) {
  SamplingParams out;
  for (size_t i = 0; i < in.logit_bias_count; ++i) {
    out.logit_bias[in.logit_bias[i].token] = in.logit_bias[i].value;
  }
  out.repetition_penalty = in.repetition_penalty;
  out.frequency_penalty = in.frequency_penalty;
  out.presence_penalty = in.presence_penalty;
  out.temperature = in.temperature;
  out.min_p = in.min_p;
  out.top_k = in.top_k;
  out.top_p = in.top_p;
  out.seed = in.seed;
  if (in.logprobs != -1) out.logprobs = in.logprobs;
  return out;
}

tidemill_usage usage_of(const Usage& in) {
  tidemill_usage out{};
  out.struct_size = sizeof(out);
  out.prompt_tokens = in.prompt_tokens;
  out.cached_tokens = in.cached_tokens;
  out.output_tokens = in.output_tokens;
  out.steps = in.steps;
  out.preemptions = in.preemptions;
  out.queued_ms = in.queued_ms;
  out.first_token_ms = in.first_token_ms;
  out.total_ms = in.total_ms;
  out.drafted = in.drafted.data();
  out.accepted = in.accepted.data();
  out.draft_positions = std::min(in.drafted.size(), in.accepted.size());
  out.cache_text = in.cache_text.c_str();
  return out;
}

tidemill_token_value value_of(const TokenLogprob& in) { return {in.token, in.logprob}; }

void point_to_logprobs(const std::vector<LogProbabilities>& in, tidemill_events::View& view) {
  for (const LogProbabilities& token : in) {
    for (const TokenLogprob& top : token.top) view.top.push_back(value_of(top));
  }
  size_t begin = 0;
  for (const LogProbabilities& token : in) {
    view.logprobs.push_back({value_of(token.chosen), view.top.data() + begin, token.top.size()});
    begin += token.top.size();
  }
  view.event.logprobs = view.logprobs.data();
  view.event.logprob_count = view.logprobs.size();
}

// The view must stay at its address.
void point_to(const Event& in, tidemill_events::View& view) {
  tidemill_event& out = view.event;
  out.struct_size = sizeof(out);
  out.id = in.id;
  out.choice = in.choice;
  out.tokens = in.tokens.data();
  out.token_count = in.tokens.size();
  out.text = in.text.c_str();
  out.text_bytes = in.text.size();
  point_to_logprobs(in.logprobs, view);
  out.finish = static_cast<int32_t>(in.finish);
  out.last = in.last ? 1 : 0;
  out.error_text = in.error.message.c_str();
  if (in.finish == FinishReason::kRefused || in.finish == FinishReason::kError) {
    out.error = static_cast<tidemill_status>(in.error.code);
  }
  if (in.finish == FinishReason::kNone) return;
  view.usage = usage_of(in.usage);
  out.usage = &view.usage;
}

int64_t sum(const std::vector<int64_t>& values) {
  int64_t total = 0;
  for (const int64_t value : values) total += value;
  return total;
}

}  // namespace

Status needs(const void* pointer, std::string_view name) {
  if (pointer != nullptr) return {};
  return fail(ErrorCode::kInvalidArgument, "{} is NULL", name);
}

Status needs(const void* array, size_t count, size_t most, std::string_view name) {
  if (count > most) {
    return fail(ErrorCode::kInvalidArgument, "{} has {} elements, more than {}", name, count, most);
  }
  if (count == 0) return {};
  return needs(array, name);
}

std::string_view text_of(const char* text) { return text == nullptr ? "" : text; }

constexpr size_t kFirstRequestSize = offsetof(tidemill_request, priority) + sizeof(int32_t);

Status check_request_size(size_t size) {
  if (size >= kFirstRequestSize && size <= (size_t{1} << 16)) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the request's struct_size is {}, not sizeof(tidemill_request): call "
              "tidemill_request_init() first",
              size);
}

tidemill_request default_request(const SamplingParams& sampling) {
  const Request defaults;
  tidemill_request out{};
  out.struct_size = sizeof(out);
  out.max_tokens = defaults.max_tokens;
  out.n = defaults.n;
  out.tools_parallel = 1;
  out.temperature = sampling.temperature;
  out.min_p = sampling.min_p;
  out.top_p = sampling.top_p;
  out.top_k = sampling.top_k;
  out.repetition_penalty = sampling.repetition_penalty;
  out.frequency_penalty = sampling.frequency_penalty;
  out.presence_penalty = sampling.presence_penalty;
  out.logprobs = sampling.logprobs.value_or(-1);
  out.seed = sampling.seed;
  out.drafts = defaults.drafts;
  out.timeout_ms = defaults.timeout_ms;
  return out;
}

Result<Request> request_of(const tidemill_request* request, const ModelInfo& info) {
  TRY(const tidemill_request in, known_request(request, info.defaults));
  const auto vocabulary = static_cast<size_t>(info.vocabulary);
  CHECK_OK(needs(in.prompt, in.prompt_count, size_t{kMaxContext}, "prompt"));
  CHECK_OK(needs(in.stop_tokens, in.stop_token_count, vocabulary, "stop_tokens"));
  CHECK_OK(needs(in.stop, in.stop_count, Request::kMaxStopStrings, "stop"));
  CHECK_OK(needs(in.logit_bias, in.logit_bias_count, vocabulary, "logit_bias"));
  CHECK_OK(check_choice(in.start, TIDEMILL_START_TOOL_CALLS, "start"));
  CHECK_OK(check_choice(in.constraint, TIDEMILL_CONSTRAINT_TOOL_CALLS, "constraint"));
  CHECK_OK(check_choice(in.tool_choice, TIDEMILL_TOOLS_NAMED, "tool_choice"));

  Request out;
  out.id = in.id;
  out.prompt.assign(in.prompt, in.prompt + in.prompt_count);
  out.sampling = sampling_of(in);
  out.max_tokens = in.max_tokens;
  out.n = in.n;
  out.stop_tokens.assign(in.stop_tokens, in.stop_tokens + in.stop_token_count);
  for (size_t i = 0; i < in.stop_count; ++i) out.stop.emplace_back(text_of(in.stop[i]));
  out.ignore_end = in.ignore_end != 0;
  out.start = static_cast<AnswerStart>(in.start);
  if (in.constraint != TIDEMILL_CONSTRAINT_NONE) {
    out.constraint = Constraint{
        .kind = static_cast<Constraint::Kind>(in.constraint - 1),
        .text = std::string(text_of(in.constraint_text)),
        .choice = static_cast<Constraint::Choice>(in.tool_choice),
        .strict = in.tools_strict != 0,
        .parallel = in.tools_parallel != 0,
    };
  }
  out.drafts = in.drafts;
  out.tenant = in.tenant;
  out.priority = in.priority;
  out.timeout_ms = in.timeout_ms;
  out.cache_salt = text_of(in.cache_salt);
  out.tag = text_of(in.tag);
  return out;
}

void make_views(tidemill_events& list) {
  list.views.resize(list.events.size());
  for (size_t i = 0; i < list.events.size(); ++i) point_to(list.events[i], list.views[i]);
}

tidemill_stats stats_of(const Stats& in) {
  tidemill_stats out{};
  out.submitted = in.submitted;
  out.finished = in.finished;
  out.waiting = in.waiting;
  out.running = in.running;
  out.preemptions = in.preemptions;
  out.suspends = in.suspends;
  out.steps = in.steps;
  out.prefill_tokens = in.prefill_tokens;
  out.decode_rows = in.decode_rows;
  out.output_tokens = in.output_tokens;
  out.drafted = sum(in.drafted);
  out.accepted = sum(in.accepted);
  out.device_busy_ms = in.device_busy_ms;
  out.device_idle_ms = in.device_idle_ms;
  out.plan_ms = in.plan_ms;
  out.commit_ms = in.commit_ms;
  out.exposed_ms = in.exposed_ms;
  out.pool_blocks = in.pool_blocks;
  out.free_blocks = in.free_blocks;
  out.slots = in.slots;
  out.free_slots = in.free_slots;
  out.suspended_bytes = in.suspended_bytes;
  out.cache_lookups = in.cache_lookups;
  out.cache_hits = in.cache_hits;
  out.cache_asked_tokens = in.cache_asked_tokens;
  out.cache_hit_tokens = in.cache_hit_tokens;
  out.cache_blocks = in.cache_blocks;
  out.cache_evicted_blocks = in.cache_evicted_blocks;
  out.window_bytes = in.window_bytes;
  out.grammar_entries = in.grammar_entries;
  out.grammar_bytes = in.grammar_bytes;
  out.grammars_compiling = in.grammars_compiling;
  return out;
}

tidemill_info info_of(const ModelInfo& in) {
  tidemill_info out{};
  out.vocabulary = in.vocabulary;
  out.context = in.context;
  out.max_drafts = in.max_drafts;
  out.prefill_chunk = in.prefill_chunk;
  out.threads = in.threads;
  out.weight_bytes = in.weight_bytes;
  out.end_tokens = in.end_tokens.data();
  out.end_token_count = in.end_tokens.size();
  out.memory_table = in.memory_table.c_str();
  out.cache_rule = in.cache_rule.c_str();
  out.weights_held = in.weights_held.c_str();
  return out;
}

}  // namespace tidemill::c_api
