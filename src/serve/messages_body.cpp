#include "serve/messages_body.h"

#include <array>
#include <unordered_set>
#include <utility>

namespace tidemill {
namespace {

constexpr auto kRead =
    std::to_array<std::string_view>({"messages", "system", "max_tokens", "stop_sequences", "tools",
                                     "tool_choice", "thinking", "output_config"});
constexpr auto kFixed = std::to_array<FixedField>({
    {"n", "[1]", ""},
    {"stop", "[]", "use stop_sequences"},
    {"stream_options", "[]", "usage is always sent"},
    {"response_format", "[]", "use output_config.format"},
    {"service_tier", R"(["auto","standard_only"])", ""},
    {"container", "[]", ""},
    {"context_management", "[]", ""},
    {"mcp_servers", "[[]]", ""},
});
constexpr auto kOutputRead = std::to_array<std::string_view>({"effort", "format"});

Result<Fields> element(const Json& array, size_t i, const std::string& path) {
  return Fields::of(array[i], fmt::format("{}[{}]", path, i));
}

// A string, or an array of text blocks.
Result<std::vector<ContentPart>> read_texts(const Fields& fields, std::string_view key) {
  std::vector<ContentPart> parts;
  const Json* value = fields.find(key);
  if (!value) return parts;
  if (value->is_string()) {
    parts.push_back({value->get<std::string>()});
    return parts;
  }
  if (!value->is_array()) return fields.wrong(key, "a string or an array of blocks");
  for (size_t i = 0; i < value->size(); ++i) {
    TRY(const Fields block, element(*value, i, fields.path(key)));
    TRY(const std::string type, block.require_string("type"));
    if (type != "text") {
      return fail(ErrorCode::kRequest, "{}: \"{}\" is not supported here; only text is",
                  block.path("type"), type);
    }
    TRY(std::string text, block.require_string("text"));
    parts.push_back({std::move(text)});
  }
  return parts;
}

// One message of the protocol: what the user says and the results of tools are messages of their
// own in a Conversation.
class MessageReader {
 public:
  explicit MessageReader(std::vector<Message>& out) : out_(out) {}

  Status read(const Fields& fields) {
    TRY(const std::string role, fields.require_string("role"));
    if (role == "user") {
      said_.role = Role::kUser;
    } else if (role == "assistant") {
      said_.role = Role::kAssistant;
    } else if (role == "system") {
      said_.role = Role::kSystem;
    } else {
      return fail(ErrorCode::kRequest, "{}: expected user, assistant or system",
                  fields.path("role"));
    }
    const Json* content = fields.find("content");
    if (!content) return fields.wrong("content", "a string or an array of blocks");
    if (content->is_string()) {
      said_.content.push_back({content->get<std::string>()});
    } else if (content->is_array()) {
      for (size_t i = 0; i < content->size(); ++i) {
        TRY(const Fields block, element(*content, i, fields.path("content")));
        CHECK_OK(read_block(block));
      }
    } else {
      return fields.wrong("content", "a string or an array of blocks");
    }
    const bool only_results = has_results_ && said_.content.empty();
    if (!only_results) out_.push_back(std::move(said_));
    return {};
  }

 private:
  Status read_block(const Fields& block) {
    TRY(const std::string type, block.require_string("type"));
    const bool assistant = said_.role == Role::kAssistant;
    if (type == "text") return read_text(block);
    if (type == "thinking" && assistant) {
      TRY(const std::string thinking, block.require_string("thinking"));
      said_.reasoning += thinking;
      return {};
    }
    if (type == "tool_use" && assistant) return read_call(block);
    if (type == "tool_result" && said_.role == Role::kUser) return read_result(block);
    return fail(ErrorCode::kRequest, "{}: \"{}\" is not supported in this role", block.path("type"),
                type);
  }

  // An answer's text blocks were one text; a user's are parts.
  Status read_text(const Fields& block) {
    TRY(std::string text, block.require_string("text"));
    if (said_.role == Role::kAssistant && !said_.content.empty()) {
      said_.content.back().text += text;
    } else {
      said_.content.push_back({std::move(text)});
    }
    return {};
  }

  Status read_call(const Fields& block) {
    ToolCall call;
    TRY(call.id, block.require_string("id"));
    TRY(call.name, block.require_string("name"));
    TRY(const std::optional<Fields> input, block.object("input"));
    if (!input) return block.wrong("input", "an object");
    call.arguments = python_json(input->json());
    said_.tool_calls.push_back(std::move(call));
    return {};
  }

  Status read_result(const Fields& block) {
    Message result{.role = Role::kTool};
    TRY(result.tool_call_id, block.require_string("tool_use_id"));
    TRY(result.content, read_texts(block, "content"));
    out_.push_back(std::move(result));
    has_results_ = true;
    return {};
  }

  std::vector<Message>& out_;
  Message said_;
  bool has_results_ = false;
};

Status read_messages(const Fields& body, std::vector<Message>& out,
                     std::vector<std::string>& sources) {
  if (body.find("system")) {
    Message system{.role = Role::kSystem};
    TRY(system.content, read_texts(body, "system"));
    out.push_back(std::move(system));
    sources.push_back("system");
  }
  TRY(const Json* messages, body.array("messages"));
  if (!messages || messages->empty()) return body.wrong("messages", "at least one message");
  for (size_t i = 0; i < messages->size(); ++i) {
    TRY(const Fields fields, element(*messages, i, "messages"));
    CHECK_OK(MessageReader(out).read(fields));
    sources.resize(out.size(), fields.path());
  }
  Message& last = out.back();
  if (last.role == Role::kAssistant && last.tool_calls.empty()) last.prefix = true;
  return {};
}

Result<ToolRules> read_tools(const Fields& body, Conversation& conversation) {
  ToolRules rules;
  TRY(const Json* tools, body.array("tools"));
  std::unordered_set<std::string> names;
  for (size_t i = 0; tools && i < tools->size(); ++i) {
    TRY(const Fields fields, element(*tools, i, "tools"));
    TRY(const std::optional<std::string> type, fields.string("type"));
    if (type.value_or("custom") != "custom") {
      return fail(ErrorCode::kRequest, "{}: \"{}\" is not supported; only custom tools are",
                  fields.path("type"), *type);
    }
    Tool tool;
    TRY(tool.name, fields.require_string("name"));
    if (tool.name.empty() || tool.name.size() > 64 ||
        tool.name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                    "0123456789_-") != std::string::npos) {
      return fail(ErrorCode::kRequest, "{}: expected 1 to 64 of the characters a-z A-Z 0-9 _ -",
                  fields.path("name"));
    }
    if (!names.insert(tool.name).second) {
      return fail(ErrorCode::kRequest, "{}: \"{}\" is declared twice", fields.path("name"),
                  tool.name);
    }
    TRY(std::optional<std::string> description, fields.string("description"));
    tool.description = std::move(description).value_or("");
    TRY(const std::optional<Fields> schema, fields.object("input_schema"));
    if (!schema) return fields.wrong("input_schema", "an object");
    tool.parameters = schema->json();
    TRY(const std::optional<bool> strict, fields.boolean("strict"));
    if (i > 0 && strict.value_or(false) != rules.strict) {
      return fail(ErrorCode::kRequest, "{}: must be the same for all tools", fields.path("strict"));
    }
    rules.strict = strict.value_or(false);
    conversation.tools.push_back(std::move(tool));
  }
  return rules;
}

Status read_tool_choice(const Fields& body, Conversation& conversation, ToolRules& rules) {
  TRY(const std::optional<Fields> choice, body.object("tool_choice"));
  if (!choice) return {};
  TRY(const std::string type, choice->require_string("type"));
  if (type == "any") {
    conversation.tool_choice = ToolChoice::kRequired;
  } else if (type == "none") {
    conversation.tool_choice = ToolChoice::kNone;
  } else if (type == "tool") {
    conversation.tool_choice = ToolChoice::kNamed;
    TRY(conversation.tool_choice_name, choice->require_string("name"));
  } else if (type != "auto") {
    return fail(ErrorCode::kRequest, "tool_choice.type: expected auto, any, tool or none");
  }
  TRY(const std::optional<bool> single, choice->boolean("disable_parallel_tool_use"));
  rules.parallel = !single.value_or(false);
  return {};
}

Status read_thinking(const Fields& body, Conversation& conversation) {
  TRY(const std::optional<Fields> thinking, body.object("thinking"));
  if (!thinking) return {};
  TRY(const std::string type, thinking->require_string("type"));
  if (type != "enabled" && type != "adaptive" && type != "disabled") {
    return fail(ErrorCode::kRequest, "thinking.type: expected enabled, adaptive or disabled");
  }
  conversation.thinking = type != "disabled";
  return {};
}

// Effort and format.
Status read_output_config(const Fields& body, Conversation& conversation, Generation& generation) {
  TRY(const std::optional<Fields> config, body.object("output_config"));
  if (!config) return {};
  const std::array<FieldTable, 1> tables = {{{kOutputRead, {}}}};
  CHECK_OK(check_fields(*config, tables, generation.unknown));
  TRY(const std::optional<std::string> effort, config->string("effort"));
  if (effort == "low") {
    conversation.reasoning_effort = 50;
  } else if (effort == "max") {
    conversation.reasoning_effort = 100;
  } else if (effort && effort != "medium" && effort != "high" && effort != "xhigh") {
    return fail(ErrorCode::kRequest,
                "output_config.effort: expected low, medium, high, xhigh or max");
  }
  TRY(const std::optional<Fields> format, config->object("format"));
  if (!format) return {};
  TRY(const std::string type, format->require_string("type"));
  TRY(const std::optional<Fields> schema, format->object("schema"));
  if (type != "json_schema" || !schema) {
    return fail(ErrorCode::kRequest,
                "output_config.format: expected a json_schema with its schema");
  }
  if (generation.request.constraint) {
    return fail(ErrorCode::kRequest, "output_config.format: cannot be combined with guided output");
  }
  conversation.response_format = schema->json();
  generation.request.constraint =
      Constraint{.kind = Constraint::Kind::kJsonSchema, .text = python_json(schema->json())};
  return {};
}

}  // namespace

Result<ConversationRequest> read_messages_body(const Json& json, const RequestPolicy& policy) {
  TRY(const Fields body, Fields::of(json, ""));
  if (is_deeper_than(json, kMaxJsonDepth)) {
    return fail(ErrorCode::kRequest, "request: nested deeper than {} levels", kMaxJsonDepth);
  }
  ConversationRequest request;
  Generation& generation = request.generation;
  const std::array<FieldTable, 2> tables = {{{kRead, kFixed}, generation_fields()[0]}};
  CHECK_OK(check_fields(body, tables, generation.unknown));
  CHECK_OK(read_generation(body, policy, generation));
  TRY(generation.max_tokens, body.integer("max_tokens", 1, INT64_MAX));
  generation.cuts_max_tokens = true;
  CHECK_OK(read_stop_strings(body, "stop_sequences", generation.request));
  CHECK_OK(read_messages(body, request.conversation.messages, request.sources));
  request.conversation.thinking = policy.thinking;
  CHECK_OK(read_thinking(body, request.conversation));
  CHECK_OK(read_output_config(body, request.conversation, generation));
  TRY(ToolRules tools, read_tools(body, request.conversation));
  CHECK_OK(read_tool_choice(body, request.conversation, tools));
  CHECK_OK(complete_request(request, tools, policy));
  CHECK_OK(check_unknown(generation, policy));
  return request;
}

}  // namespace tidemill
