// One protocol's answer, streamed or whole, behind one interface.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/answer.h"
#include "serve/http/http.h"
#include "serve/http_error.h"
#include "text/json.h"

namespace tidemill {

enum class Protocol : uint8_t { kChat, kCompletions, kMessages, kResponses };

// The error envelope of the protocol's clients.
Json error_json(Protocol protocol, const HttpError& error);
HttpResponse error_response(Protocol protocol, const HttpError& error);

inline constexpr const char* kJsonType = "application/json";
inline constexpr const char* kStreamType = "text/event-stream; charset=utf-8";
// What a stream of events begins with.
HttpResponse stream_head();

struct SinkOptions {
  Protocol protocol = Protocol::kChat;
  bool stream = false;
  AnswerHead head;
  int64_t choices = 1;  // of all prompts
  bool logprobs = false;
  bool include_usage = false;
  int64_t prompt_tokens = 0;
  Json echo;  // ResponsesRequest::echo
};

// Calls come in the order begin, push* and end for each choice, finish; fail() at any point instead
// of what would follow. What goes to the client now is appended to `out`: of a stream events, of a
// whole answer nothing before finish(), which writes the JSON. Not thread safe.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;

  virtual void begin(std::string& out) = 0;
  // Completions have content only.
  virtual void push(int64_t choice, const std::vector<OutputDelta>& deltas,
                    std::vector<TokenText> logprobs, std::string& out) = 0;
  // `stop`: the stop string that ended it, or "".
  virtual void end(int64_t choice, AnswerEnd end, const std::string& stop, std::string& out) = 0;
  virtual void finish(const AnswerUsage& usage, std::string& out) = 0;
  // Of a stream: its last events. Of a whole answer: the envelope.
  virtual void fail(const HttpError& error, std::string& out) = 0;
  // Keeps a silent stream open; of a whole answer nothing.
  virtual void keep_alive(std::string& out) = 0;
};

std::unique_ptr<AnswerSink> make_sink(SinkOptions options);

}  // namespace tidemill
