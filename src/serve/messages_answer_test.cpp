#include "serve/messages_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/outputs_for_tests.h"

namespace tidemill {
namespace {

using Kind = OutputDelta::Kind;
using testing::ElementsAre;

const AnswerHead kHead = {.nonce = "N", .created = 7, .model = "m", .thinking = true};

const AnswerUsage kUsage = [] {
  AnswerUsage usage;
  usage.add_choice({.prompt_tokens = 10, .cached_tokens = 4, .output_tokens = 6}, 2);
  return usage;
}();

void append(std::vector<StreamEvent>& to, std::vector<StreamEvent> from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

// What a client makes of a stream; checks that blocks are balanced and deltas fit their block.
Json join(const std::vector<StreamEvent>& events) {
  Json message;
  Json* block = nullptr;
  std::string input;
  bool stopped = false;
  for (const StreamEvent& event : events) {
    const Json json = Json::parse(event.data);
    EXPECT_EQ(json["type"], event.name);
    EXPECT_FALSE(stopped);
    if (event.name == "message_start") {
      EXPECT_TRUE(message.is_null());
      message = json["message"];
      EXPECT_EQ(message["usage"]["output_tokens"], 0);
    } else if (event.name == "content_block_start") {
      EXPECT_EQ(block, nullptr);
      EXPECT_EQ(json["index"], message["content"].size());
      message["content"].push_back(json["content_block"]);
      block = &message["content"].back();
      input.clear();
    } else if (event.name == "content_block_delta") {
      if (!block) {
        ADD_FAILURE() << "a delta outside of a block";
        break;
      }
      EXPECT_EQ(json["index"], message["content"].size() - 1);
      const Json& delta = json["delta"];
      const std::string type = (*block)["type"];
      if (delta["type"] == "input_json_delta") {
        EXPECT_EQ(type, "tool_use");
        input += delta["partial_json"].get<std::string>();
        continue;
      }
      const char* key = delta["type"] == "signature_delta" ? "signature" : type.c_str();
      if (delta["type"] != "signature_delta") {
        EXPECT_EQ(delta["type"], type + "_delta");
      }
      (*block)[key] = (*block)[key].get<std::string>() + delta[key].get<std::string>();
    } else if (event.name == "content_block_stop") {
      EXPECT_NE(block, nullptr);
      EXPECT_EQ(json["index"], message["content"].size() - 1);
      if ((*block)["type"] == "tool_use") {
        const auto parsed = parse_json(input);
        (*block)["input"] = parsed ? *parsed : Json({{"arguments", input}});
      }
      block = nullptr;
    } else if (event.name == "message_delta") {
      EXPECT_EQ(block, nullptr);
      message.update(json["delta"]);
      message["usage"] = json["usage"];
    } else if (event.name == "message_stop") {
      stopped = true;
    } else {
      EXPECT_EQ(event.name, "ping");
    }
  }
  EXPECT_TRUE(stopped);
  return message;
}

TEST(MessagesStream, EventsInOrder) {
  MessagesStream stream(kHead);
  std::vector<StreamEvent> events = stream.begin(10);
  append(events, stream.push({{Kind::kReasoning, "R"}, {Kind::kContent, "C"}}));
  append(events, stream.push({{Kind::kToolCallBegin, "f", 0},
                              {Kind::kToolCallArguments, "{}", 0},
                              {Kind::kToolCallEnd, "", 0}}));
  append(events, stream.finish(AnswerEnd::kToolCalls, "", kUsage));
  std::vector<std::string> names;
  for (const StreamEvent& event : events) names.push_back(event.name);
  EXPECT_THAT(names, ElementsAre("message_start", "content_block_start", "ping",
                                 "content_block_delta", "content_block_delta", "content_block_stop",
                                 "content_block_start", "content_block_delta", "content_block_stop",
                                 "content_block_start", "content_block_delta", "content_block_stop",
                                 "message_delta", "message_stop"));
  EXPECT_EQ(join(events).dump(),
            R"({"id":"msg_N","type":"message","role":"assistant","model":"m","content":[)"
            R"({"type":"thinking","thinking":"R","signature":"msg_N"},{"type":"text","text":"C"},)"
            R"({"type":"tool_use","id":"call_00_N","name":"f","input":{}}],)"
            R"("stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":6,)"
            R"("cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":6}})");
}

TEST(MessagesAnswer, JoinedStreamIsTheCompleteAnswerForEveryCut) {
  for (const std::string& output : sample_outputs()) {
    Json whole;
    for (const size_t size : {1000, 1, 2, 3, 5, 11}) {
      AnswerReader reader({.start = Prompt::Start::kReasoning, .tools_declared = true},
                          {{.name = "f"}});
      MessagesStream stream(kHead);
      MessagesAnswer answer(kHead);
      std::vector<StreamEvent> events = stream.begin(10);
      const auto take = [&](const std::vector<OutputDelta>& deltas) {
        append(events, stream.push(deltas));
        answer.push(deltas);
      };
      for (const std::string& piece : pieces_of(output, size)) take(reader.push(piece));
      take(reader.finish());
      const AnswerEnd end = reader.end(FinishReason::kStop);
      append(events, stream.finish(end, reader.stop(), kUsage));
      const Json complete = Json::parse(to_text(answer.finish(end, reader.stop(), kUsage)));
      Json joined = join(events);
      // A stream cannot take back the call that was cut.
      if (joined["content"].size() > complete["content"].size()) {
        EXPECT_EQ(joined["stop_reason"], "max_tokens");
        EXPECT_EQ(joined["content"].back()["type"], "tool_use");
        joined["content"].erase(joined["content"].size() - 1);
      }
      EXPECT_EQ(joined, complete) << output << " by " << size;
      if (whole.is_null()) whole = complete;
      EXPECT_EQ(complete, whole) << output << " by " << size;
    }
  }
}

TEST(MessagesAnswer, SaysWhichStopSequenceWasMet) {
  for (size_t size = 1; size < 20; ++size) {
    AnswerReader reader({.start = Prompt::Start::kReasoning, .stop = {"AB", "END", "B"}}, {});
    MessagesAnswer answer(kHead);
    for (const std::string& piece : pieces_of("AB END</think>\xC3\xA9 EEND B", size)) {
      answer.push(reader.push(piece));
    }
    answer.push(reader.finish());
    const AnswerEnd end = reader.end(FinishReason::kCancelled);
    const Json json = answer.finish(end, reader.stop(), kUsage);
    EXPECT_EQ(json["stop_reason"], "stop_sequence");
    EXPECT_EQ(json["stop_sequence"], "END");
    EXPECT_EQ(json["content"][0]["thinking"], "AB END");
    EXPECT_EQ(json["content"][1]["text"], "\xC3\xA9 E");
  }
}

TEST(MessagesAnswer, ACallThatWasCutIsLeftOut) {
  MessagesAnswer answer(kHead);
  answer.push({{Kind::kContent, "C"},
               {Kind::kToolCallBegin, "f", 0},
               {Kind::kToolCallArguments, "{\"a\": 1}", 0}});
  const Json json = answer.finish(AnswerEnd::kLength, "", kUsage);
  EXPECT_EQ(json["stop_reason"], "max_tokens");
  EXPECT_EQ(json["content"].dump(), R"([{"type":"text","text":"C"}])");
}

TEST(MessagesAnswer, InputThatIsNoObjectBecomesOne) {
  MessagesAnswer answer(kHead);
  answer.push({{Kind::kToolCallBegin, "f", 0},
               {Kind::kToolCallArguments, "{\"a\": nope}", 0},
               {Kind::kToolCallEnd, "", 0}});
  EXPECT_EQ(answer.finish(AnswerEnd::kToolCalls, "", kUsage)["content"][0]["input"].dump(),
            R"({"arguments":"{\"a\": nope}"})");
}

TEST(MessagesStream, AnErrorIsAnEvent) {
  const auto events = MessagesStream::fail(http_error({ErrorCode::kDeadline, "late"}, true));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].name, "error");
  EXPECT_EQ(events[0].data,
            R"({"type":"error","error":{"type":"timeout_error","message":"late"}})");
}

}  // namespace
}  // namespace tidemill
