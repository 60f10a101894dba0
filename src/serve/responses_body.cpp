#include "serve/responses_body.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

namespace tidemill {
namespace {

constexpr auto kRead = std::to_array<std::string_view>(
    {"input", "instructions", "max_output_tokens", "tools", "tool_choice", "parallel_tool_calls",
     "reasoning", "text", "include"});
constexpr auto kFixed = std::to_array<FixedField>({
    {"n", "[1]", ""},
    {"response_format", "[]", "use text.format"},
    {"store", "[false]", "nothing is stored"},
    {"previous_response_id", "[]", "send the whole conversation as input"},
    {"conversation", "[]", "send the whole conversation as input"},
    {"prompt", "[]", "send instructions and input"},
    {"background", "[false]", ""},
    {"truncation", R"(["disabled"])", ""},
    {"max_tool_calls", "[]", ""},
    {"top_logprobs", "[0]", "use /v1/chat/completions"},
});
constexpr auto kReasoningRead =
    std::to_array<std::string_view>({"effort", "summary", "generate_summary"});
constexpr auto kTextRead = std::to_array<std::string_view>({"format"});
constexpr auto kTextFixed = std::to_array<FixedField>({{"verbosity", R"(["medium"])", ""}});

Result<Fields> element(const Json& array, size_t i, const std::string& path) {
  return Fields::of(array[i], fmt::format("{}[{}]", path, i));
}

// A string, or an array of parts with text.
Result<std::vector<ContentPart>> read_texts(const Fields& fields, std::string_view key) {
  std::vector<ContentPart> parts;
  const Json* value = fields.find(key);
  if (value && value->is_string()) {
    parts.push_back({value->get<std::string>()});
    return parts;
  }
  if (!value || !value->is_array()) return fields.wrong(key, "a string or an array of parts");
  for (size_t i = 0; i < value->size(); ++i) {
    TRY(const Fields part, element(*value, i, fields.path(key)));
    TRY(const std::string type, part.require_string("type"));
    if (type != "input_text" && type != "output_text" && type != "text") {
      return fail(ErrorCode::kRequest, "{}: \"{}\" is not supported here; only text is",
                  part.path("type"), type);
    }
    TRY(std::string text, part.require_string("text"));
    parts.push_back({std::move(text)});
  }
  return parts;
}

// Items to messages.
class InputReader {
 public:
  explicit InputReader(std::vector<Message>& out) : out_(out) {}

  Status read(const Fields& item) {
    TRY(const std::optional<std::string> type, item.string("type"));
    const std::string kind = type.value_or("message");
    if (kind == "message") return read_message(item);
    if (kind == "reasoning") return read_reasoning(item);
    if (kind == "function_call") return read_call(item);
    if (kind == "function_call_output") return read_result(item);
    return fail(ErrorCode::kRequest, "{}: \"{}\" is not supported", item.path("type"), kind);
  }

 private:
  // The message that an item of the assistant belongs to.
  Message& assistant(bool begins) {
    const bool joins = !out_.empty() && out_.back().role == Role::kAssistant && !begins;
    if (!joins) out_.push_back({.role = Role::kAssistant});
    return out_.back();
  }

  Status read_message(const Fields& item) {
    TRY(const std::string role, item.require_string("role"));
    TRY(std::vector<ContentPart> content, read_texts(item, "content"));
    if (role == "assistant") {
      const bool begins =
          !out_.empty() && !(out_.back().content.empty() && out_.back().tool_calls.empty());
      // The parts of an answer were one text.
      std::string text;
      for (const ContentPart& part : content) text += part.text;
      assistant(begins).content.push_back({std::move(text)});
      return {};
    }
    Role of = Role::kUser;
    if (role == "system" || role == "developer") {
      of = Role::kSystem;
    } else if (role != "user") {
      return fail(ErrorCode::kRequest, "{}: expected user, assistant, system or developer",
                  item.path("role"));
    }
    out_.push_back({.role = of, .content = std::move(content)});
    return {};
  }

  Status read_reasoning(const Fields& item) {
    TRY(const Json* content, item.array("content"));
    Message& message = assistant(true);
    for (size_t i = 0; content && i < content->size(); ++i) {
      TRY(const Fields part, element(*content, i, item.path("content")));
      TRY(const std::string text, part.require_string("text"));
      message.reasoning += text;
    }
    return {};
  }

  Status read_call(const Fields& item) {
    ToolCall call;
    TRY(call.id, item.require_string("call_id"));
    TRY(call.name, item.require_string("name"));
    TRY(call.arguments, item.require_string("arguments"));
    assistant(false).tool_calls.push_back(std::move(call));
    return {};
  }

  Status read_result(const Fields& item) {
    Message result{.role = Role::kTool};
    TRY(result.tool_call_id, item.require_string("call_id"));
    TRY(result.content, read_texts(item, "output"));
    out_.push_back(std::move(result));
    return {};
  }

  std::vector<Message>& out_;
};

Status read_input(const Fields& body, std::vector<Message>& out,
                  std::vector<std::string>& sources) {
  TRY(std::optional<std::string> instructions, body.string("instructions"));
  if (instructions) {
    out.push_back({.role = Role::kSystem, .content = {{*std::move(instructions)}}});
    sources.push_back("instructions");
  }
  const Json* input = body.find("input");
  if (input && input->is_string()) {
    out.push_back({.role = Role::kUser, .content = {{input->get<std::string>()}}});
    sources.push_back("input");
    return {};
  }
  if (!input || !input->is_array() || input->empty()) {
    return body.wrong("input", "a string or an array of at least one item");
  }
  InputReader reader(out);
  for (size_t i = 0; i < input->size(); ++i) {
    TRY(const Fields item, element(*input, i, "input"));
    CHECK_OK(reader.read(item));
    sources.resize(out.size(), item.path());
  }
  return {};
}

// The tools, tool choice, effort and format in Chat's names, so that one reader checks them.
Result<Json> as_chat_fields(const Fields& body, std::vector<std::string>& unknown) {
  Json chat = {{"messages", Json::array({{{"role", "user"}, {"content", ""}}})}};
  TRY(const Json* tools, body.array("tools"));
  for (size_t i = 0; tools && i < tools->size(); ++i) {
    TRY(const Fields tool, element(*tools, i, "tools"));
    TRY(const std::string type, tool.require_string("type"));
    if (type != "function") {
      return fail(ErrorCode::kRequest, "{}: \"{}\" is not supported; only function is",
                  tool.path("type"), type);
    }
    chat["tools"].push_back({{"type", "function"}, {"function", tool.json()}});
  }
  if (const Json* choice = body.find("tool_choice")) {
    if (choice->is_object()) {
      TRY(const Fields fields, Fields::of(*choice, "tool_choice"));
      TRY(const std::string type, fields.require_string("type"));
      if (type != "function") {
        return fail(ErrorCode::kRequest, "tool_choice.type: \"{}\" is not supported", type);
      }
      TRY(const std::string name, fields.require_string("name"));
      chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
    } else {
      chat["tool_choice"] = *choice;
    }
  }
  TRY(const std::optional<Fields> reasoning, body.object("reasoning"));
  if (reasoning) {
    const std::array<FieldTable, 1> tables = {{{kReasoningRead, {}}}};
    CHECK_OK(check_fields(*reasoning, tables, unknown));
    if (const Json* effort = reasoning->find("effort")) chat["reasoning_effort"] = *effort;
  }
  return chat;
}

// The path of an error of as_chat_fields' result, as this protocol has it.
Error in_own_names(Error error) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"].function", "]"},
      {"tool_choice.function", "tool_choice"},
      {"reasoning_effort", "reasoning.effort"}};
  const size_t end = std::min(error.message.find(": "), error.message.size());
  for (const auto& [theirs, ours] : kNames) {
    const size_t at = error.message.find(theirs);
    if (at < end) error.message.replace(at, theirs.size(), ours);
  }
  return error;
}

Result<ToolRules> read_tool_rules(const Fields& body) {
  ToolRules rules;
  TRY(const std::optional<bool> parallel, body.boolean("parallel_tool_calls"));
  rules.parallel = parallel.value_or(true);
  TRY(const Json* tools, body.array("tools"));
  for (size_t i = 0; tools && i < tools->size(); ++i) {
    TRY(const Fields tool, element(*tools, i, "tools"));
    TRY(const std::optional<bool> strict, tool.boolean("strict"));
    if (i > 0 && strict.value_or(false) != rules.strict) {
      return fail(ErrorCode::kRequest, "{}: must be the same for all tools", tool.path("strict"));
    }
    rules.strict = strict.value_or(false);
  }
  return rules;
}

Status read_format(const Fields& body, Conversation& conversation, Generation& generation) {
  TRY(const std::optional<Fields> text, body.object("text"));
  if (!text) return {};
  const std::array<FieldTable, 1> tables = {{{kTextRead, kTextFixed}}};
  CHECK_OK(check_fields(*text, tables, generation.unknown));
  TRY(const std::optional<Fields> format, text->object("format"));
  if (!format) return {};
  TRY(const std::string type, format->require_string("type"));
  if (type == "text") return {};
  if (generation.request.constraint) {
    return fail(ErrorCode::kRequest, "text.format: cannot be combined with guided output");
  }
  if (type == "json_object") {
    conversation.response_format = {{"type", "json_object"}};
    generation.request.constraint = Constraint{.kind = Constraint::Kind::kJsonObject};
    return {};
  }
  TRY(const std::optional<Fields> schema, format->object("schema"));
  if (type != "json_schema" || !schema) {
    return fail(ErrorCode::kRequest,
                "text.format: expected text, json_object or a json_schema with its schema");
  }
  conversation.response_format = schema->json();
  generation.request.constraint =
      Constraint{.kind = Constraint::Kind::kJsonSchema, .text = python_json(schema->json())};
  return {};
}

// What is asked for beside the answer: encrypted reasoning is none here, and not missed, because
// the reasoning is sent as it is.
Status check_include(const Fields& body) {
  TRY(const Json* include, body.array("include"));
  for (size_t i = 0; include && i < include->size(); ++i) {
    if ((*include)[i] == "reasoning.encrypted_content") continue;
    return fail(ErrorCode::kRequest, "include[{}]: only \"reasoning.encrypted_content\" is allowed",
                i);
  }
  return {};
}

Json echo_of(const Fields& body, const ConversationRequest& request) {
  const auto sent = [&](const char* key, Json otherwise) {
    const Json* value = body.find(key);
    return value ? *value : std::move(otherwise);
  };
  // The shortest decimals of a float: 0.6, not what a double makes of it.
  const auto decimal = [](float value) { return Json::parse(fmt::format("{}", value)); };
  const SamplingParams& sampling = request.generation.request.sampling;
  return {{"instructions", sent("instructions", nullptr)},
          {"max_output_tokens", sent("max_output_tokens", nullptr)},
          {"metadata", sent("metadata", Json::object())},
          {"parallel_tool_calls", sent("parallel_tool_calls", true)},
          {"previous_response_id", nullptr},
          {"reasoning", sent("reasoning", nullptr)},
          {"store", false},
          {"temperature", decimal(sampling.temperature)},
          {"text", sent("text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", sent("tool_choice", "auto")},
          {"tools", sent("tools", Json::array())},
          {"top_p", decimal(sampling.top_p)},
          {"truncation", "disabled"}};
}

}  // namespace

Result<ResponsesRequest> read_responses_body(const Json& json, const RequestPolicy& policy) {
  TRY(const Fields body, Fields::of(json, ""));
  if (is_deeper_than(json, kMaxJsonDepth - 2)) {  // tools are wrapped below
    return fail(ErrorCode::kRequest, "request: nested deeper than {} levels", kMaxJsonDepth - 2);
  }
  ResponsesRequest request;
  Generation& generation = request.generation;
  const std::array<FieldTable, 2> tables = {{{kRead, kFixed}, generation_fields()[0]}};
  CHECK_OK(check_fields(body, tables, generation.unknown));
  CHECK_OK(check_include(body));
  TRY(const Json chat, as_chat_fields(body, generation.unknown));
  auto conversation = parse_chat_request(chat);
  if (!conversation) return tl::unexpected(in_own_names(std::move(conversation).error()));
  request.conversation = *std::move(conversation);
  if (!chat.contains("reasoning_effort")) request.conversation.thinking = policy.thinking;
  request.conversation.messages.clear();
  CHECK_OK(read_input(body, request.conversation.messages, request.sources));
  CHECK_OK(read_generation(body, policy, generation));
  TRY(generation.max_tokens, body.integer("max_output_tokens", 1, INT64_MAX));
  CHECK_OK(read_format(body, request.conversation, generation));
  TRY(const ToolRules tools, read_tool_rules(body));
  CHECK_OK(complete_request(request, tools, policy));
  CHECK_OK(check_unknown(generation, policy));
  request.echo = echo_of(body, request);
  return request;
}

}  // namespace tidemill
