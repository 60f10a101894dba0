// A chat request after its protocol has been read: what the prompt encoding needs, and no more.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "text/json.h"

namespace tidemill {

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder };

// One part of a message's content: text, or the place of an image.
struct ContentPart {
  std::string text;  // of an image: its URL as sent, not read yet
  bool is_image = false;
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // as the client sent them: normally the text of a JSON object
};

struct Message {
  Role role = Role::kUser;
  std::vector<ContentPart> content;
  std::string reasoning;             // assistant
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool
  bool prefix = false;               // assistant, last message only: continue this text
};

struct Tool {
  std::string name;
  std::string description;
  Json parameters = Json::object();
};

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };

// Must the answer be a tool call?
inline bool is_forced(ToolChoice choice) {
  return choice == ToolChoice::kRequired || choice == ToolChoice::kNamed;
}

struct Conversation {
  std::vector<Message> messages;
  std::vector<Tool> tools;  // names are unique
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_choice_name;  // kNamed: one of tools
  bool thinking = true;
  int reasoning_effort = 75;  // 1..100; low 50, high 75, max 100
  // {"type": "json_object"}, or the schema itself for json_schema; null = none.
  Json response_format;
};

// Error kRequest with the index of the message: no messages; a tool result without its call, or a
// call without its result directly after it; prefix anywhere but on an assistant message in last
// place; a forced tool choice without the tool, or with a prefix.
Status check_conversation(const Conversation& conversation);

}  // namespace tidemill
