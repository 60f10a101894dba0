// Answers of POST /v1/messages: the message object, and its stream events.
#pragma once

#include <optional>
#include <vector>

#include "serve/answer.h"
#include "serve/http_error.h"
#include "serve/sse.h"

namespace tidemill {

// Blocks of thinking, text and tool_use with indices from 0; one is open at a time, and what begins
// another ends it. Not thread safe; calls come in the order begin, push*, finish.
class MessagesStream {
 public:
  explicit MessagesStream(AnswerHead head) : head_(std::move(head)) {}

  // message_start. How much of the prompt was cached is known at the end only.
  std::vector<StreamEvent> begin(int64_t prompt_tokens) const;
  std::vector<StreamEvent> push(const std::vector<OutputDelta>& deltas);
  // message_delta with the stop reason and all usage, message_stop. `stop`: AnswerReader::stop().
  std::vector<StreamEvent> finish(AnswerEnd end, const std::string& stop, const AnswerUsage& usage);
  // At any point, as the last.
  static std::vector<StreamEvent> fail(const HttpError& error);
  static StreamEvent ping();

 private:
  void open(OutputDelta::Kind kind, Json block, std::vector<StreamEvent>& events);
  void close(std::vector<StreamEvent>& events);
  void add(Json delta, std::vector<StreamEvent>& events) const;

  AnswerHead head_;
  int64_t index_ = -1;  // of the last block
  std::optional<OutputDelta::Kind> open_;
};

// The message object. A call that was cut is left out: half its input is none.
class MessagesAnswer {
 public:
  explicit MessagesAnswer(AnswerHead head) : head_(std::move(head)) {}

  void push(const std::vector<OutputDelta>& deltas);
  Json finish(AnswerEnd end, const std::string& stop, const AnswerUsage& usage) const;

 private:
  struct Block {
    OutputDelta::Kind kind;  // kReasoning, kContent or kToolCallBegin
    std::string text;        // of a call: its arguments
    ToolCall call;
    bool complete = true;
  };

  AnswerHead head_;
  std::vector<Block> blocks_;
};

}  // namespace tidemill
