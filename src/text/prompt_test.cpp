#include "text/prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "text/special_tokens.h"
#include "text/tokenizer_for_tests.h"

namespace tidemill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<Prompt> render(const Json& request) {
  TRY(const Conversation conversation, parse_chat_request(request));
  return render_prompt(conversation);
}

// Without thinking, so that the prompt is short.
Result<Prompt> render_messages(const std::string& messages, const std::string& fields = {}) {
  TRY(const Json request, parse_json(R"({"thinking": {"type": "disabled"}, "messages": [)" +
                                     messages + "]" + fields + "}"));
  return render(request);
}

const std::string kUser = R"({"role": "user", "content": "U"})";
const std::string kTools = R"(, "tools": [{"function": {"name": "f"}}])";

std::string called(const std::string& ids) {
  Json calls = Json::array();
  for (const char id : ids) {
    calls.push_back(
        {{"id", std::string(1, id)}, {"function", {{"name", "f"}, {"arguments", "{}"}}}});
  }
  return Json{{"role", "assistant"}, {"tool_calls", calls}}.dump();
}

std::string result_of(const std::string& id) {
  return Json{{"role", "tool"}, {"tool_call_id", id}, {"content", "R" + id}}.dump();
}

// --- the cases that DeepSeek's own package has rendered ---

Json encoding_cases() {
  std::ifstream file(TIDEMILL_SOURCE_DIR "/tests/cases/encoding.json");
  std::stringstream text;
  text << file.rdbuf();
  Result<Json> json = parse_json(text.str());
  if (json) return (*json)["cases"];
  ADD_FAILURE() << "tests/cases/encoding.json: " << json.error().message;
  return Json::array();
}

size_t code_points(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

TEST(Prompt, CaseFile) {
  const Tokenizer* tokenizer = deepseek_tokenizer();
  const Json cases = encoding_cases();
  EXPECT_GE(cases.size(), 60u);
  for (const Json& test : cases) {
    SCOPED_TRACE(test["name"].get<std::string>());
    const Result<Prompt> prompt = render(test["request"]);
    ASSERT_TRUE(prompt) << prompt.error().message;
    EXPECT_EQ(prompt->text(), test["prompt"].get<std::string>());

    Json ranges = Json::array();
    size_t begin = 0;
    for (const PromptPiece& piece : prompt->pieces) {
      const size_t end = begin + code_points(piece.text);
      if (piece.special) ranges.push_back({begin, end});
      begin = end;
    }
    EXPECT_EQ(ranges, test["special_ranges_codepoints"]);

    const auto ids = encode_prompt(*prompt, *tokenizer);
    ASSERT_TRUE(ids) << ids.error().message;
    EXPECT_EQ(*ids, test["ids"].get<std::vector<int32_t>>());
  }
}

// --- where the answer starts ---

TEST(Prompt, Start) {
  const auto start = [](const char* text) {
    const Result<Prompt> prompt = render(*parse_json(text));
    EXPECT_TRUE(prompt) << prompt.error().message;
    return std::pair(prompt->start, prompt->continues_prefix);
  };
  using Start = Prompt::Start;
  EXPECT_EQ(start(R"({"messages": [{"role": "user", "content": "U"}]})"),
            std::pair(Start::kReasoning, false));
  EXPECT_EQ(start(R"({"messages": [{"role": "user", "content": "U"}],
                      "thinking": {"type": "disabled"}})"),
            std::pair(Start::kContent, false));
  EXPECT_EQ(start(R"({"messages": [{"role": "user", "content": "U"}],
                      "thinking": {"type": "disabled"},
                      "tools": [{"function": {"name": "f"}}], "tool_choice": "required"})"),
            std::pair(Start::kToolCalls, false));
  EXPECT_EQ(start(R"({"messages": [{"role": "assistant", "content": "x", "prefix": true}]})"),
            std::pair(Start::kContent, true));
  EXPECT_EQ(start(R"({"messages": [{"role": "assistant", "content": null, "prefix": true,
                                    "reasoning_content": "r"}]})"),
            std::pair(Start::kReasoning, true));
}

TEST(Prompt, DeclaresTools) {
  EXPECT_FALSE(render_messages(kUser)->declares_tools);
  EXPECT_TRUE(render_messages(kUser, kTools)->declares_tools);
  EXPECT_FALSE(render_messages(kUser, kTools + R"(, "tool_choice": "none")")->declares_tools);
}

TEST(Prompt, AForcedChoiceWhileThinkingStartsInTheReasoning) {
  const Result<Prompt> prompt = render(*parse_json(
      R"({"messages": [{"role": "user", "content": "U"}],
          "tools": [{"function": {"name": "f"}}], "tool_choice": "required"})"));
  ASSERT_TRUE(prompt);
  EXPECT_EQ(prompt->start, Prompt::Start::kReasoning);
  EXPECT_EQ(prompt->pieces.back().text, special::kThinkBegin);
}

// --- tool calls in the history ---

std::string rendered_arguments(const std::string& arguments) {
  Json call = *parse_json(called("a"));
  call["tool_calls"][0]["function"]["arguments"] = arguments;
  const Result<Prompt> prompt = render_messages(kUser + "," + call.dump() + "," + result_of("a"));
  EXPECT_TRUE(prompt);
  const std::string text = prompt->text();
  const std::string begin = "<｜DSML｜ invoke name=\"f\">\n";
  const size_t at = text.find(begin) + begin.size();
  return text.substr(at, text.find("</｜DSML｜ invoke>") - at);
}

std::string parameter(const std::string& name, const std::string& is_string,
                      const std::string& value) {
  return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + is_string + "\">" + value +
         "</｜DSML｜ parameter>\n";
}

TEST(Prompt, ArgumentsAreDecodedUpToTwice) {
  const std::string object = R"({"a": 1})";
  const std::string twice = Json(object).dump();
  const std::string thrice = Json(twice).dump();
  EXPECT_EQ(rendered_arguments(object), parameter("a", "false", "1"));
  EXPECT_EQ(rendered_arguments(twice), parameter("a", "false", "1"));
  EXPECT_EQ(rendered_arguments(thrice), parameter("arguments", "true", thrice));
  EXPECT_EQ(rendered_arguments("null"), parameter("arguments", "true", "null"));
}

TEST(Prompt, LargeIntegersInArgumentsKeepTheirDigits) {
  EXPECT_EQ(
      rendered_arguments(R"({"id":123456789012345678901234567890,"l":[99999999999999999999]})"),
      parameter("id", "false", "123456789012345678901234567890") +
          parameter("l", "false", "[99999999999999999999]"));
}

TEST(Prompt, ArgumentsNestedTooDeeplyAreText) {
  const std::string deep = "{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}";
  EXPECT_EQ(rendered_arguments(deep), parameter("arguments", "true", deep));
}

TEST(Prompt, TwoRemindersInARow) {
  const std::string reminder = R"(,{"role": "latest_reminder", "content": "R"})";
  const Result<Prompt> prompt = render_messages(kUser + reminder + reminder);
  ASSERT_TRUE(prompt);
  EXPECT_EQ(prompt->text(),
            "<｜begin▁of▁sentence｜><｜User｜>U<｜latest_reminder｜>R<｜latest_reminder｜>R"
            "<｜Assistant｜></think>");
}

// --- pieces ---

TEST(Prompt, PlainPiecesAreMergedAndNeverEmpty) {
  const Result<Prompt> prompt = render_messages(
      R"({"role": "user", "content": ""}, {"role": "user", "content": ["<｜User｜>"]})");
  ASSERT_FALSE(prompt);  // a part is an object
  const Result<Prompt> merged = render_messages(
      R"({"role": "user", "content": "<｜User｜>"}, {"role": "user", "content": ""})");
  ASSERT_TRUE(merged);
  std::vector<std::pair<std::string, bool>> pieces;
  for (const PromptPiece& piece : merged->pieces) pieces.emplace_back(piece.text, piece.special);
  EXPECT_THAT(pieces, ElementsAre(std::pair(std::string(special::kBos), true),
                                  std::pair(std::string(special::kUser), true),
                                  std::pair("<｜User｜>\n\n", false),
                                  std::pair(std::string(special::kAssistant), true),
                                  std::pair(std::string(special::kThinkEnd), true)));
}

TEST(EncodePrompt, AMissingSpecialTokenIsNamed) {
  const Tokenizer* tokenizer = deepseek_tokenizer();
  Prompt prompt;
  prompt.pieces.push_back({"<｜nobody｜>", true});
  const auto ids = encode_prompt(prompt, *tokenizer);
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, ErrorCode::kTokenizer);
  EXPECT_THAT(ids.error().message, HasSubstr("<｜nobody｜>"));
}

// --- refusals ---

TEST(Prompt, Refusals) {
  const auto refused = [](const std::string& messages, const std::string& fields,
                          const std::string& text) {
    const Result<Prompt> prompt = render_messages(messages, fields);
    ASSERT_FALSE(prompt) << messages << fields;
    EXPECT_EQ(prompt.error().code, ErrorCode::kRequest);
    EXPECT_THAT(prompt.error().message, HasSubstr(text));
  };
  const std::string sep = ",";
  refused("", "", "messages: empty");
  refused(result_of("a"), "", "messages[0]: a tool message must follow");
  refused(kUser + sep + result_of("a"), "", "messages[1]: a tool message must follow");
  refused(called("a") + sep + result_of("b"), "",
          "messages[1]: tool_call_id \"b\" answers no open tool call of messages[0]");
  refused(called("a") + sep + result_of("a") + sep + result_of("a"), "",
          "messages[2]: tool_call_id \"a\" answers no open");
  refused(called("ab") + sep + result_of("a"), "",
          "messages[0]: tool call \"b\" (f) has no tool message");
  refused(called("ab") + sep + result_of("a") + sep + kUser + sep + result_of("b"), "",
          "messages[0]: tool call \"b\" (f) has no tool message");
  refused(called("aa"), "", "messages[0]: two tool calls have the id \"a\"");
  refused(R"({"role": "assistant", "content": "x", "prefix": true},)" + kUser, "",
          "messages[0].prefix: only for an assistant message in last place");
  refused(kUser, R"(, "tool_choice": "required")", "\"required\" without tools");
  refused(kUser, kTools + R"(, "tool_choice": {"function": {"name": "g"}})",
          "no tool \"g\" among 1 tools");
  refused(R"({"role": "assistant", "content": "x", "prefix": true})",
          kTools + R"(, "tool_choice": "required")", "cannot continue a prefix");
}

}  // namespace
}  // namespace tidemill
