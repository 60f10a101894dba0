// The model's own view of a token, and the largest logit that everything here starts from.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "tidemill/request.h"

namespace tidemill {

// Largest of a row of logits for the token at `position` (for the message only). -inf is a masked
// token. kInternal, with the position and the token, when a logit is NaN or +inf or none is left
// unmasked: nothing could be drawn.
Result<float> largest_logit(std::span<const float> logits, int64_t position);

// Natural logarithms of softmax(logits): of the row as the model gave it, before bias, penalties,
// temperature and truncation, as in the OpenAI API and vLLM's default (raw_logprobs). `chosen` is
// in the row; `top` has min(top_count, row) entries. `out` is overwritten and keeps its memory.
// Errors of largest_logit.
Status log_probabilities(std::span<const float> logits, int32_t chosen, int32_t top_count,
                         int64_t position, LogProbabilities& out);

}  // namespace tidemill
