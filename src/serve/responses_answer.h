// Answers of POST /v1/responses: the stream events, and the response object that the last of them
// holds, which is also the answer without a stream.
#pragma once

#include <optional>
#include <vector>

#include "serve/answer.h"
#include "serve/http_error.h"
#include "serve/sse.h"

namespace tidemill {

// Items (reasoning, message, function_call) with indices from 0; one is open at a time. Not thread
// safe; calls come in the order begin, push*, finish or fail, response.
class ResponsesAnswer {
 public:
  // `echo`: ResponsesRequest::echo.
  ResponsesAnswer(AnswerHead head, Json echo) : head_(std::move(head)), echo_(std::move(echo)) {}

  // response.created, response.in_progress.
  std::vector<StreamEvent> begin();
  std::vector<StreamEvent> push(const std::vector<OutputDelta>& deltas);
  // response.completed or response.incomplete. An item that was cut is incomplete.
  std::vector<StreamEvent> finish(AnswerEnd end, const AnswerUsage& usage);
  // response.failed.
  std::vector<StreamEvent> fail(const HttpError& error);

  Json response() const;

 private:
  struct Item {
    OutputDelta::Kind kind;  // kReasoning, kContent or kToolCallBegin
    std::string id;
    std::string text;  // of a call: its arguments
    ToolCall call;
    std::string status = "in_progress";
    bool is_comment = false;  // a message that a call follows
  };

  static Json item_json(const Item& item, bool with_text);
  StreamEvent event(const char* type, Json fields);
  // Of the open item: its place, and `fields`.
  StreamEvent part_event(const char* type, Json fields);
  void open(Item item, std::vector<StreamEvent>& events);
  void close(const char* status, bool before_call, std::vector<StreamEvent>& events);
  void add(const char* type, const std::string& text, std::vector<StreamEvent>& events);

  AnswerHead head_;
  Json echo_;
  int64_t sequence_ = 0;
  std::vector<Item> items_;
  bool open_ = false;  // the last item
  std::string status_ = "in_progress";
  Json details_;  // incomplete_details
  Json error_;
  Json usage_;
};

}  // namespace tidemill
