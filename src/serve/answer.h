// One answer on its way from the engine's events to a protocol's JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "serve/generation.h"
#include "text/output_parser.h"
#include "tidemill/request.h"

namespace tidemill {

// What all JSON of one answer shares.
struct AnswerHead {
  std::string nonce;    // at least 20 random characters a-z A-Z 0-9; ids are made of it
  int64_t created = 0;  // seconds since 1970
  std::string model;
  bool thinking = false;
};

// Of all choices of a request.
struct AnswerUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;     // of the prompt
  int64_t output_tokens = 0;     // with reasoning, its end and the end of the answer
  int64_t reasoning_tokens = 0;  // of the output

  // The choices of a request share its prompt, which was computed for the one that found least.
  void add_choice(const Usage& usage, int64_t reasoning);
  // Another prompt of the same body.
  void add_request(const AnswerUsage& other);

 private:
  bool has_choice_ = false;
};

enum class AnswerEnd : uint8_t {
  kStop,        // by the model or a stop token
  kStopString,  // seen by the parser
  kToolCalls,   // calls, all complete
  kLength,      // also an answer that ended inside a call
  kCancelled,
  kFailed,
};

// One token with its log-probability, as text.
struct TokenText {
  std::string text;  // bytes; need not be whole characters
  float logprob = 0.0f;
  std::vector<std::pair<std::string, float>> top;
};

// Arguments of a call as the tool's schema wants them. A model that sees its schema as one value
// writes {"arguments": {..}}; unless the schema has such a field, the object inside is what it
// meant. Such a call is held back to its end; all others pass piece by piece.
class ToolArguments {
 public:
  explicit ToolArguments(bool may_be_wrapped) : undecided_(may_be_wrapped) {}

  std::string push(std::string_view piece);
  // The call is complete (it may be unwrapped) or was cut.
  std::string finish(bool complete);

 private:
  bool undecided_;  // so far all is the beginning of a wrapper
  std::string held_;
};

// Text to deltas. Not thread safe; one for each choice.
class AnswerReader {
 public:
  AnswerReader(const OutputParserOptions& options, const std::vector<Tool>& tools);
  explicit AnswerReader(const ConversationRequest& request)
      : AnswerReader(request.parser, request.conversation.tools) {}

  // As OutputParser; no delta is without text but the begin and the end of a call. An end comes
  // for complete calls only.
  std::vector<OutputDelta> push(std::string_view text);
  std::vector<OutputDelta> finish();

  // The answer is over whatever the engine still makes: its choice should be cancelled.
  bool complete() const { return was_complete_ || parser_.done(); }
  // The stop string that ended the answer, the first listed of those that end together; "": none.
  const std::string& stop() const { return stop_; }
  // `reason`: of the last event. After finish().
  AnswerEnd end(FinishReason reason) const;

 private:
  std::vector<OutputDelta> parse(std::string_view text);
  std::vector<OutputDelta> rewrite(std::vector<OutputDelta> deltas);

  OutputParser parser_;
  std::vector<std::string> stops_;
  std::string tail_;  // with stops_: the last bytes, as many as the longest has
  std::string stop_;
  std::unordered_set<std::string> takes_arguments_;  // tools with a field of that name
  ToolArguments arguments_{false};
  int call_ = -1;              // the open one
  bool was_complete_ = false;  // before finish()
};

// Counts the tokens before the end of the reasoning.
class ReasoningCount {
 public:
  // `ends`: the ids of </think> and, with tools, of ｜DSML｜.
  ReasoningCount(AnswerStart start, std::vector<int32_t> ends)
      : ends_(std::move(ends)), open_(start == AnswerStart::kReasoning) {}

  void push(const std::vector<int32_t>& tokens);
  int64_t count() const { return count_; }

 private:
  std::vector<int32_t> ends_;
  bool open_;
  int64_t count_ = 0;
};

// Compact JSON; bytes that are no UTF-8 become U+FFFD.
std::string to_text(const Json& json);

// "call_00_" and what makes it unique among the answers of a server.
std::string tool_call_id(const AnswerHead& head, int64_t choice, int index);

}  // namespace tidemill
