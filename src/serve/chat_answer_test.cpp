#include "serve/chat_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "serve/outputs_for_tests.h"

namespace tidemill {
namespace {

using Kind = OutputDelta::Kind;
using testing::ElementsAre;

ChatAnswerOptions options(bool thinking = true) {
  return {.head = {.nonce = "N", .created = 7, .model = "m", .thinking = thinking}};
}

const AnswerUsage kUsage = [] {
  AnswerUsage usage;
  usage.add_choice({.prompt_tokens = 10, .cached_tokens = 4, .output_tokens = 6}, 2);
  return usage;
}();

std::vector<std::string> data(const std::vector<StreamEvent>& events) {
  std::vector<std::string> out;
  for (const StreamEvent& event : events) {
    EXPECT_EQ(event.name, "");
    out.push_back(event.data);
  }
  return out;
}

void append(std::vector<StreamEvent>& to, std::vector<StreamEvent> from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

// What a client makes of a stream: the complete answer.
Json join(const std::vector<StreamEvent>& events, int64_t choices, bool thinking) {
  Json joined;
  std::vector<Json> messages(static_cast<size_t>(choices));
  std::vector<Json> finishes(messages.size());
  std::vector<Json> logprobs(messages.size());
  Json usage;
  EXPECT_EQ(events.back().data, kStreamDone);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json chunk = Json::parse(events[i].data);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    if (joined.is_null()) {
      joined = chunk;
      joined["object"] = "chat.completion";
    }
    if (chunk.contains("usage") && !chunk["usage"].is_null()) {
      EXPECT_TRUE(chunk["choices"].empty());
      usage = chunk["usage"];
      continue;
    }
    EXPECT_EQ(chunk["choices"].size(), 1u);
    const Json& choice = chunk["choices"][0];
    const auto index = choice["index"].get<size_t>();
    EXPECT_TRUE(finishes[index].is_null()) << "a chunk after the last";
    finishes[index] = choice["finish_reason"];
    const Json& delta = choice["delta"];
    Json& message = messages[index];
    if (message.is_null()) {
      EXPECT_EQ(delta["role"], "assistant");
      message = {{"role", "assistant"}, {"content", ""}};
      if (thinking) message["reasoning_content"] = "";
    }
    for (const char* key : {"content", "reasoning_content"}) {
      if (!delta.contains(key) || delta[key].is_null()) continue;
      message[key] = message[key].get<std::string>() + delta[key].get<std::string>();
    }
    if (!choice["logprobs"].is_null()) {
      for (const Json& token : choice["logprobs"]["content"]) logprobs[index].push_back(token);
    }
    if (!delta.contains("tool_calls")) continue;
    for (const Json& piece : delta["tool_calls"]) {
      const auto call = piece["index"].get<size_t>();
      if (piece.contains("id")) {
        EXPECT_EQ(call, message.contains("tool_calls") ? message["tool_calls"].size() : 0u);
        message["tool_calls"].push_back(piece);
      } else {
        Json& arguments = message["tool_calls"].at(call)["function"]["arguments"];
        arguments =
            arguments.get<std::string>() + piece["function"]["arguments"].get<std::string>();
      }
    }
  }
  joined["choices"] = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json tokens =
        logprobs[i].is_null() ? Json() : Json({{"content", logprobs[i]}, {"refusal", nullptr}});
    joined["choices"].push_back({{"index", i},
                                 {"message", messages[i]},
                                 {"logprobs", tokens},
                                 {"finish_reason", finishes[i]}});
  }
  joined["usage"] = usage;
  return joined;
}

TEST(ChatStream, ChunksOfAThinkingAnswer) {
  ChatStream stream(options());
  EXPECT_THAT(
      data(stream.begin(0)),
      ElementsAre(
          R"({"id":"chatcmpl-N","object":"chat.completion.chunk","created":7,"model":"m","choices":)"
          R"([{"index":0,"delta":{"role":"assistant","content":null,"reasoning_content":""},)"
          R"("logprobs":null,"finish_reason":null}]})"));
  const auto deltas = [&](std::vector<OutputDelta> of) {
    std::vector<std::string> out;
    for (const StreamEvent& event : stream.push(0, of)) {
      out.push_back(Json::parse(event.data)["choices"][0]["delta"].dump());
    }
    return out;
  };
  EXPECT_THAT(deltas({{Kind::kReasoning, "R"}, {Kind::kContent, "C"}}),
              ElementsAre(R"({"content":null,"reasoning_content":"R"})",
                          R"({"content":"C","reasoning_content":null})"));
  EXPECT_THAT(deltas({{Kind::kToolCallBegin, "f", 1},
                      {Kind::kToolCallArguments, "{}", 1},
                      {Kind::kToolCallEnd, "", 1}}),
              ElementsAre(R"({"tool_calls":[{"index":1,"id":"call_01_N","type":"function",)"
                          R"("function":{"name":"f","arguments":""}}]})",
                          R"({"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]})"));
  EXPECT_THAT(
      data(stream.end(0, AnswerEnd::kToolCalls)),
      ElementsAre(testing::HasSubstr(
          R"({"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"tool_calls"})")));
  EXPECT_THAT(data(stream.finish(kUsage)), ElementsAre("[DONE]"));
}

// What a chunk of text is as Json.
std::string text_chunk(const ChatAnswerOptions& of, int64_t choice, const OutputDelta& delta) {
  Json json;
  if (delta.kind == Kind::kReasoning) {
    json = {{"content", nullptr}, {"reasoning_content", delta.text}};
  } else {
    json = {{"content", delta.text}};
    if (of.head.thinking) json["reasoning_content"] = nullptr;
  }
  Json chunk = {{"id", "chatcmpl-" + of.head.nonce},
                {"object", "chat.completion.chunk"},
                {"created", of.head.created},
                {"model", of.head.model},
                {"choices", Json::array({{{"index", choice},
                                          {"delta", json},
                                          {"logprobs", nullptr},
                                          {"finish_reason", nullptr}}})}};
  if (of.include_usage) chunk["usage"] = nullptr;
  return to_text(chunk);
}

TEST(ChatStream, TextIsWrittenAsTheJsonWouldBe) {
  std::vector<std::string> texts = {"", "tide", "\xE6\xB0\xB4\xE8\xBB\x8A \xF0\x9F\x8C\x8A",
                                    "\xE2\x80\xA8\xEF\xBB\xBF", std::string(2000, '\n')};
  for (int first = 0; first < 256; ++first) {
    texts.push_back({static_cast<char>(first)});
    for (int second = 0; second < 256; ++second) {
      texts.push_back({'a', static_cast<char>(first), static_cast<char>(second), 'z'});
    }
  }
  // Escapes, and whole, cut and overlong characters, surrogates among them, next to each other.
  const std::vector<std::string> parts = {"\"",
                                          "\\",
                                          "/",
                                          "\n",
                                          "\r",
                                          std::string(1, '\0'),
                                          "\x1f",
                                          "\x7f",
                                          "x",
                                          "\xC3\xA9",
                                          "\xC3",
                                          "\xE2\x80\xA6",
                                          "\xE2\x80",
                                          "\xF0\x9F\x8C\x8A",
                                          "\xF0\x9F\x8C",
                                          "\xF0",
                                          "\x80",
                                          "\xC0\x80",
                                          "\xED\xA0\x80",
                                          "\xE0\x80\x80",
                                          "\xF4\x90\x80\x80",
                                          "\xFF"};
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (size_t left = 1 + random() % 12; left > 0; --left) text += parts[random() % parts.size()];
    texts.push_back(std::move(text));
  }
  for (const std::string model : {"m", "a \"[]\" \\ \xff"}) {
    for (const size_t variant : {0, 1, 2, 3}) {
      ChatAnswerOptions of = options(variant % 2 == 1);
      of.head.model = model;
      of.include_usage = variant >= 2;
      of.choices = 128;
      ChatStream stream(of);
      for (size_t i = variant; i < texts.size(); i += 4) {
        const OutputDelta delta = {i % 3 == 0 ? Kind::kReasoning : Kind::kContent, texts[i]};
        const auto choice = static_cast<int64_t>(i % 128);
        ASSERT_THAT(data(stream.push(choice, {delta})), ElementsAre(text_chunk(of, choice, delta)));
      }
    }
  }
}

TEST(ChatStream, UsageComesLastWithoutChoices) {
  ChatAnswerOptions with_usage = options();
  with_usage.include_usage = true;
  ChatStream stream(with_usage);
  EXPECT_TRUE(Json::parse(stream.begin(0)[0].data).at("usage").is_null());
  const auto last = data(stream.finish(kUsage));
  ASSERT_EQ(last.size(), 2u);
  const Json chunk = Json::parse(last[0]);
  EXPECT_EQ(chunk["choices"], Json::array());
  EXPECT_EQ(chunk["usage"].dump(),
            R"({"prompt_tokens":10,"completion_tokens":6,"total_tokens":16,)"
            R"("prompt_tokens_details":{"cached_tokens":4},"prompt_cache_hit_tokens":4,)"
            R"("prompt_cache_miss_tokens":6,"completion_tokens_details":{"reasoning_tokens":2}})");
  EXPECT_EQ(last[1], "[DONE]");
}

TEST(ChatStream, AnErrorEndsWithDone) {
  const auto events = data(ChatStream::fail(http_error({ErrorCode::kDeadline, "late"}, true)));
  EXPECT_THAT(events, ElementsAre(testing::StartsWith(R"({"error":{"message":"late")"), "[DONE]"));
}

TEST(ChatFinishReason, Names) {
  EXPECT_EQ(chat_finish_reason(AnswerEnd::kStop), "stop");
  EXPECT_EQ(chat_finish_reason(AnswerEnd::kStopString), "stop");
  EXPECT_EQ(chat_finish_reason(AnswerEnd::kLength), "length");
  EXPECT_EQ(chat_finish_reason(AnswerEnd::kToolCalls), "tool_calls");
  EXPECT_TRUE(chat_finish_reason(AnswerEnd::kFailed).is_null());
}

TEST(ChatUsage, CachedTokensAreThereOnAMiss) {
  const Json usage = chat_usage({}, false);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_FALSE(usage.contains("completion_tokens_details"));
}

std::vector<TokenText> token(const std::string& text) {
  return {{.text = text, .logprob = -0.5f, .top = {{text, -0.5f}, {"x", -INFINITY}}}};
}

// The joined stream is the complete answer, and neither depends on where the output was cut.
void expect_joined(const std::string& output, size_t size, bool thinking, const Json& whole) {
  ChatAnswerOptions all = options(thinking);
  all.include_usage = true;
  all.logprobs = true;
  const OutputParserOptions parser = {
      .start = thinking ? Prompt::Start::kReasoning : Prompt::Start::kContent,
      .tools_declared = true};
  AnswerReader reader(parser, {{.name = "f"}});
  ChatStream stream(all);
  ChatCompletion completion(all);
  std::vector<StreamEvent> events = stream.begin(0);
  const auto take = [&](const std::vector<OutputDelta>& deltas, std::vector<TokenText> logprobs) {
    append(events, stream.push(0, deltas, logprobs));
    completion.push(0, deltas, std::move(logprobs));
  };
  for (const std::string& piece : pieces_of(output, size)) take(reader.push(piece), token(piece));
  take(reader.finish(), {});
  const AnswerEnd end = reader.end(FinishReason::kStop);
  append(events, stream.end(0, end));
  append(events, stream.finish(kUsage));
  completion.end(0, end);

  Json complete = Json::parse(to_text(completion.finish(kUsage)));
  if (complete["choices"][0]["logprobs"]["content"].empty()) {
    complete["choices"][0]["logprobs"] = nullptr;  // of an empty output a stream has none
  }
  EXPECT_EQ(join(events, 1, thinking), complete) << output << " by " << size;
  if (!whole.is_null()) {
    EXPECT_EQ(complete["choices"][0]["message"], whole["message"]) << output << " by " << size;
    EXPECT_EQ(complete["choices"][0]["finish_reason"], whole["finish_reason"]);
  }
}

TEST(ChatAnswer, JoinedStreamIsTheCompleteAnswerForEveryCut) {
  for (const std::string& output : sample_outputs()) {
    for (const bool thinking : {true, false}) {
      AnswerReader reader({.start = thinking ? Prompt::Start::kReasoning : Prompt::Start::kContent,
                           .tools_declared = true},
                          {{.name = "f"}});
      ChatCompletion completion(options(thinking));
      completion.push(0, reader.push(output));
      completion.push(0, reader.finish());
      completion.end(0, reader.end(FinishReason::kStop));
      const Json whole = Json::parse(to_text(completion.finish(kUsage)))["choices"][0];
      for (const size_t size : {1, 2, 3, 5, 11, 1000}) {
        expect_joined(output, size, thinking, whole);
      }
    }
  }
}

TEST(ChatAnswer, ChoicesMayInterleave) {
  ChatAnswerOptions two = options(false);
  two.choices = 2;
  two.include_usage = true;
  ChatStream stream(two);
  ChatCompletion completion(two);
  std::vector<StreamEvent> events;
  append(events, stream.begin(1));
  append(events, stream.begin(0));
  for (const int64_t choice : {0, 1, 1, 0}) {
    const std::vector<OutputDelta> deltas = {{Kind::kContent, choice == 0 ? "a" : "b"}};
    append(events, stream.push(choice, deltas));
    completion.push(choice, deltas);
  }
  append(events, stream.end(1, AnswerEnd::kStop));
  append(events, stream.end(0, AnswerEnd::kLength));
  append(events, stream.finish(kUsage));
  completion.end(1, AnswerEnd::kStop);
  completion.end(0, AnswerEnd::kLength);
  const Json complete = completion.finish(kUsage);
  EXPECT_EQ(join(events, 2, false), complete);
  EXPECT_EQ(complete["choices"][0]["message"]["content"], "aa");
  EXPECT_EQ(complete["choices"][1]["finish_reason"], "stop");
}

TEST(ChatAnswer, LogProbabilities) {
  ChatAnswerOptions with = options(false);
  with.logprobs = true;
  ChatStream stream(with);
  // Held back with the text: they come with the next chunk.
  EXPECT_TRUE(stream.push(0, {}, token("\xC3\xA9")).empty());
  const auto events = stream.push(0, {{Kind::kContent, "e"}, {Kind::kContent, "f"}});
  EXPECT_EQ(
      Json::parse(events[0].data)["choices"][0]["logprobs"]["content"].dump(),
      R"([{"token":")"
      "\xC3\xA9"
      R"(","logprob":-0.5,"bytes":[195,169],"top_logprobs":[{"token":")"
      "\xC3\xA9"
      R"(","logprob":-0.5,"bytes":[195,169]},{"token":"x","logprob":-9999.0,"bytes":[120]}]}])");
  EXPECT_TRUE(Json::parse(events[1].data)["choices"][0]["logprobs"].is_null());
}

}  // namespace
}  // namespace tidemill
