#include "serve/generation.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace tidemill {
namespace {

constexpr int64_t kDefaultTokens = 8192;
constexpr int64_t kDefaultThinkingTokens = 65536;
constexpr int64_t kDefaultMaxEffortTokens = 131072;
constexpr int kMaxEffort = 100;

constexpr auto kRead = std::to_array<std::string_view>(
    {"model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
     "frequency_penalty", "logit_bias", "seed", "n", "stop", "stop_token_ids", "ignore_eos",
     "stream", "stream_options", "priority", "cache_salt", "guided_json", "guided_regex",
     "guided_grammar", "guided_choice", "structured_outputs", "response_format",
     // Nothing here depends on them.
     "user", "safety_identifier", "metadata", "prompt_cache_key", "prompt_cache_retention",
     "prediction", "request_id"});

constexpr auto kFixed = std::to_array<FixedField>({
    {"service_tier", R"(["auto","default"])", "priority orders requests"},
    {"use_beam_search", "[false]", ""},
    {"length_penalty", "[1]", ""},
    {"early_stopping", "[false]", ""},
    {"min_tokens", "[0]", "ignore_eos answers up to max_tokens"},
    {"prompt_logprobs", "[0]", ""},
    {"truncate_prompt_tokens", "[]", "send a shorter prompt"},
    {"skip_special_tokens", "[true]", ""},
    {"spaces_between_special_tokens", "[true]", ""},
    {"include_stop_str_in_output", "[false]", ""},
    {"allowed_token_ids", "[[]]", "use logit_bias or guided_grammar"},
    {"bad_words", "[[]]", "use logit_bias"},
    {"logits_processors", "[[]]", ""},
    {"return_token_ids", "[false]", ""},
    {"return_tokens_as_token_ids", "[false]", ""},
    {"guided_decoding_backend", R"(["auto"])", ""},
    {"guided_whitespace_pattern", "[]", ""},
});

constexpr std::array<FieldTable, 1> kTables = {{{kRead, kFixed}}};

constexpr auto kStreamRead =
    std::to_array<std::string_view>({"include_usage", "include_obfuscation"});
constexpr auto kStreamFixed =
    std::to_array<FixedField>({{"continuous_usage_stats", "[false]", "use include_usage"}});

Status read_float(const Fields& body, std::string_view key, double low, double high, float& out) {
  TRY(const std::optional<double> value, body.number(key, low, high));
  if (value) out = static_cast<float>(*value);
  return {};
}

Status read_logit_bias(const Fields& body, SamplingParams& sampling) {
  TRY(const std::optional<Fields> bias, body.object("logit_bias"));
  if (!bias) return {};
  for (const auto& [token, value] : bias->json().items()) {
    int32_t id = 0;
    const char* end = token.data() + token.size();
    const auto [rest, error] = std::from_chars(token.data(), end, id);
    if (error != std::errc() || rest != end || id < 0) {
      return fail(ErrorCode::kRequest, "{}: expected token ids as keys", bias->path());
    }
    if (value.is_null()) return bias->wrong(token, "a number from -100 to 100");
    CHECK_OK(read_float(*bias, token, -100, 100, sampling.logit_bias[id]));
  }
  return {};
}

Status read_sampling(const Fields& body, SamplingParams& sampling) {
  CHECK_OK(read_float(body, "temperature", 0, 2, sampling.temperature));
  TRY(const std::optional<double> top_p, body.number("top_p", 0, 1));
  if (top_p) {
    sampling.top_p = static_cast<float>(*top_p);
    if (!(sampling.top_p > 0)) return body.wrong("top_p", "a number above 0, at most 1");
  }
  CHECK_OK(read_float(body, "min_p", 0, 1, sampling.min_p));
  CHECK_OK(read_float(body, "presence_penalty", -2, 2, sampling.presence_penalty));
  CHECK_OK(read_float(body, "frequency_penalty", -2, 2, sampling.frequency_penalty));
  CHECK_OK(read_float(body, "repetition_penalty", 0.01, 100, sampling.repetition_penalty));
  TRY(const auto top_k, body.integer("top_k", -1, INT32_MAX));
  if (top_k) sampling.top_k = static_cast<int32_t>(*top_k);
  return read_logit_bias(body, sampling);
}

Status read_stop_tokens(const Fields& body, Request& request) {
  TRY(const Json* ids, body.array("stop_token_ids"));
  if (!ids) return {};
  for (size_t i = 0; i < ids->size(); ++i) {
    const Json& id = (*ids)[i];
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      return fail(ErrorCode::kRequest, "{}[{}]: expected a token id", body.path("stop_token_ids"),
                  i);
    }
    request.stop_tokens.push_back(id.get<int32_t>());
  }
  return {};
}

Status read_stream(const Fields& body, Generation& generation) {
  TRY(const std::optional<bool> stream, body.boolean("stream"));
  generation.stream = stream.value_or(false);
  TRY(const std::optional<Fields> options, body.object("stream_options"));
  if (!options) return {};
  if (!generation.stream) {
    return fail(ErrorCode::kRequest, "{}: only allowed with stream: true", options->path());
  }
  const std::array<FieldTable, 1> tables = {{{kStreamRead, kStreamFixed}}};
  CHECK_OK(check_fields(*options, tables, generation.unknown));
  TRY(const std::optional<bool> usage, options->boolean("include_usage"));
  generation.include_usage = usage.value_or(false);
  return {};
}

void apply_hosted_rule(bool thinking, SamplingParams& sampling) {
  sampling.top_p = thinking ? std::max(0.95f, sampling.top_p) : 1.0f;
  if (thinking) sampling.temperature = 1.0f;
  sampling.presence_penalty = 0;
  sampling.frequency_penalty = 0;
}

int64_t default_max_tokens(const Conversation& conversation) {
  if (!conversation.thinking) return kDefaultTokens;
  return conversation.reasoning_effort == kMaxEffort ? kDefaultMaxEffortTokens
                                                     : kDefaultThinkingTokens;
}

Status check_images(const Conversation& conversation) {
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    for (size_t k = 0; k < conversation.messages[i].content.size(); ++k) {
      if (!conversation.messages[i].content[k].is_image) continue;
      return fail(ErrorCode::kRequest, "messages[{}].content[{}]: images are not supported", i, k);
    }
  }
  return {};
}

// "messages[K]" of a conversation's error as the place in the body.
Error at_source(Error error, const std::vector<std::string>& sources) {
  constexpr std::string_view kMessage = "messages[";
  std::string text;
  size_t from = 0;
  for (size_t at; (at = error.message.find(kMessage, from)) != std::string::npos;) {
    size_t index = 0;
    const char* digits = error.message.data() + at + kMessage.size();
    const auto [end, failed] =
        std::from_chars(digits, error.message.data() + error.message.size(), index);
    const bool is_known = failed == std::errc() && index < sources.size();
    text.append(error.message, from, at - from);
    text += is_known ? sources[index] : std::string(kMessage);
    from = is_known ? static_cast<size_t>(end - error.message.data()) + 1 : at + kMessage.size();
  }
  error.message = text.append(error.message, from);
  return error;
}

Constraint tool_constraint(const Conversation& conversation, const ToolRules& rules) {
  Constraint constraint{.kind = Constraint::Kind::kToolCalls};
  constraint.strict = rules.strict;
  constraint.parallel = rules.parallel;
  Json tools = Json::array();
  const bool named = conversation.tool_choice == ToolChoice::kNamed;
  for (const Tool& tool : conversation.tools) {
    if (named && tool.name != conversation.tool_choice_name) continue;
    tools.push_back(Json::object({{"name", tool.name}, {"parameters", tool.parameters}}));
  }
  constraint.text = python_json(tools);
  if (named) {
    constraint.choice = Constraint::Choice::kNamed;
  } else if (conversation.tool_choice == ToolChoice::kRequired) {
    constraint.choice = Constraint::Choice::kRequired;
  }
  return constraint;
}

}  // namespace

AnswerStart answer_start(const Prompt& prompt) {
  switch (prompt.start) {
    case Prompt::Start::kReasoning:
      return AnswerStart::kReasoning;
    case Prompt::Start::kToolCalls:
      return AnswerStart::kToolCalls;
    case Prompt::Start::kContent:
      break;
  }
  return AnswerStart::kContent;
}

std::span<const FieldTable> generation_fields() { return kTables; }

Status read_generation(const Fields& body, const RequestPolicy& policy, Generation& generation) {
  Request& request = generation.request;
  TRY(std::optional<std::string> model, body.string("model"));
  generation.model = std::move(model).value_or("");
  request.sampling = policy.defaults;
  CHECK_OK(read_sampling(body, request.sampling));
  TRY(const auto seed, body.integer("seed", 0, INT64_MAX));
  if (seed) request.sampling.seed = static_cast<uint64_t>(*seed);
  generation.has_seed = seed.has_value();
  TRY(const auto n, body.integer("n", 1, Request::kMaxChoices));
  request.n = n.value_or(1);
  TRY(const auto priority, body.integer("priority", -100, 100));
  request.priority = static_cast<int32_t>(priority.value_or(0));
  TRY(std::optional<std::string> salt, body.string("cache_salt"));
  request.cache_salt = std::move(salt).value_or("");
  TRY(const std::optional<bool> ignore_end, body.boolean("ignore_eos"));
  request.ignore_end = ignore_end.value_or(false);
  CHECK_OK(read_stop_strings(body, "stop", request));
  CHECK_OK(read_stop_tokens(body, request));
  TRY(request.constraint, read_guided(body));
  return read_stream(body, generation);
}

Status read_stop_strings(const Fields& body, std::string_view key, Request& request) {
  const Json* stop = body.find(key);
  if (!stop) return {};
  const std::string path = body.path(key);
  const size_t count = stop->is_array() ? stop->size() : 1;
  if (static_cast<int64_t>(count) > Request::kMaxStopStrings) {
    return fail(ErrorCode::kRequest, "{}: {} strings; at most {} are allowed", path, count,
                Request::kMaxStopStrings);
  }
  int64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const Json& text = stop->is_array() ? (*stop)[i] : *stop;
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
      return fail(ErrorCode::kRequest, "{}: expected a string that is not empty",
                  stop->is_array() ? fmt::format("{}[{}]", path, i) : path);
    }
    request.stop.push_back(text.get<std::string>());
    bytes += static_cast<int64_t>(request.stop.back().size());
  }
  if (bytes > Request::kMaxStopBytes) {
    return fail(ErrorCode::kRequest, "{}: {} bytes in all; at most {} are allowed", path, bytes,
                Request::kMaxStopBytes);
  }
  return {};
}

Status check_unknown(const Generation& generation, const RequestPolicy& policy) {
  if (!policy.refuse_unknown || generation.unknown.empty()) return {};
  return fail(ErrorCode::kRequest, "{}: unknown field", generation.unknown.front());
}

Status complete_request(ConversationRequest& request, const ToolRules& tools,
                        const RequestPolicy& policy) {
  const Conversation& conversation = request.conversation;
  if (const Status status = check_images(conversation); !status) {
    return tl::unexpected(at_source(status.error(), request.sources));
  }
  auto prompt = render_prompt(conversation);
  if (!prompt) return tl::unexpected(at_source(std::move(prompt).error(), request.sources));
  request.prompt = *std::move(prompt);

  Generation& generation = request.generation;
  Request& engine = generation.request;
  engine.start = answer_start(request.prompt);
  generation.default_max_tokens = default_max_tokens(conversation);
  if (policy.hosted_sampling) apply_hosted_rule(conversation.thinking, engine.sampling);

  request.parser = {.start = request.prompt.start,
                    .continues_prefix = request.prompt.continues_prefix,
                    .tools_declared = request.prompt.declares_tools,
                    .stop = std::exchange(engine.stop, {})};
  if (!request.prompt.declares_tools) return {};
  if (engine.constraint) {
    return fail(ErrorCode::kRequest,
                "tools: cannot be combined with a response format or guided output; send "
                "tool_choice \"none\" or one of them");
  }
  engine.constraint = tool_constraint(conversation, tools);
  return {};
}

Status limit_tokens(Generation& generation, int64_t prompt_tokens, int64_t context) {
  const int64_t left = context - prompt_tokens;
  const bool is_cut = generation.cuts_max_tokens || !generation.max_tokens;
  if (left < 1 || (!is_cut && *generation.max_tokens > left)) {
    const std::string asked =
        generation.max_tokens ? fmt::format(" and {} are asked for", *generation.max_tokens) : "";
    return fail(ErrorCode::kContextLength,
                "the prompt has {} tokens{}; the context is {}; shorten the prompt{}",
                prompt_tokens, asked, context,
                left < 1 ? "" : fmt::format(" or ask for at most {}", left));
  }
  generation.request.max_tokens =
      std::min(generation.max_tokens.value_or(generation.default_max_tokens), left);
  return {};
}

Result<double> parse_timeout(std::string_view seconds) {
  constexpr double kMost = 86400;
  double value = 0;
  const char* end = seconds.data() + seconds.size();
  const auto [rest, error] = std::from_chars(seconds.data(), end, value);
  if (error == std::errc() && rest == end && value > 0 && value <= kMost) return value * 1000;
  return fail(ErrorCode::kRequest, "X-Request-Timeout: expected seconds above 0, at most {}",
              kMost);
}

}  // namespace tidemill
