#include "serve/answer.h"

#include <gtest/gtest.h>

#include "serve/outputs_for_tests.h"

namespace tidemill {
namespace {

using Kind = OutputDelta::Kind;

// The arguments of all calls of an answer, cut into pieces of `size` bytes.
std::vector<std::string> arguments_of(const std::string& text, const std::vector<Tool>& tools,
                                      size_t size) {
  AnswerReader reader({.start = Prompt::Start::kContent, .tools_declared = true}, tools);
  std::vector<std::string> out;
  const auto take = [&](const std::vector<OutputDelta>& deltas) {
    for (const OutputDelta& delta : deltas) {
      if (delta.kind == Kind::kToolCallBegin) out.emplace_back();
      if (delta.kind == Kind::kToolCallArguments) out.back() += delta.text;
    }
  };
  for (const std::string& piece : pieces_of(text, size)) take(reader.push(piece));
  take(reader.finish());
  return out;
}

Tool tool(const std::string& name, const std::string& parameter) {
  return {.name = name,
          .parameters = {{"type", "object"}, {"properties", {{parameter, Json::object()}}}}};
}

TEST(AnswerReader, UnwrapsArgumentsUnlessTheSchemaHasThem) {
  const std::vector<Tool> location = {tool("f", "location")};
  const std::vector<Tool> arguments = {tool("f", "arguments")};
  struct Case {
    std::string parameters;
    std::string unwrapped;
    std::string as_written;
  };
  const std::vector<Case> cases = {
      {parameter("arguments", false, R"({"location": "P", "n": 1})"),
       R"({"location": "P", "n": 1})", R"({"arguments": {"location": "P", "n": 1}})"},
      {parameter("arguments", true, R"({"location": "P"})"), R"({"location": "P"})",
       R"({"arguments": "{\"location\": \"P\"}"})"},
      // No object inside, or not alone: as written.
      {parameter("arguments", true, "123"), R"({"arguments": "123"})", R"({"arguments": "123"})"},
      {parameter("arguments", false, "[1]"), R"({"arguments": [1]})", R"({"arguments": [1]})"},
      {parameter("arguments", false, "{}") + "\n" + parameter("b", false, "{}"),
       R"({"arguments": {}, "b": {}})", R"({"arguments": {}, "b": {}})"},
      {parameter("argument", false, "{}"), R"({"argument": {}})", R"({"argument": {}})"},
      {parameter("x", true, "123"), R"({"x": "123"})", R"({"x": "123"})"},
      {parameter("x", false, R"({"a": 1})"), R"({"x": {"a": 1}})", R"({"x": {"a": 1}})"},
      {"", "{}", "{}"},
  };
  for (const Case& test : cases) {
    const std::string text = calls({invoke("f", test.parameters)});
    for (size_t size = 1; size <= text.size(); ++size) {
      EXPECT_EQ(arguments_of(text, location, size), std::vector{test.unwrapped}) << text;
      EXPECT_EQ(arguments_of(text, arguments, size), std::vector{test.as_written}) << text;
    }
  }
}

TEST(AnswerReader, ACutWrapperIsShownAsFarAsItCame) {
  const std::string text = calls({invoke("f", parameter("arguments", false, R"({"a": 1})"))});
  const std::string cut = text.substr(0, text.find("1}"));
  for (size_t size = 1; size <= cut.size(); ++size) {
    EXPECT_EQ(arguments_of(cut, {tool("f", "a")}, size),
              std::vector<std::string>{R"({"arguments": {"a": )"});
  }
}

// The end of the call is missing although all of the object is there.
TEST(AnswerReader, ACutWrapperIsNotUnwrapped) {
  const std::string text = calls({invoke("f", parameter("arguments", false, R"({"a": 1} )"))});
  const std::string cut = text.substr(0, text.find("1} ") + 3);
  EXPECT_EQ(arguments_of(cut, {tool("f", "a")}, cut.size()),
            std::vector<std::string>{R"({"arguments": {"a": 1} )"});
}

TEST(AnswerReader, TheFirstOfStopStringsThatEndTogether) {
  for (const std::vector<std::string>& stop :
       {std::vector<std::string>{"B", "AB"}, std::vector<std::string>{"AB", "B"}}) {
    AnswerReader reader({.start = Prompt::Start::kContent, .stop = stop}, {});
    const auto deltas = reader.push("xAB");
    ASSERT_EQ(deltas.size(), 1u);
    EXPECT_EQ(deltas[0].text + reader.stop(), "xAB");
    EXPECT_EQ(reader.stop(), stop[0]);
  }
}

// Many pieces, the first before the last has come; and the name before all of them.
TEST(AnswerReader, ArgumentsAreStreamed) {
  const std::string text = calls({invoke("f", parameter("a", true, std::string(20000, 'x')))});
  AnswerReader reader({.start = Prompt::Start::kContent, .tools_declared = true}, {tool("f", "a")});
  int arguments = 0;
  for (const std::string& piece : pieces_of(text, 100)) {
    for (const OutputDelta& delta : reader.push(piece)) {
      EXPECT_TRUE(delta.kind != Kind::kToolCallBegin || arguments == 0);
      arguments += delta.kind == Kind::kToolCallArguments ? 1 : 0;
    }
  }
  EXPECT_GT(arguments, 190);
}

AnswerEnd end_of(const std::string& text, FinishReason reason, OutputParserOptions options = {}) {
  options.tools_declared = true;
  AnswerReader reader(options, {});
  reader.push(text);
  reader.finish();
  return reader.end(reason);
}

TEST(AnswerReader, Ends) {
  const std::string call = calls({invoke("f", parameter("a", true, "x"))});
  const std::string cut = call.substr(0, call.size() / 2);
  EXPECT_EQ(end_of("a", FinishReason::kStop), AnswerEnd::kStop);
  EXPECT_EQ(end_of("a", FinishReason::kLength), AnswerEnd::kLength);
  EXPECT_EQ(end_of("a", FinishReason::kCancelled), AnswerEnd::kCancelled);
  EXPECT_EQ(end_of("a", FinishReason::kError), AnswerEnd::kFailed);
  EXPECT_EQ(end_of(call, FinishReason::kStop), AnswerEnd::kToolCalls);
  EXPECT_EQ(end_of(call, FinishReason::kLength), AnswerEnd::kLength);
  // Cancelled by the server because the calls were complete.
  EXPECT_EQ(end_of(call, FinishReason::kCancelled), AnswerEnd::kToolCalls);
  // A call that is not complete is never announced as one.
  EXPECT_EQ(end_of(cut, FinishReason::kStop), AnswerEnd::kLength);
  EXPECT_EQ(end_of(cut, FinishReason::kCancelled), AnswerEnd::kCancelled);
  EXPECT_EQ(end_of("a STOP b", FinishReason::kCancelled, {.stop = {"STOP"}}),
            AnswerEnd::kStopString);
}

TEST(AnswerReader, IsCompleteAtAStopStringAndAfterTheCalls) {
  AnswerReader reader({.start = Prompt::Start::kContent, .stop = {"STOP"}}, {});
  reader.push("a STO");
  EXPECT_FALSE(reader.complete());
  reader.push("P");
  EXPECT_TRUE(reader.complete());
}

TEST(AnswerUsage, ChoicesShareTheirPromptAndRequestsDoNot) {
  AnswerUsage usage;
  usage.add_choice({.prompt_tokens = 10, .cached_tokens = 0, .output_tokens = 5}, 3);
  usage.add_choice({.prompt_tokens = 10, .cached_tokens = 9, .output_tokens = 7}, 100);
  EXPECT_EQ(usage.prompt_tokens, 10);
  EXPECT_EQ(usage.cached_tokens, 0);
  EXPECT_EQ(usage.output_tokens, 12);
  EXPECT_EQ(usage.reasoning_tokens, 10);
  AnswerUsage other;
  other.add_choice({.prompt_tokens = 4, .cached_tokens = 2, .output_tokens = 1}, 0);
  usage.add_request(other);
  EXPECT_EQ(usage.prompt_tokens, 14);
  EXPECT_EQ(usage.cached_tokens, 2);
  EXPECT_EQ(usage.output_tokens, 13);
}

TEST(ReasoningCount, CountsUpToTheMarker) {
  ReasoningCount count(AnswerStart::kReasoning, {99});
  count.push({1, 2});
  count.push({3, 99, 4});
  count.push({5});
  EXPECT_EQ(count.count(), 3);
  ReasoningCount none(AnswerStart::kContent, {99});
  none.push({1, 2});
  EXPECT_EQ(none.count(), 0);
}

TEST(ToText, InvalidBytesAreReplaced) {
  EXPECT_EQ(to_text({{"a", "\xff"}}), "{\"a\":\"\xEF\xBF\xBD\"}");
}

}  // namespace
}  // namespace tidemill
