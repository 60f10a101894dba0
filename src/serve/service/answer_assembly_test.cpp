#include "serve/service/answer_assembly.h"

#include <gtest/gtest.h>

#include "serve/outputs_for_tests.h"
#include "serve/sse_reader_for_tests.h"
#include "text/tokenizer_for_tests.h"

namespace tidemill {
namespace {

struct Plan {
  Protocol protocol = Protocol::kChat;
  bool stream = false;
  bool thinking = false;
  bool tools = false;
  int64_t requests = 1;
  int64_t choices = 1;
  std::vector<std::string> stop;
  std::vector<std::string> echoes;
  bool logprobs = false;
};

std::unique_ptr<AnswerAssembly> assembly(const Plan& plan) {
  AssemblyOptions options;
  options.protocol = plan.protocol;
  options.requests = plan.requests;
  options.choices = plan.choices;
  options.echoes = plan.echoes;
  options.start = plan.thinking ? AnswerStart::kReasoning : AnswerStart::kContent;
  if (plan.protocol != Protocol::kCompletions) {
    OutputParserOptions parser;
    parser.start = plan.thinking ? Prompt::Start::kReasoning : Prompt::Start::kContent;
    parser.tools_declared = plan.tools;
    parser.stop = plan.stop;
    options.parser = parser;
    if (plan.tools) options.tools = {{.name = "f"}, {.name = "g"}};
  }
  SinkOptions sink;
  sink.protocol = plan.protocol;
  sink.stream = plan.stream;
  sink.head = {.nonce = "n", .created = 1, .model = "m", .thinking = plan.thinking};
  sink.choices = plan.requests * plan.choices;
  sink.include_usage = true;
  sink.logprobs = plan.logprobs;
  sink.echo = Json::object();
  return std::make_unique<AnswerAssembly>(std::move(options), *mini_tokenizer(),
                                          make_sink(std::move(sink)));
}

Event said(const std::string& text, int64_t choice = 0) {
  Event event{.choice = choice, .text = text};
  event.tokens = mini_tokenizer()->encode(text);
  return event;
}

Event ended(FinishReason reason, int64_t output_tokens = 1, int64_t choice = 0) {
  Event event{.choice = choice, .finish = reason};
  event.usage.prompt_tokens = 10;
  event.usage.output_tokens = output_tokens;
  event.usage.queued_ms = 1;
  return event;
}

// Everything that goes to the client.
std::string play(const Plan& plan, const std::vector<std::string>& pieces,
                 FinishReason reason = FinishReason::kStop) {
  const auto answer = assembly(plan);
  std::string out;
  answer->begin(out);
  for (const std::string& piece : pieces) answer->push(0, said(piece), out);
  answer->push(0, ended(reason), out);
  answer->finish(out);
  return out;
}

// The text of a stream of chat, messages or responses, with its reasoning and arguments.
std::string joined(Protocol protocol, const std::string& stream) {
  std::string reasoning;
  std::string content;
  std::string arguments;
  const auto add = [](std::string& to, const Json& json, const char* key) {
    if (json.contains(key) && json[key].is_string()) to += json[key].get<std::string>();
  };
  for (const StreamEvent& event : read_sse(stream)) {
    if (event.data == kStreamDone) continue;
    const Json json = Json::parse(event.data);
    if (protocol == Protocol::kChat) {
      for (const Json& choice : json["choices"]) {
        const Json& delta = choice["delta"];
        add(reasoning, delta, "reasoning_content");
        add(content, delta, "content");
        if (!delta.contains("tool_calls")) continue;
        for (const Json& call : delta["tool_calls"]) add(arguments, call["function"], "arguments");
      }
    } else if (protocol == Protocol::kMessages && json["type"] == "content_block_delta") {
      add(reasoning, json["delta"], "thinking");
      add(content, json["delta"], "text");
      add(arguments, json["delta"], "partial_json");
    } else if (protocol == Protocol::kResponses && json.contains("delta")) {
      std::string& to = event.name == "response.reasoning_text.delta" ? reasoning
                        : event.name == "response.output_text.delta"  ? content
                                                                      : arguments;
      add(to, json, "delta");
    }
  }
  return reasoning + "|" + content + "|" + arguments;
}

// User cases 49, 51, 59: however the engine's text is cut, the joined stream is the same.
TEST(AnswerAssembly, StreamsDoNotDependOnHowTheTextWasCut) {
  const std::vector<std::string> outputs = sample_outputs();
  for (const Protocol protocol : {Protocol::kChat, Protocol::kMessages, Protocol::kResponses}) {
    const Plan plan{.protocol = protocol, .stream = true, .thinking = true, .tools = true};
    for (const std::string& output : outputs) {
      const std::string whole = joined(protocol, play(plan, {output}));
      for (const size_t size : {size_t{1}, size_t{3}}) {
        EXPECT_EQ(joined(protocol, play(plan, pieces_of(output, size))), whole) << output;
      }
    }
  }
}

TEST(AnswerAssembly, ChoicesAreApart) {
  const auto answer = assembly({.protocol = Protocol::kCompletions, .requests = 2, .choices = 2});
  std::string out;
  answer->begin(out);
  answer->push(1, said("d", 1), out);
  answer->push(0, said("a", 0), out);
  answer->push(1, said("c", 0), out);
  answer->push(0, said("b", 1), out);
  for (int64_t request : {1, 0}) {
    for (int64_t choice : {0, 1}) answer->push(request, ended(FinishReason::kStop, 2, choice), out);
  }
  EXPECT_TRUE(out.empty());
  answer->finish(out);
  const Json json = Json::parse(out);
  std::string text;
  for (const Json& choice : json["choices"]) text += choice["text"].get<std::string>();
  EXPECT_EQ(text, "abcd");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 20);
  EXPECT_EQ(json["usage"]["completion_tokens"], 8);
}

TEST(AnswerAssembly, EchoesComeFirst) {
  const Plan plan{.protocol = Protocol::kCompletions, .echoes = {"asked "}};
  EXPECT_EQ(Json::parse(play(plan, {"said"}))["choices"][0]["text"], "asked said");
}

TEST(AnswerAssembly, IsCompleteWhenEveryChoiceIs) {
  const auto answer = assembly({.protocol = Protocol::kMessages, .choices = 2, .stop = {"."}});
  std::string out;
  answer->push(0, said("a.b", 0), out);
  EXPECT_FALSE(answer->is_complete(0));
  answer->push(0, said("c", 1), out);
  answer->push(0, said(".", 1), out);
  EXPECT_TRUE(answer->is_complete(0));
  answer->push(0, ended(FinishReason::kCancelled, 3, 0), out);
  EXPECT_EQ(answer->end(), AnswerEnd::kStopString);
}

TEST(AnswerAssembly, OneFailureIsTheAnswers) {
  const auto answer = assembly({.choices = 2});
  std::string out;
  Event broken = ended(FinishReason::kError, 1, 1);
  broken.error = {ErrorCode::kInternal, "broken"};
  answer->push(0, said("a", 0), out);
  answer->push(0, broken, out);
  ASSERT_TRUE(answer->failure());
  EXPECT_EQ(answer->failure()->message, "broken");
  EXPECT_TRUE(answer->has_started());
}

TEST(AnswerAssembly, WhatNeverStartedCostsNothing) {
  const auto answer = assembly({.choices = 2});
  std::string out;
  Event waiting = ended(FinishReason::kCancelled, 0, 0);
  waiting.usage.queued_ms = 0;
  answer->push(0, waiting, out);
  EXPECT_EQ(answer->usage().prompt_tokens, 0);
  Event started = ended(FinishReason::kCancelled, 4, 1);
  started.usage.drafted = {3, 2};
  started.usage.accepted = {1, 0};
  answer->push(0, started, out);
  EXPECT_EQ(answer->usage().prompt_tokens, 10);
  EXPECT_EQ(answer->usage().output_tokens, 4);
  EXPECT_EQ(answer->cost().drafted, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(answer->cost().accepted, (std::vector<int64_t>{1, 0}));
}

TEST(AnswerAssembly, LogprobsHaveTheTokensBytes) {
  const auto answer = assembly({.logprobs = true});
  std::string out;
  Event event = said("hi");
  const int32_t token = event.tokens.front();
  event.logprobs.push_back({{token, -0.5f}, {{token, -0.5f}}});
  answer->push(0, event, out);
  answer->push(0, ended(FinishReason::kStop), out);
  answer->finish(out);
  const Json entry = Json::parse(out)["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(entry["token"], std::string(mini_tokenizer()->bytes(token)));
  EXPECT_EQ(entry["logprob"], -0.5);
  EXPECT_EQ(entry["top_logprobs"].size(), 1u);
}

}  // namespace
}  // namespace tidemill
