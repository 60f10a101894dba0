#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "text/prompt.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

Result<Conversation> parse(std::string_view text) {
  TRY(const Json request, parse_json(text));
  return parse_chat_request(request);
}

// A request with one user message and these further fields.
Result<Conversation> parse_with(const std::string& fields) {
  return parse(R"({"messages": [{"role": "user", "content": "U"}], )" + fields + "}");
}

Result<Conversation> parse_message(const std::string& message) {
  return parse(R"({"messages": [)" + message + "]}");
}

TEST(ChatRequest, Defaults) {
  const auto conversation = parse(R"({"messages": [{"role": "user", "content": "U"}], "x": 1})");
  ASSERT_TRUE(conversation);
  ASSERT_EQ(conversation->messages.size(), 1u);
  EXPECT_EQ(conversation->messages[0].role, Role::kUser);
  EXPECT_EQ(conversation->messages[0].content[0].text, "U");
  EXPECT_TRUE(conversation->thinking);
  EXPECT_EQ(conversation->reasoning_effort, 75);
  EXPECT_EQ(conversation->tool_choice, ToolChoice::kAuto);
  EXPECT_TRUE(conversation->response_format.is_null());
}

TEST(ChatRequest, Messages) {
  const auto conversation = parse(R"({"messages": [
      {"role": "system", "content": "S", "name": "ignored"},
      {"role": "user", "content": [{"type": "text", "text": "T"},
                                   {"type": "image_url", "image_url": {"url": "data:x"}}]},
      {"role": "assistant", "content": null, "reasoning_content": "R", "tool_calls": [
          {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
          {"id": "b", "function": {"name": "g", "arguments": {"x":1}}}]},
      {"role": "tool", "tool_call_id": "a", "content": "A"},
      {"role": "latest_reminder", "content": "L"},
      {"role": "assistant", "content": "C", "tool_calls": [], "reasoning_content": null,
       "prefix": true}]})");
  ASSERT_TRUE(conversation) << conversation.error().message;
  const auto& messages = conversation->messages;
  ASSERT_EQ(messages.size(), 6u);
  EXPECT_EQ(messages[0].role, Role::kSystem);
  EXPECT_EQ(messages[1].content[0].text, "T");
  EXPECT_TRUE(messages[1].content[1].is_image);
  EXPECT_EQ(messages[1].content[1].text, "data:x");
  EXPECT_EQ(messages[2].reasoning, "R");
  EXPECT_TRUE(messages[2].content.empty());
  ASSERT_EQ(messages[2].tool_calls.size(), 2u);
  EXPECT_EQ(messages[2].tool_calls[0].arguments, "{}");
  EXPECT_EQ(messages[2].tool_calls[1].name, "g");
  EXPECT_EQ(messages[2].tool_calls[1].arguments, R"({"x": 1})");
  EXPECT_EQ(messages[3].tool_call_id, "a");
  EXPECT_EQ(messages[4].role, Role::kLatestReminder);
  EXPECT_TRUE(messages[5].prefix);
}

TEST(ChatRequest, Tools) {
  const auto conversation = parse_with(R"("tools": [
      {"type": "function", "function": {"name": "f-1_A", "description": "D",
                                        "parameters": {"type": "object"}, "strict": true}},
      {"type": "function", "function": {"name": "g", "description": null}}],
      "tool_choice": {"type": "function", "function": {"name": "g"}})");
  ASSERT_TRUE(conversation) << conversation.error().message;
  ASSERT_EQ(conversation->tools.size(), 2u);
  EXPECT_EQ(conversation->tools[0].description, "D");
  EXPECT_EQ(conversation->tools[0].parameters["type"], "object");
  EXPECT_EQ(conversation->tools[1].description, "");
  EXPECT_EQ(conversation->tools[1].parameters, Json::object());
  EXPECT_EQ(conversation->tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(conversation->tool_choice_name, "g");

  EXPECT_EQ(parse_with(R"("tool_choice": "auto")")->tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(parse_with(R"("tool_choice": "none")")->tool_choice, ToolChoice::kNone);
  EXPECT_EQ(parse_with(R"("tool_choice": "required")")->tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(parse_with(R"("tool_choice": null, "tools": null)")->tool_choice, ToolChoice::kAuto);
}

TEST(ChatRequest, ThinkingAndEffort) {
  const std::vector<std::pair<std::string, int>> efforts = {
      {"\"minimal\"", 50}, {"\"low\"", 50},  {"\"medium\"", 75}, {"\"high\"", 75},
      {"\"xhigh\"", 75},   {"\"max\"", 100}, {"\"ultra\"", 100}, {"1", 1},
      {"100", 100},        {"null", 75}};
  for (const auto& [name, effort] : efforts) {
    const auto conversation = parse_with("\"reasoning_effort\": " + name);
    ASSERT_TRUE(conversation) << name;
    EXPECT_EQ(conversation->reasoning_effort, effort) << name;
    EXPECT_TRUE(conversation->thinking) << name;
  }
  EXPECT_FALSE(parse_with(R"("reasoning_effort": "none")")->thinking);
  EXPECT_TRUE(
      parse_with(R"("reasoning_effort": "none", "thinking": {"type": "enabled"})")->thinking);
  EXPECT_FALSE(
      parse_with(R"("reasoning_effort": "max", "thinking": {"type": "disabled"})")->thinking);
  EXPECT_TRUE(parse_with(R"("thinking": {"type": "adaptive"})")->thinking);
  EXPECT_TRUE(parse_with(R"("thinking": null)")->thinking);
}

TEST(ChatRequest, ResponseFormat) {
  EXPECT_TRUE(parse_with(R"("response_format": {"type": "text"})")->response_format.is_null());
  EXPECT_EQ(
      python_json(parse_with(R"("response_format": {"type": "json_object"})")->response_format),
      R"({"type": "json_object"})");
  EXPECT_EQ(python_json(parse_with(R"("response_format": {"type": "json_schema", "json_schema":
                {"name": "n", "schema": {"maximum": 123456789012345678901}}})")
                            ->response_format),
            R"({"maximum": 123456789012345678901})");
}

TEST(ChatRequest, ErrorsNameTheField) {
  const auto message_error = [](const std::string& message, const std::string& text) {
    const auto conversation = parse_message(message);
    ASSERT_FALSE(conversation) << message;
    EXPECT_EQ(conversation.error().code, ErrorCode::kRequest);
    EXPECT_THAT(conversation.error().message, HasSubstr(text)) << message;
  };
  message_error(R"(1)", "messages[0]: expected an object, got number");
  message_error(R"({"content": "x"})", "messages[0].role: missing");
  message_error(R"({"role": "function", "content": "x"})", "messages[0].role: expected system");
  message_error(R"({"role": "user"})", "messages[0].content: missing");
  message_error(R"({"role": "user", "content": null})", "messages[0].content: missing");
  message_error(R"({"role": "assistant", "content": null})", "messages[0].content: missing");
  message_error(R"({"role": "user", "content": 1})", "messages[0].content: expected a string or");
  message_error(R"({"role": "user", "content": [1]})", "messages[0].content[0]: expected an obj");
  message_error(R"({"role": "user", "content": [{"type": "audio"}]})",
                "messages[0].content[0].type: expected \"text\"");
  message_error(R"({"role": "user", "content": [{"type": "image_url", "image_url": "u"}]})",
                "messages[0].content[0].image_url: expected an object");
  message_error(
      R"({"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "u"}}]})",
      "messages[0].content[0]: an assistant message cannot hold an image");
  message_error(R"({"role": "tool", "content": "x"})", "messages[0].tool_call_id: missing");
  message_error(R"({"role": "assistant", "content": "x", "prefix": 1})",
                "messages[0].prefix: expected a boolean");
  message_error(R"({"role": "assistant", "content": "x", "reasoning_content": []})",
                "messages[0].reasoning_content: expected a string, got array");
  message_error(R"({"role": "assistant", "tool_calls": {}})",
                "messages[0].tool_calls: expected an array, got object");
  message_error(R"({"role": "assistant", "tool_calls": [{"function": {"name": "f",
                "arguments": "{}"}}]})",
                "messages[0].tool_calls[0].id: missing");
  message_error(R"({"role": "assistant", "tool_calls": [{"id": "a", "type": "custom"}]})",
                "messages[0].tool_calls[0].type: only \"function\"");
  message_error(R"({"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f",
                "arguments": [1]}}]})",
                "messages[0].tool_calls[0].function.arguments: expected a string, got array");

  const auto field_error = [](const std::string& fields, const std::string& text) {
    const auto conversation = parse_with(fields);
    ASSERT_FALSE(conversation) << fields;
    EXPECT_EQ(conversation.error().code, ErrorCode::kRequest);
    EXPECT_THAT(conversation.error().message, HasSubstr(text)) << fields;
  };
  field_error(R"("tools": {})", "tools: expected an array");
  field_error(R"("tools": [{"type": "web_search"}])", "tools[0].type: only \"function\"");
  field_error(R"("tools": [{"type": "function"}])", "tools[0].function: missing");
  field_error(R"("tools": [{"function": {"name": "a b"}}])", "tools[0].function.name: expected 1");
  field_error(R"("tools": [{"function": {"name": ""}}])", "tools[0].function.name: expected 1");
  field_error(R"("tools": [{"function": {"name": ")" + std::string(65, 'x') + R"("}}])",
              "got 65 bytes");
  field_error(R"("tools": [{"function": {"name": "f"}}, {"function": {"name": "f"}}])",
              "tools[1].function.name: \"f\" is declared twice");
  field_error(R"("tools": [{"function": {"name": "f", "parameters": []}}])",
              "tools[0].function.parameters: expected an object");
  field_error(R"("tool_choice": "any")", "tool_choice: expected \"auto\"");
  field_error(R"("tool_choice": 1)", "tool_choice: expected \"auto\"");
  field_error(R"("tool_choice": {"type": "function"})", "tool_choice.function: missing");
  field_error(R"("thinking": true)", "thinking: expected an object, got boolean");
  field_error(R"("thinking": {"type": "on"})", "thinking.type: expected \"enabled\"");
  for (const char* effort : {"\"huge\"", "0", "101", "-1", "50.0", "true", "[]",
                             "99999999999999999999", "18446744073709551615"}) {
    field_error(std::string("\"reasoning_effort\": ") + effort, "reasoning_effort: expected none");
  }
  field_error(R"("response_format": "json")", "response_format: expected an object");
  field_error(R"("response_format": {"type": "regex"})", "response_format.type: expected");
  field_error(R"("response_format": {"type": "json_schema", "json_schema": {"name": "n"}})",
              "response_format.json_schema.schema: missing");

  EXPECT_THAT(parse("[]").error().message, HasSubstr("request: expected an object"));
  EXPECT_THAT(parse("{}").error().message, HasSubstr("messages: missing"));
  EXPECT_THAT(parse(R"({"messages": {}})").error().message, HasSubstr("messages: expected an arr"));
}

// A caller may hand over a value that parse_json has not seen.
TEST(ChatRequest, AbsurdDepth) {
  Json value;
  for (int i = 0; i < 100'000; ++i) {
    Json outer = Json::array();
    outer.push_back(std::move(value));
    value = std::move(outer);
  }
  Json request = Json::object();
  request["messages"] = std::move(value);
  const auto conversation = parse_chat_request(request);
  ASSERT_FALSE(conversation);
  EXPECT_THAT(conversation.error().message, HasSubstr("nested deeper than 128 levels"));
}

}  // namespace
}  // namespace tidemill
