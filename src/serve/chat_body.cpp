#include "serve/chat_body.h"

#include <array>
#include <utility>

namespace tidemill {
namespace {

constexpr auto kRead = std::to_array<std::string_view>(
    {"messages", "tools", "tool_choice", "parallel_tool_calls", "thinking", "reasoning_effort",
     "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "chat_template_kwargs"});

constexpr auto kFixed = std::to_array<FixedField>({
    {"functions", "[]", "use tools"},
    {"function_call", "[]", "use tool_choice"},
    {"audio", "[]", ""},
    {"modalities", R"([["text"]])", ""},
    {"web_search_options", "[]", ""},
    {"verbosity", R"(["medium"])", ""},
    {"store", "[false]", "nothing is stored"},
    {"best_of", "[1]", "use n"},
    {"echo", "[false]", ""},
    {"suffix", "[]", "use /v1/completions"},
    {"add_generation_prompt", "[true]", ""},
    {"continue_final_message", "[false]", "use prefix: true in the last message"},
    {"add_special_tokens", "[false]", ""},
    {"include_reasoning", "[true]", ""},
    {"chat_template", "[]", ""},
    {"documents", "[]", ""},
    {"mm_processor_kwargs", "[]", ""},
});

constexpr auto kMessageRead =
    std::to_array<std::string_view>({"role", "content", "name", "reasoning_content", "tool_calls",
                                     "tool_call_id", "prefix", "refusal", "annotations"});
constexpr auto kMessageFixed =
    std::to_array<FixedField>({{"function_call", "[]", "use tool_calls"}, {"audio", "[]", ""}});

constexpr auto kTemplateRead = std::to_array<std::string_view>({"thinking", "enable_thinking"});

Status check_chat_fields(const Fields& body, std::vector<std::string>& unknown) {
  const std::array<FieldTable, 2> tables = {{{kRead, kFixed}, generation_fields()[0]}};
  CHECK_OK(check_fields(body, tables, unknown));
  TRY(const Json* messages, body.array("messages"));
  if (!messages) return {};
  const std::array<FieldTable, 1> message_tables = {{{kMessageRead, kMessageFixed}}};
  for (size_t i = 0; i < messages->size(); ++i) {
    TRY(const Fields message, Fields::of((*messages)[i], fmt::format("messages[{}]", i)));
    CHECK_OK(check_fields(message, message_tables, unknown));
  }
  return {};
}

Status read_max_tokens(const Fields& body, Generation& generation) {
  TRY(generation.max_tokens, body.integer("max_completion_tokens", 1, INT64_MAX));
  TRY(const auto older, body.integer("max_tokens", 1, INT64_MAX));
  if (!older) return {};
  if (generation.max_tokens && *generation.max_tokens != *older) {
    return fail(ErrorCode::kRequest, "max_tokens: {} beside max_completion_tokens {}; send one",
                *older, *generation.max_tokens);
  }
  generation.max_tokens = older;
  return {};
}

Status read_logprobs(const Fields& body, SamplingParams& sampling) {
  TRY(const std::optional<bool> wanted, body.boolean("logprobs"));
  TRY(const auto top, body.integer("top_logprobs", 0, SamplingParams::kMaxLogprobs));
  if (wanted.value_or(false)) {
    sampling.logprobs = static_cast<int32_t>(top.value_or(0));
  } else if (top.value_or(0) > 0) {
    return fail(ErrorCode::kRequest, "top_logprobs: only allowed with logprobs: true");
  }
  return {};
}

// Strict schemas hold for all tools or for none: a constraint knows no third way.
Result<ToolRules> read_tool_rules(const Fields& body) {
  ToolRules rules;
  TRY(const std::optional<bool> parallel, body.boolean("parallel_tool_calls"));
  rules.parallel = parallel.value_or(true);
  TRY(const Json* tools, body.array("tools"));
  for (size_t i = 0; tools && i < tools->size(); ++i) {
    const std::string path = fmt::format("tools[{}].function", i);
    TRY(const Fields function, Fields::of((*tools)[i].at("function"), path));
    TRY(const std::optional<bool> strict, function.boolean("strict"));
    if (i > 0 && strict.value_or(false) != rules.strict) {
      return fail(ErrorCode::kRequest, "{}: strict must be the same for all tools", path);
    }
    rules.strict = strict.value_or(false);
  }
  return rules;
}

// vLLM's way to switch thinking off; `thinking` and `reasoning_effort` outrank it.
Status read_template_arguments(const Fields& body, Conversation& conversation) {
  TRY(const std::optional<Fields> arguments, body.object("chat_template_kwargs"));
  if (!arguments) return {};
  std::vector<std::string> unknown;
  const std::array<FieldTable, 1> tables = {{{kTemplateRead, {}}}};
  CHECK_OK(check_fields(*arguments, tables, unknown));
  if (!unknown.empty()) return fail(ErrorCode::kRequest, "{}: not supported", unknown.front());
  const bool outranked = body.find("thinking") || body.find("reasoning_effort");
  for (const std::string_view key : kTemplateRead) {
    TRY(const std::optional<bool> thinking, arguments->boolean(key));
    if (thinking && !outranked) conversation.thinking = *thinking;
  }
  return {};
}

}  // namespace

Result<ConversationRequest> read_chat_body(const Json& json, const RequestPolicy& policy) {
  TRY(const Fields body, Fields::of(json, ""));
  ConversationRequest request;
  Generation& generation = request.generation;
  CHECK_OK(check_chat_fields(body, generation.unknown));
  TRY(request.conversation, parse_chat_request(json));
  CHECK_OK(read_generation(body, policy, generation));
  CHECK_OK(read_max_tokens(body, generation));
  CHECK_OK(read_logprobs(body, generation.request.sampling));
  if (!body.find("thinking") && !body.find("reasoning_effort")) {
    request.conversation.thinking = policy.thinking;
  }
  CHECK_OK(read_template_arguments(body, request.conversation));
  TRY(const ToolRules tools, read_tool_rules(body));
  CHECK_OK(complete_request(request, tools, policy));
  CHECK_OK(check_unknown(generation, policy));
  return request;
}

}  // namespace tidemill
