#include "sample/penalties.h"

#include <cassert>

namespace tidemill {

bool edits_logits(const SamplingParams& params) {
  return !params.logit_bias.empty() || params.uses_history();
}

void edit_logits(std::span<float> logits, const SamplingParams& params,
                 const TokenHistory& history) {
  for (const auto& [token, bias] : params.logit_bias) {
    assert(token >= 0 && token < std::ssize(logits));  // validate()
    logits[token] += bias;
  }
  if (!params.uses_history()) return;
  for (const auto& [token, counts] : history.counts()) {
    if (token < 0 || token >= std::ssize(logits)) continue;
    float& logit = logits[token];
    if (counts.in_prompt || counts.output > 0) {
      logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
    if (counts.output > 0) {
      logit -= params.frequency_penalty * static_cast<float>(counts.output);
      logit -= params.presence_penalty;
    }
  }
}

}  // namespace tidemill
