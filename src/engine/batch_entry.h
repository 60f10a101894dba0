// A request inside the batch engine. Private to src/engine.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "engine/batch_engine.h"

namespace tidemill {

struct BatchEngine::Entry {
  RequestId id = 0;
  BatchRequest request;
  KeyChain chain;
  Clock::time_point submitted;

  std::vector<int32_t> tokens;  // prompt and outputs; the state lags behind by one token at least
  Sequence sequence;            // slot -1: not on the device
  PrefixHit hit;                // found by the plan in the making
  TokenHistory history;
  std::optional<GrammarMatcher> matcher;
  std::vector<int32_t> drafts;  // after the last token, for the next step
  int64_t windows_at = 0;       // latest boundary whose windows were saved
  BatchUsage usage;

  bool on_device() const { return sequence.slot >= 0; }
  int64_t outputs() const { return static_cast<int64_t>(tokens.size() - request.prompt.size()); }
  int64_t outputs_left() const { return request.max_tokens - outputs(); }
};

// One item of a step on its way.
struct BatchEngine::Row {
  Entry* entry = nullptr;
  PlanItem item;
  std::vector<int32_t> input;
  int64_t first_part = 0;  // tokens before the boundary where a prompt's windows are saved
  std::span<float> logits;

  // results
  std::vector<int32_t> outputs;
  BatchFinish finish = BatchFinish::kNone;
  Error error;
};

}  // namespace tidemill
