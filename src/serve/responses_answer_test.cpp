#include "serve/responses_answer.h"

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

// The items that the deltas of a stream add up to; checks that items are balanced and that what
// "done" events repeat is what came.
Json join(const std::vector<StreamEvent>& events) {
  Json items = Json::array();
  bool open = false;
  std::string text;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json json = Json::parse(events[i].data);
    const std::string& type = events[i].name;
    EXPECT_EQ(json["type"], type);
    EXPECT_EQ(json["sequence_number"], i);
    if (json.contains("response")) continue;
    if (type == "response.output_item.added") {
      EXPECT_FALSE(open);
      EXPECT_EQ(json["output_index"], items.size());
      items.push_back(json["item"]);
      open = true;
      text.clear();
      continue;
    }
    EXPECT_TRUE(open) << type;
    EXPECT_EQ(json["output_index"], items.size() - 1);
    if (type == "response.output_item.done") {
      EXPECT_EQ(json["item"]["id"], items.back()["id"]);
      items.back() = json["item"];
      open = false;
      continue;
    }
    EXPECT_EQ(json["item_id"], items.back()["id"]);
    if (items.back()["type"] != "function_call") {
      EXPECT_EQ(json["content_index"], 0);
    }
    if (type.ends_with(".delta")) text += json["delta"].get<std::string>();
    if (type.ends_with("text.done")) {
      EXPECT_EQ(json["text"], text);
    }
    if (type.ends_with("arguments.done")) {
      EXPECT_EQ(json["arguments"], text);
    }
    if (type == "response.content_part.done") {
      EXPECT_EQ(json["part"]["text"], text);
    }
  }
  EXPECT_FALSE(open);
  return items;
}

TEST(ResponsesAnswer, EventsInOrder) {
  ResponsesAnswer answer(kHead, {{"store", false}});
  std::vector<StreamEvent> events = answer.begin();
  append(events, answer.push({{Kind::kReasoning, "R"}, {Kind::kContent, "C"}}));
  append(events, answer.push({{Kind::kToolCallBegin, "f", 0},
                              {Kind::kToolCallArguments, "{}", 0},
                              {Kind::kToolCallEnd, "", 0}}));
  append(events, answer.finish(AnswerEnd::kToolCalls, kUsage));
  std::vector<std::string> names;
  for (const StreamEvent& event : events) names.push_back(event.name.substr(9));
  EXPECT_THAT(names,
              ElementsAre("created", "in_progress", "output_item.added", "content_part.added",
                          "reasoning_text.delta", "reasoning_text.done", "content_part.done",
                          "output_item.done", "output_item.added", "content_part.added",
                          "output_text.delta", "output_text.done", "content_part.done",
                          "output_item.done", "output_item.added", "function_call_arguments.delta",
                          "function_call_arguments.done", "output_item.done", "completed"));
  const Json last = Json::parse(events.back().data)["response"];
  EXPECT_EQ(last, answer.response());
  EXPECT_EQ(last["output"], join(events));
  EXPECT_EQ(last["status"], "completed");
  EXPECT_EQ(last["store"], false);
  EXPECT_EQ(
      last["usage"].dump(),
      R"({"input_tokens":10,"input_tokens_details":{"cached_tokens":4,"cache_write_tokens":0},"output_tokens":6,)"
      R"("output_tokens_details":{"reasoning_tokens":2},"total_tokens":16})");
  EXPECT_EQ(last["output"][1]["phase"], "commentary");
  EXPECT_EQ(last["output"][2].dump(),
            R"({"id":"fc_N_2","type":"function_call","call_id":"call_00_N","name":"f",)"
            R"("arguments":"{}","status":"completed"})");
}

TEST(ResponsesAnswer, JoinedStreamIsTheCompleteAnswerForEveryCut) {
  for (const std::string& output : sample_outputs()) {
    Json whole;
    for (const size_t size : {1000, 1, 2, 3, 5, 11}) {
      AnswerReader reader({.start = Prompt::Start::kReasoning, .tools_declared = true},
                          {{.name = "f"}});
      ResponsesAnswer answer(kHead, Json::object());
      std::vector<StreamEvent> events = answer.begin();
      for (const std::string& piece : pieces_of(output, size)) {
        append(events, answer.push(reader.push(piece)));
      }
      append(events, answer.push(reader.finish()));
      append(events, answer.finish(reader.end(FinishReason::kStop), kUsage));
      const Json complete = Json::parse(to_text(answer.response()));
      EXPECT_EQ(join(events), complete["output"]) << output << " by " << size;
      if (whole.is_null()) whole = complete;
      EXPECT_EQ(complete, whole) << output << " by " << size;
    }
  }
}

TEST(ResponsesAnswer, WhatWasCutIsIncomplete) {
  ResponsesAnswer answer(kHead, Json::object());
  answer.push({{Kind::kToolCallBegin, "f", 0}, {Kind::kToolCallArguments, "{\"a", 0}});
  const auto events = answer.finish(AnswerEnd::kLength, kUsage);
  EXPECT_EQ(events.back().name, "response.incomplete");
  const Json response = answer.response();
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_EQ(response["output"][0]["arguments"], "{\"a");
}

TEST(ResponsesAnswer, FailsWithItsItemsClosed) {
  ResponsesAnswer answer(kHead, Json::object());
  std::vector<StreamEvent> events = answer.begin();
  append(events, answer.push({{Kind::kContent, "C"}}));
  append(events, answer.fail(http_error({ErrorCode::kDeadline, "late"}, true)));
  EXPECT_EQ(join(events)[0]["status"], "incomplete");
  const Json last = Json::parse(events.back().data);
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["error"].dump(), R"({"code":"server_error","message":"late"})");
}

}  // namespace
}  // namespace tidemill
