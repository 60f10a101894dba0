// What the bodies of all protocols come to: a prompt, the engine's request, and how to answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serve/fields.h"
#include "text/output_parser.h"
#include "text/prompt.h"
#include "tidemill/request.h"

namespace tidemill {

// How bodies are read, by the server's configuration.
struct RequestPolicy {
  SamplingParams defaults;  // the checkpoint's
  // The hosted API's rule: thinking draws at temperature 1 and top_p >= 0.95, other answers at
  // top_p 1, penalties have no effect. False: all is honoured as sent.
  bool hosted_sampling = false;
  // Do conversations think whose body does not say? The hosted API's do.
  bool thinking = true;
  // Fields that no protocol knows are an error. False: they are listed in Generation::unknown.
  bool refuse_unknown = false;
};

struct Generation {
  std::string model;  // as the client calls it; "": the body names none
  // Without prompt and max_tokens. Its seed counts only with has_seed; otherwise the server
  // chooses one.
  Request request;
  std::optional<int64_t> max_tokens;  // as asked for, at least 1
  bool cuts_max_tokens = false;       // to what the context has room for; otherwise an error
  int64_t default_max_tokens = 0;     // when nothing was asked for and the context has room
  bool has_seed = false;
  bool stream = false;
  bool include_usage = false;
  std::vector<std::string> unknown;  // paths of fields that nobody has read
};

// A request for the next message of a conversation.
struct ConversationRequest {
  Conversation conversation;
  // Where each of its messages is in the body, for errors; empty: it is messages[i] itself.
  std::vector<std::string> sources;
  Prompt prompt;
  OutputParserOptions parser;
  Generation generation;
};

// Where the engine is told that the answer starts.
AnswerStart answer_start(const Prompt& prompt);

// Tools as a protocol declares them, beside Conversation::tools.
struct ToolRules {
  bool strict = false;   // arguments follow the schemas
  bool parallel = true;  // more than one call in an answer
};

// Renders the prompt and sets what follows from the conversation: where the answer starts, the
// constraint to tool calls, default_max_tokens. Stop strings go from generation.request.stop to the
// parser, which alone can tell the content that they apply to; the request has to be cancelled when
// AnswerReader::complete(). Errors: those of render_prompt; images; a response format or guided
// output (generation.request.constraint) beside tools.
Status complete_request(ConversationRequest& request, const ToolRules& tools,
                        const RequestPolicy& policy);

// Sets max_tokens once the length of the prompt is known. Error kContextLength with the three
// numbers when prompt and answer do not fit.
Status limit_tokens(Generation& generation, int64_t prompt_tokens, int64_t context);

// The value of the header X-Request-Timeout, in seconds with decimals, as milliseconds.
// Error kRequest unless above 0 and at most a day.
Result<double> parse_timeout(std::string_view seconds);

// ---- fields that the OpenAI protocols share

// Fields that read_generation reads or refuses.
std::span<const FieldTable> generation_fields();
// model, sampling, n, stop, stream, priority, cache_salt and vLLM's extras. Not: max_tokens,
// logprobs. Nothing of it depends on the conversation.
Status read_generation(const Fields& body, const RequestPolicy& policy, Generation& generation);
// One string or an array of them, within the engine's limits, added to request.stop.
Status read_stop_strings(const Fields& body, std::string_view key, Request& request);
// Error when the policy refuses fields that nobody has read.
Status check_unknown(const Generation& generation, const RequestPolicy& policy);

// What the answer has to look like: response_format, guided_json, guided_regex, guided_grammar,
// guided_choice or structured_outputs, and only one of them.
Result<std::optional<Constraint>> read_guided(const Fields& body);

}  // namespace tidemill
