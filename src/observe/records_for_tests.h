// Records of requests as a server makes them.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <random>
#include <string>

#include "observe/request_record.h"

namespace tidemill {

inline RequestRecord sample_record() {
  return {.id = "chatcmpl-1",
          .client = "alice",
          .endpoint = "/v1/chat/completions",
          .model = "m",
          .stream = true,
          .status = 200,
          .outcome = "stop",
          .choices = 1,
          .prompt_tokens = 12,
          .cached_tokens = 4,
          .output_tokens = 7,
          .reasoning_tokens = 3,
          .drafted = {5, 2},
          .accepted = {4, 1},
          .preemptions = 1,
          .max_tokens = 100,
          .arrived_unix_s = 1'700'000'000.25,
          .prepared_ms = 2,
          .started_ms = 5,
          .first_token_ms = 35,
          .ended_ms = 95,
          .bytes_sent = 812};
}

// All ways to end, with the fields that belong to them.
inline RequestRecord random_record(std::mt19937_64& random) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  RequestRecord record = sample_record();
  record.id = fmt::format("r-{}", draw(0, 1'000'000'000));
  record.client = fmt::format("client-{}", draw(0, 4));
  record.endpoint = draw(0, 9) == 0 ? fmt::format("/{}", draw(0, 1'000'000)) : "/v1/completions";
  record.choices = draw(0, 3) == 0 ? 4 : 1;
  record.prompt_tokens = draw(1, 5000);
  record.cached_tokens = draw(0, record.prompt_tokens);
  record.preemptions = draw(0, 2);
  constexpr const char* kEnds[] = {"stop", "length", "tool_calls", "abort", "error", "refused"};
  record.outcome = kEnds[draw(0, 5)];
  const bool is_refused = record.outcome == "refused";
  const bool has_tokens =
      record.outcome == "abort" || record.outcome == "error" ? draw(0, 1) == 0 : !is_refused;
  record.output_tokens = has_tokens ? draw(1, 300) * record.choices : 0;
  record.reasoning_tokens = draw(0, record.output_tokens);
  if (!has_tokens) record.first_token_ms = -1;
  if (is_refused) {
    record.status = draw(0, 1) == 0 ? 429 : 503;
    record.reason = record.status == 429 ? "rate" : "overloaded";
    record.prompt_tokens = record.cached_tokens = record.choices = record.preemptions = 0;
    record.prepared_ms = record.started_ms = -1;
  }
  if (record.outcome == "abort") record.reason = draw(0, 1) == 0 ? "client_gone" : "slow_reader";
  if (record.outcome == "error") record.reason = "internal";
  return record;
}

}  // namespace tidemill
