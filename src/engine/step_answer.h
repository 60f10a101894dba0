// Requests and answers inside the step loop. Private to src/engine.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "engine/step_loop.h"

namespace tidemill {

// One answer of a request, on its way.
struct StepLoop::Answer {
  RequestId id = 0;
  Group* group = nullptr;
  int64_t choice = 0;
  DeviceRequestPtr device;
  AnswerText text;

  std::vector<int32_t> tokens;         // prompt and answer, as far as committed; empty in the queue
  Sequence sequence;                   // slot -1: not on the device
  std::vector<int32_t> device_blocks;  // the block table that the device has
  PrefixHit hit;                       // found by the plan in the making
  SuspendedPtr suspended;              // preempted to the host
  int64_t suspended_bytes = 0;
  std::vector<int64_t> save_at;  // JobItem::save_at
  bool started = false;
  bool stopped_by_string = false;
  Usage usage;

  bool on_device() const { return sequence.slot >= 0; }
  int64_t outputs() const {
    return std::max<int64_t>(0, static_cast<int64_t>(tokens.size()) - usage.prompt_tokens);
  }
};

// A request with all its answers.
struct StepLoop::Group {
  RequestId id = 0;
  Request request;
  KeyChain chain;
  std::vector<ContentKey> keys;  // of the prompt's first blocks, as far as lookups came
  Clock::time_point submitted;
  std::vector<RequestId> answers;  // those that have not ended
  GrammarPool::Ticket ticket = 0;  // while its constraint is compiled
  bool siblings_held = false;      // all but the first wait for the first one's prefill
  int64_t decoder_floor = 0;       // bounded replay of the prompt
};

}  // namespace tidemill
