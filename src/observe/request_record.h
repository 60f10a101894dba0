// All that is kept of one request for an answer. It is made once, at the end, by the thread that
// owns the connection; ledger, metrics, traces and the log are made from it and from nothing else,
// so their numbers agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tidemill {

struct RequestRecord {
  std::string id;          // of the answer, as the client sees it; without one request_id
  std::string request_id;  // X-Request-Id: there before the answer has an id
  std::string client;      // name of its key; "anonymous" without keys
  std::string endpoint;    // "/v1/chat/completions"
  std::string model;
  bool stream = false;
  int status = 0;  // HTTP; of a request whose client left before there was one: 499
  // How it ended: stop, length, tool_calls, abort (the client left or was cut off), error,
  // refused (nothing was computed and all tokens are 0; `reason` says why), or replayed (the answer
  // to an earlier one was sent again: all tokens are 0). With several choices: of the first.
  std::string outcome;
  std::string reason;  // of abort, error and refused, one of a few words: client_gone, slow_reader,
                       // shutdown, deadline, overloaded, draining, invalid, context_length, auth,
                       // rate, concurrency, budget, conflict, internal

  // Sums over all prompts and choices of the body, as the client's usage has them.
  int64_t choices = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt
  int64_t output_tokens = 0;
  int64_t reasoning_tokens = 0;  // of the output
  std::vector<int64_t> drafted;  // by position in the step
  std::vector<int64_t> accepted;
  int64_t preemptions = 0;
  int64_t unkept_calls = 0;  // answers whose reasoning names a tool, and that call none
  int64_t max_tokens = 0;    // asked for

  // Milliseconds from the arrival of the request's first byte; -1: did not happen.
  double arrived_unix_s = 0;   // wall clock, for logs only
  double prepared_ms = -1;     // body read, parsed, tokenised and handed to the engine
  double started_ms = -1;      // first step of the engine
  double first_token_ms = -1;  // exactly when there are no output tokens
  double ended_ms = -1;
  int64_t bytes_sent = 0;
};

}  // namespace tidemill
