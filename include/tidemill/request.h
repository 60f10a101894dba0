// What goes into an engine and what comes out. All of it is values: nothing here points into the
// engine, and whoever holds an event holds nothing of the engine's.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tidemill/error.h"
#include "tidemill/sampling.h"

namespace tidemill {

using RequestId = uint64_t;
using TenantId = uint64_t;

// What an answer has to look like. Compiled off the step loop; a constraint that cannot be compiled
// ends its request with FinishReason::kRefused and the reason.
struct Constraint {
  enum class Kind : uint8_t {
    kJsonObject,  // any JSON object
    kJsonSchema,  // `text`: a JSON Schema
    kRegex,       // `text`: matched by the whole answer
    kEbnf,        // `text`: a grammar (GBNF), from its rule `root`
    kToolCalls,   // calls of the tools in `text`: [{"name": .., "parameters": SCHEMA}, ..]
  };
  enum class Choice : uint8_t { kAuto, kRequired, kNamed };

  Kind kind = Kind::kJsonObject;
  std::string text;
  // kToolCalls: free until a call begins; one call at least; calls of the only tool.
  Choice choice = Choice::kAuto;
  bool strict = false;   // arguments follow the schemas
  bool parallel = true;  // more than one call
};

// Where the prompt leaves the answer. In its reasoning constraints and stop strings do not apply;
// they do from the first token after </think>.
enum class AnswerStart : uint8_t { kContent, kReasoning, kToolCalls };

struct Request {
  RequestId id = 0;  // 0: the engine chooses one. Otherwise none that is in the engine.
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int64_t max_tokens = 256;
  // Answers to the same prompt, 1 to kMaxChoices; they share the prompt's blocks. Choice k draws
  // with seed + k.
  int64_t n = 1;
  std::vector<int32_t> stop_tokens;  // besides the model's own; not part of the answer
  std::vector<std::string> stop;     // not empty each; not part of the answer
  bool ignore_end = false;           // the model's end-of-sequence ids do not stop
  AnswerStart start = AnswerStart::kContent;
  std::optional<Constraint> constraint;
  // Drafts verified per step at most; -1: as many as Options::drafts wants. Never changes tokens.
  int64_t drafts = -1;

  std::string tag;  // kind of task, for reports
  TenantId tenant = 0;
  int32_t priority = 0;  // -100 to 100; the lower, the sooner
  double timeout_ms = std::numeric_limits<double>::infinity();  // for the whole answer
  // Cached state is shared among requests of an equal salt only.
  std::string cache_salt;

  static constexpr int64_t kMaxChoices = 128;
  static constexpr int64_t kMaxStopStrings = 64;
  static constexpr int64_t kMaxStopBytes = 4096;  // of all stop strings
  static constexpr int64_t kMaxListed = 1024;     // stop_tokens; entries of logit_bias
};

enum class FinishReason : uint8_t {
  kNone,       // the answer goes on
  kStop,       // an end-of-sequence or stop token, or a stop string
  kLength,     // max_tokens or the context
  kCancelled,  // by cancel()
  kRefused,    // never started: Event::error says why (deadline, constraint)
  kError,      // ended in the middle: Event::error
};
std::string_view to_string(FinishReason reason);

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;  // -inf for a masked token
};

// Of one token of the answer, before temperature and truncation.
struct LogProbabilities {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // most likely first, lower id first among equals
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt: their state was there
  int64_t output_tokens = 0;
  std::vector<int64_t> drafted;   // verified, by position in the step
  std::vector<int64_t> accepted;  // of them
  int64_t steps = 0;              // that gave output tokens
  int64_t preemptions = 0;
  double queued_ms = 0;  // from submit to the start
  double first_token_ms = 0;
  double total_ms = 0;
  std::string cache_text;  // one line: what of the prompt was found, and why no more
};

// The next tokens of one answer, in order.
struct Event {
  RequestId id = 0;
  int64_t choice = 0;
  std::vector<int32_t> tokens;  // up to the one that completes a stop string
  // Whole characters. Text that may be the start of a stop string is held back; a stop string and
  // what follows it never appear.
  std::string text;
  std::vector<LogProbabilities> logprobs;  // of `tokens`, when asked for
  // Set in the last event of a choice, which every choice of an accepted request has exactly once.
  FinishReason finish = FinishReason::kNone;
  // The last event of the whole request: its id may be used again.
  bool last = false;
  Error error;  // kRefused and kError
  Usage usage;  // in the last event of a choice
};

}  // namespace tidemill
