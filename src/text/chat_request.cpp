// The OpenAI-style chat protocol, read field by field. `path` names a field in errors:
// "messages[2].tool_calls[0].function".
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "text/prompt.h"

namespace tidemill {
namespace {

std::string member_path(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

tl::unexpected<Error> wrong_type(const std::string& path, std::string_view expected,
                                 const Json& value) {
  return fail(ErrorCode::kRequest, "{}: expected {}, got {}", path, expected, value.type_name());
}

// The member, or nullptr when it is absent or null: clients send either.
const Json* find(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Result<const Json*> require(const Json& object, const char* key, const std::string& path) {
  if (const Json* value = find(object, key)) return value;
  return fail(ErrorCode::kRequest, "{}: missing", member_path(path, key));
}

Status check_object(const Json& value, const std::string& path) {
  if (!value.is_object()) return wrong_type(path, "an object", value);
  return {};
}

Result<std::string> read_string(const Json& value, const std::string& path) {
  if (!value.is_string()) return wrong_type(path, "a string", value);
  return value.get<std::string>();
}

Result<std::string> require_string(const Json& object, const char* key, const std::string& path) {
  TRY(const Json* value, require(object, key, path));
  return read_string(*value, member_path(path, key));
}

Result<std::string> optional_string(const Json& object, const char* key, const std::string& path) {
  const Json* value = find(object, key);
  if (!value) return std::string();
  return read_string(*value, member_path(path, key));
}

// nullptr when absent or null.
Result<const Json*> optional_array(const Json& object, const char* key, const std::string& path) {
  const Json* value = find(object, key);
  if (value && !value->is_array()) return wrong_type(member_path(path, key), "an array", *value);
  return value;
}

// "tools" and "tool_calls" entries alike: {"type": "function", "function": {...}}.
Result<const Json*> require_function(const Json& entry, const std::string& path) {
  CHECK_OK(check_object(entry, path));
  TRY(const std::string type, optional_string(entry, "type", path));
  if (!type.empty() && type != "function") {
    return fail(ErrorCode::kRequest, "{}.type: only \"function\" is supported", path);
  }
  TRY(const Json* function, require(entry, "function", path));
  CHECK_OK(check_object(*function, member_path(path, "function")));
  return function;
}

// --- messages ---

Result<ContentPart> read_part(const Json& part, Role role, const std::string& path) {
  CHECK_OK(check_object(part, path));
  TRY(const std::string type, require_string(part, "type", path));
  if (type == "text") {
    TRY(std::string text, require_string(part, "text", path));
    return ContentPart{std::move(text), false};
  }
  if (type != "image_url") {
    return fail(ErrorCode::kRequest, "{}.type: expected \"text\" or \"image_url\"", path);
  }
  if (role == Role::kAssistant) {
    return fail(ErrorCode::kRequest, "{}: an assistant message cannot hold an image", path);
  }
  TRY(const Json* image, require(part, "image_url", path));
  const std::string image_path = member_path(path, "image_url");
  CHECK_OK(check_object(*image, image_path));
  TRY(std::string url, require_string(*image, "url", image_path));
  return ContentPart{std::move(url), true};
}

Result<std::vector<ContentPart>> read_content(const Json& content, Role role,
                                              const std::string& path) {
  std::vector<ContentPart> parts;
  if (content.is_string()) {
    parts.push_back({content.get<std::string>(), false});
    return parts;
  }
  if (!content.is_array()) return wrong_type(path, "a string or an array of parts", content);
  parts.reserve(content.size());
  for (const Json& part : content) {
    TRY(ContentPart read, read_part(part, role, fmt::format("{}[{}]", path, parts.size())));
    parts.push_back(std::move(read));
  }
  return parts;
}

Result<ToolCall> read_tool_call(const Json& entry, const std::string& path) {
  TRY(const Json* function, require_function(entry, path));
  const std::string function_path = member_path(path, "function");
  ToolCall call;
  TRY(call.id, require_string(entry, "id", path));
  TRY(call.name, require_string(*function, "name", function_path));
  TRY(const Json* arguments, require(*function, "arguments", function_path));
  if (arguments->is_object()) {  // some clients skip the encoding as a string
    call.arguments = python_json(*arguments);
  } else {
    TRY(call.arguments, read_string(*arguments, member_path(function_path, "arguments")));
  }
  return call;
}

Result<Role> read_role(const Json& message, const std::string& path) {
  constexpr std::array<std::pair<std::string_view, Role>, 5> kRoles = {{
      {"system", Role::kSystem},
      {"user", Role::kUser},
      {"assistant", Role::kAssistant},
      {"tool", Role::kTool},
      {"latest_reminder", Role::kLatestReminder},
  }};
  TRY(const std::string name, require_string(message, "role", path));
  for (const auto& [known, role] : kRoles) {
    if (name == known) return role;
  }
  return fail(ErrorCode::kRequest,
              "{}.role: expected system, user, assistant, tool or latest_reminder", path);
}

Status read_assistant(const Json& json, Message& message, const std::string& path) {
  TRY(message.reasoning, optional_string(json, "reasoning_content", path));
  TRY(const Json* calls, optional_array(json, "tool_calls", path));
  if (calls) {
    for (const Json& entry : *calls) {
      TRY(ToolCall call,
          read_tool_call(entry, fmt::format("{}.tool_calls[{}]", path, message.tool_calls.size())));
      message.tool_calls.push_back(std::move(call));
    }
  }
  if (const Json* prefix = find(json, "prefix")) {
    if (!prefix->is_boolean()) return wrong_type(member_path(path, "prefix"), "a boolean", *prefix);
    message.prefix = prefix->get<bool>();
  }
  return {};
}

Result<Message> read_message(const Json& json, const std::string& path) {
  CHECK_OK(check_object(json, path));
  Message message;
  TRY(message.role, read_role(json, path));
  if (message.role == Role::kAssistant) CHECK_OK(read_assistant(json, message, path));
  if (message.role == Role::kTool) {
    TRY(message.tool_call_id, require_string(json, "tool_call_id", path));
  }
  if (const Json* content = find(json, "content")) {
    TRY(message.content, read_content(*content, message.role, member_path(path, "content")));
  } else if (message.tool_calls.empty() && message.reasoning.empty()) {
    return fail(ErrorCode::kRequest, "{}.content: missing", path);
  }
  return message;
}

// --- tools ---

bool is_tool_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), allowed);
}

Result<Tool> read_tool(const Json& entry, const std::string& path) {
  TRY(const Json* function, require_function(entry, path));
  const std::string function_path = member_path(path, "function");
  Tool tool;
  TRY(tool.name, require_string(*function, "name", function_path));
  if (!is_tool_name(tool.name)) {
    return fail(ErrorCode::kRequest,
                "{}.name: expected 1 to 64 of the characters a-z A-Z 0-9 _ -, got {} bytes",
                function_path, tool.name.size());
  }
  TRY(tool.description, optional_string(*function, "description", function_path));
  if (const Json* parameters = find(*function, "parameters")) {
    CHECK_OK(check_object(*parameters, member_path(function_path, "parameters")));
    tool.parameters = *parameters;
  }
  return tool;
}

Status read_tools(const Json& request, Conversation& conversation) {
  TRY(const Json* tools, optional_array(request, "tools", ""));
  if (!tools) return {};
  std::unordered_set<std::string> names;
  for (const Json& entry : *tools) {
    const std::string path = fmt::format("tools[{}]", conversation.tools.size());
    TRY(Tool tool, read_tool(entry, path));
    if (!names.insert(tool.name).second) {
      return fail(ErrorCode::kRequest, "{}.function.name: \"{}\" is declared twice", path,
                  tool.name);
    }
    conversation.tools.push_back(std::move(tool));
  }
  return {};
}

Status read_tool_choice(const Json& request, Conversation& conversation) {
  const Json* choice = find(request, "tool_choice");
  if (!choice) return {};
  if (choice->is_object()) {
    TRY(const Json* function, require_function(*choice, "tool_choice"));
    conversation.tool_choice = ToolChoice::kNamed;
    TRY(conversation.tool_choice_name, require_string(*function, "name", "tool_choice.function"));
    return {};
  }
  if (*choice == "auto") {
    conversation.tool_choice = ToolChoice::kAuto;
  } else if (*choice == "none") {
    conversation.tool_choice = ToolChoice::kNone;
  } else if (*choice == "required") {
    conversation.tool_choice = ToolChoice::kRequired;
  } else {
    return fail(ErrorCode::kRequest,
                "tool_choice: expected \"auto\", \"none\", \"required\" or a function");
  }
  return {};
}

// --- options ---

// True or false when the request says so.
Result<std::optional<bool>> read_thinking(const Json& request) {
  const Json* thinking = find(request, "thinking");
  if (!thinking) return std::nullopt;
  CHECK_OK(check_object(*thinking, "thinking"));
  TRY(const std::string type, require_string(*thinking, "type", "thinking"));
  if (type == "disabled") return false;
  if (type == "enabled" || type == "adaptive") return true;
  return fail(ErrorCode::kRequest, "thinking.type: expected \"enabled\" or \"disabled\"");
}

// 0 stands for "none": answer without thinking.
Result<int> read_effort(const Json& effort) {
  constexpr std::array<std::pair<std::string_view, int>, 8> kEfforts = {{
      {"none", 0},
      {"minimal", 50},
      {"low", 50},
      {"medium", 75},
      {"high", 75},
      {"xhigh", 75},
      {"max", 100},
      {"ultra", 100},
  }};
  for (const auto& [name, value] : kEfforts) {
    if (effort == name) return value;
  }
  if (effort.is_number_integer() && effort >= 1 && effort <= 100) return effort.get<int>();
  return fail(ErrorCode::kRequest,
              "reasoning_effort: expected none, minimal, low, medium, high, xhigh, max, ultra or "
              "an integer 1 to 100");
}

Status read_reasoning(const Json& request, Conversation& conversation) {
  TRY(const std::optional<bool> thinking, read_thinking(request));
  bool default_thinking = true;
  if (const Json* effort = find(request, "reasoning_effort")) {
    TRY(const int value, read_effort(*effort));
    if (value == 0) {
      default_thinking = false;
    } else {
      conversation.reasoning_effort = value;
    }
  }
  conversation.thinking = thinking.value_or(default_thinking);
  return {};
}

Status read_response_format(const Json& request, Conversation& conversation) {
  const Json* format = find(request, "response_format");
  if (!format) return {};
  CHECK_OK(check_object(*format, "response_format"));
  TRY(const std::string type, require_string(*format, "type", "response_format"));
  if (type == "text") return {};
  if (type == "json_object") {
    conversation.response_format = Json::object({{"type", "json_object"}});
    return {};
  }
  if (type != "json_schema") {
    return fail(ErrorCode::kRequest,
                "response_format.type: expected \"text\", \"json_object\" or \"json_schema\"");
  }
  TRY(const Json* json_schema, require(*format, "json_schema", "response_format"));
  CHECK_OK(check_object(*json_schema, "response_format.json_schema"));
  TRY(const Json* schema, require(*json_schema, "schema", "response_format.json_schema"));
  CHECK_OK(check_object(*schema, "response_format.json_schema.schema"));
  conversation.response_format = *schema;
  return {};
}

}  // namespace

Result<Conversation> parse_chat_request(const Json& request) {
  if (!request.is_object()) return wrong_type("request", "an object", request);
  if (is_deeper_than(request, kMaxJsonDepth)) {
    return fail(ErrorCode::kRequest, "request: nested deeper than {} levels", kMaxJsonDepth);
  }
  Conversation conversation;
  TRY(const Json* messages, require(request, "messages", ""));
  if (!messages->is_array()) return wrong_type("messages", "an array", *messages);
  conversation.messages.reserve(messages->size());
  for (const Json& message : *messages) {
    TRY(Message read,
        read_message(message, fmt::format("messages[{}]", conversation.messages.size())));
    conversation.messages.push_back(std::move(read));
  }
  CHECK_OK(read_tools(request, conversation));
  CHECK_OK(read_tool_choice(request, conversation));
  CHECK_OK(read_reasoning(request, conversation));
  CHECK_OK(read_response_format(request, conversation));
  return conversation;
}

}  // namespace tidemill
