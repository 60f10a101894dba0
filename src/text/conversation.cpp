#include "text/conversation.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

namespace tidemill {
namespace {

using Messages = std::vector<Message>;

// Every call of message `i` is answered once, directly after it. Returns the message after the
// results.
Result<size_t> check_tool_results(const Messages& messages, size_t i) {
  std::unordered_set<std::string_view> open;
  for (const ToolCall& call : messages[i].tool_calls) {
    if (!open.insert(call.id).second) {
      return fail(ErrorCode::kRequest, "messages[{}]: two tool calls have the id \"{}\"", i,
                  call.id);
    }
  }
  size_t next = i + 1;
  for (; next < messages.size() && messages[next].role == Role::kTool; ++next) {
    const std::string& id = messages[next].tool_call_id;
    if (open.erase(id) == 0) {
      return fail(ErrorCode::kRequest,
                  "messages[{}]: tool_call_id \"{}\" answers no open tool call of messages[{}]",
                  next, id, i);
    }
  }
  for (const ToolCall& call : messages[i].tool_calls) {
    if (!open.contains(call.id)) continue;
    return fail(ErrorCode::kRequest,
                "messages[{}]: tool call \"{}\" ({}) has no tool message directly after it", i,
                call.id, call.name);
  }
  return next;
}

Status check_messages(const Messages& messages) {
  if (messages.empty()) return fail(ErrorCode::kRequest, "messages: empty");
  for (size_t i = 0; i < messages.size();) {
    const Message& message = messages[i];
    if (message.prefix && (message.role != Role::kAssistant || i + 1 != messages.size())) {
      return fail(ErrorCode::kRequest,
                  "messages[{}].prefix: only for an assistant message in last place", i);
    }
    if (message.role == Role::kTool) {
      return fail(ErrorCode::kRequest,
                  "messages[{}]: a tool message must follow an assistant message with tool_calls",
                  i);
    }
    if (message.tool_calls.empty()) {
      ++i;
    } else {
      TRY(i, check_tool_results(messages, i));
    }
  }
  return {};
}

Status check_tool_choice(const Conversation& conversation) {
  if (!is_forced(conversation.tool_choice)) return {};
  const std::vector<Tool>& tools = conversation.tools;
  const std::string& name = conversation.tool_choice_name;
  if (conversation.tool_choice == ToolChoice::kRequired && tools.empty()) {
    return fail(ErrorCode::kRequest, "tool_choice: \"required\" without tools");
  }
  if (conversation.tool_choice == ToolChoice::kNamed &&
      std::none_of(tools.begin(), tools.end(), [&](const Tool& t) { return t.name == name; })) {
    return fail(ErrorCode::kRequest, "tool_choice: no tool \"{}\" among {} tools", name,
                tools.size());
  }
  if (conversation.messages.back().prefix) {
    return fail(ErrorCode::kRequest, "tool_choice: a forced call cannot continue a prefix");
  }
  return {};
}

}  // namespace

Status check_conversation(const Conversation& conversation) {
  CHECK_OK(check_messages(conversation.messages));
  return check_tool_choice(conversation);
}

}  // namespace tidemill
