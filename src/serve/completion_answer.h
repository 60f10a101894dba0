// Answers of POST /v1/completions, as one JSON and as stream events. The text is that of the
// engine's events: whole characters, and nothing in it is parsed.
#pragma once

#include <vector>

#include "serve/answer.h"
#include "serve/http_error.h"
#include "serve/sse.h"

namespace tidemill {

struct CompletionAnswerOptions {
  AnswerHead head;
  int64_t choices = 1;  // of all prompts; choice k of prompt p has the index p * n + k
  bool logprobs = false;
  bool include_usage = false;
};

// text_completion events. Not thread safe.
class CompletionStream {
 public:
  explicit CompletionStream(CompletionAnswerOptions options);

  // Nothing when there is neither text nor a log-probability. An echo is the first push.
  std::vector<StreamEvent> push(int64_t choice, const std::string& text,
                                const std::vector<TokenText>& logprobs = {});
  std::vector<StreamEvent> end(int64_t choice, AnswerEnd end);
  std::vector<StreamEvent> finish(const AnswerUsage& usage) const;
  static std::vector<StreamEvent> fail(const HttpError& error);

 private:
  StreamEvent chunk(int64_t choice, const std::string& text, Json logprobs, Json finish) const;

  CompletionAnswerOptions options_;
  std::vector<int64_t> offsets_;  // of each choice: characters of the tokens sent
};

// The text_completion object.
class Completion {
 public:
  explicit Completion(CompletionAnswerOptions options);

  void push(int64_t choice, const std::string& text, std::vector<TokenText> logprobs = {});
  void end(int64_t choice, AnswerEnd end);
  Json finish(const AnswerUsage& usage) const;

 private:
  struct Choice {
    std::string text;
    std::vector<TokenText> logprobs;
    AnswerEnd end = AnswerEnd::kFailed;
  };

  CompletionAnswerOptions options_;
  std::vector<Choice> choices_;
};

}  // namespace tidemill
