// One request on an engine of the command's own, from its prompt to the end of its answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "tidemill/engine.h"

namespace tidemill::cli {

struct Answer {
  std::vector<int32_t> ids;
  FinishReason finish = FinishReason::kNone;
  Usage usage;
  Error error;  // kRefused and kError
};

// One answer for each choice, in their order; `take` sees every event as it comes. When `cancel`
// turns true the request is cancelled: what has come by then is the answer. Errors: those of
// Engine::submit.
Result<std::vector<Answer>> ask(Engine& engine, Request request, const std::atomic<bool>& cancel,
                                const std::function<void(const Event&)>& take);

// Lowers max_tokens to what the context leaves behind the prompt, if it leaves anything.
void fit_into_context(Request& request, const ModelInfo& model);

// The error of an answer that has one.
Status status_of(const Answer& answer);

}  // namespace tidemill::cli
