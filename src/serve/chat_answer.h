// Answers of POST /v1/chat/completions: as one JSON, and as stream events. Both are fed with the
// same calls, and the joined stream is the complete answer.
#pragma once

#include <vector>

#include "serve/answer.h"
#include "serve/http_error.h"
#include "serve/sse.h"

namespace tidemill {

struct ChatAnswerOptions {
  AnswerHead head;
  int64_t choices = 1;
  bool logprobs = false;
  bool include_usage = false;  // streams: a last chunk without choices, and "usage": null before
};

// {"prompt_tokens", .., "prompt_cache_hit_tokens", ..}; cached_tokens is there on a miss too.
Json chat_usage(const AnswerUsage& usage, bool thinking);
// stop, length, tool_calls. A choice that failed or was cancelled has none.
Json chat_finish_reason(AnswerEnd end);

// chat.completion.chunk events. Not thread safe; calls of one choice come in the order begin,
// push*, end, those of different choices in any.
class ChatStream {
 public:
  explicit ChatStream(ChatAnswerOptions options);

  // The role chunk.
  std::vector<StreamEvent> begin(int64_t choice);
  // Log-probabilities go out with the first chunk from now on; text may be held back longer.
  std::vector<StreamEvent> push(int64_t choice, const std::vector<OutputDelta>& deltas,
                                std::vector<TokenText> logprobs = {});
  // The chunk with the finish reason.
  std::vector<StreamEvent> end(int64_t choice, AnswerEnd end);
  // After all choices: usage if wanted, and [DONE].
  std::vector<StreamEvent> finish(const AnswerUsage& usage) const;
  // At any point, as the last: the error and [DONE].
  static std::vector<StreamEvent> fail(const HttpError& error);

 private:
  StreamEvent chunk(int64_t choice, Json delta, Json finish_reason);
  StreamEvent text_chunk(int64_t choice, const OutputDelta& delta) const;
  Json envelope(Json choices) const;

  ChatAnswerOptions options_;
  std::string before_choice_;  // of every chunk's text
  std::string behind_choice_;
  std::vector<std::vector<TokenText>> logprobs_;  // of each choice, not sent yet
};

// The chat.completion object.
class ChatCompletion {
 public:
  explicit ChatCompletion(ChatAnswerOptions options);

  void push(int64_t choice, const std::vector<OutputDelta>& deltas,
            std::vector<TokenText> logprobs = {});
  void end(int64_t choice, AnswerEnd end);
  Json finish(const AnswerUsage& usage) const;

 private:
  struct Choice {
    std::string reasoning;
    std::string content;
    std::vector<ToolCall> calls;
    std::vector<TokenText> logprobs;
    AnswerEnd end = AnswerEnd::kFailed;
  };
  Json message(const Choice& choice) const;

  ChatAnswerOptions options_;
  std::vector<Choice> choices_;
};

}  // namespace tidemill
