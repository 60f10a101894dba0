// Logits of one row -> the distribution a request asked for -> a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/noise.h"
#include "base/result.h"
#include "sample/penalties.h"
#include "tidemill/sampling.h"

namespace tidemill {

// Tokens that can be drawn. Views into the sampler, valid until its next call.
struct Distribution {
  std::span<const int32_t> ids;    // ascending, never empty
  std::span<const float> weights;  // of the ids: in [0, 1], the likeliest 1
  double total = 0.0;              // sum of the weights

  double probability(int32_t token) const;
  int32_t draw(const NoiseKey& key) const;
};

// Tokens whose scaled logit, (logit - largest) / temperature, is less are out: for min-p, or
// because their weight is 0 in float32, 104 nats below the largest.
float lowest_scaled(const SamplingParams& params);

// Scratch memory for one vocabulary (20 bytes a token); no call allocates. One thread at a
// time. A row has `vocabulary` float32 logits; -inf masks a token (a grammar does it that way).
//
// Order of the steps, as vLLM documents it (vllm/v1/sample/sampler.py): logit bias; repetition,
// frequency, presence penalty; temperature; min-p; top-k; top-p. Among equal tokens the lower id
// counts as more likely.
//
// Errors: those of largest_logit (log_probabilities.h), after bias and penalties; a repetition
// penalty near 0 can raise a finite logit to +inf. The sampler stays usable.
class Sampler {
 public:
  explicit Sampler(int64_t vocabulary);

  int64_t vocabulary() const { return vocabulary_; }

  // `history` holds the tokens before `position`. Greedy: the largest logit alone.
  Result<Distribution> distribution(std::span<const float> logits, const SamplingParams& params,
                                    const TokenHistory& history, int64_t position);

  // Draws the token at `position` with the noise of (params.seed, position): the plain form of
  // sampling, which does not depend on anything else.
  Result<int32_t> sample(std::span<const float> logits, const SamplingParams& params,
                         const TokenHistory& history, int64_t position);

  // Draws a draft from q = softmax(logits / temperature), or the largest logit for a greedy
  // temperature. `key` decides the form of verification that it is made for (verify.h):
  //   kTarget  verify_keyed: with the noise of the target's own draw, so that a drafter near the
  //            target mostly draws the same token;
  //   kDraft   verify_rejection: with noise of its own; `q` gets the distribution.
  // `q` is empty or has the size of the row.
  Result<int32_t> draft(std::span<const float> logits, float temperature, const NoiseKey& key,
                        std::span<float> q = {});

 private:
  void collect(std::span<const float> logits, float largest, const SamplingParams& params);
  enum class Measure { kCount, kWeight };  // of a token: 1 (top-k), its weight (top-p)
  void keep_likeliest(double target, Measure measure);
  size_t last_kept(double target, Measure measure);
  Distribution remaining() const;

  int64_t vocabulary_;
  std::vector<float> edited_;  // the row after bias and penalties

  // The tokens still in, in ascending order of ids: the first count_ of each.
  size_t count_ = 0;
  std::vector<int32_t> ids_;
  std::vector<float> scaled_;   // (logit - largest) / temperature
  std::vector<float> weights_;  // exp(scaled)

  std::vector<double> bins_;      // last_kept
  std::vector<uint32_t> border_;  // last_kept: indices
};

}  // namespace tidemill
