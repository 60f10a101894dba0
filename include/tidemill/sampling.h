// What a request may ask of the sampler. Names, ranges and meanings are those of the OpenAI API
// and of vLLM (vllm/sampling_params.py).
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "tidemill/error.h"

namespace tidemill {

// Defaults leave the model's own distribution as it is. The fields stand in the order in which the
// sampler applies them (sampler.h).
struct SamplingParams {
  // Token -> number added to its logit, in [-100, 100].
  std::map<int32_t, float> logit_bias;

  // Logits of tokens seen in the prompt or in the output: l / r if l > 0, else l * r. > 0; 1 = off.
  float repetition_penalty = 1.0f;
  // Output only, in [-2, 2], 0 = off: l - frequency_penalty * (times seen in the output)
  //                                    - presence_penalty  (if seen at all)
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;

  // Logits are divided by it. >= 0; below kGreedyBelow the most likely token is taken.
  float temperature = 1.0f;
  // Drops tokens less probable than min_p times the most probable one. In [0, 1]; 0 = off.
  float min_p = 0.0f;
  // Keeps the k most probable tokens, exactly k: of equal ones those with lower ids. 0 or -1 = off.
  int32_t top_k = 0;
  // Keeps the shortest list of most probable tokens whose probabilities, after the steps above,
  // add up to at least top_p. In (0, 1]; 1 = off. At least one token stays.
  float top_p = 1.0f;

  // With the position, all that the noise of a draw depends on. A server that gets none chooses
  // one and reports it.
  uint64_t seed = 0;

  // Report the log-probability of each token and of this many most likely ones, 0..kMaxLogprobs.
  std::optional<int32_t> logprobs;

  static constexpr float kGreedyBelow = 1e-5f;
  static constexpr int32_t kMaxLogprobs = 20;

  // kInvalidArgument with the field, its value and its range. The sampler relies on it: only
  // parameters that passed may reach it.
  Status validate(int64_t vocabulary) const;

  bool greedy() const { return temperature < kGreedyBelow; }
  // Does the next draw depend on the tokens so far (TokenHistory)?
  bool uses_history() const {
    return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
  }
};

}  // namespace tidemill
