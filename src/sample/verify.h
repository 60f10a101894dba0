// Speculative decoding: which of the drafts stand, and which token follows them. Two forms, both
// lossless: no draft, good or bad, changes what the model says.
//
// For n >= 0 drafts the target has computed n + 1 rows: row j belongs to the token at position + j
// and has drafts[0..j) behind it. Both forms give 1 to n + 1 tokens: drafts[0..accepted), then
// `next`. Ends (end-of-sequence inside the accepted drafts, token limits) are the caller's matter;
// so is a grammar, which masks each row for the drafts before it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "sample/penalties.h"
#include "sample/sampler.h"
#include "tidemill/sampling.h"

namespace tidemill {

struct Verdict {
  int64_t accepted = 0;  // drafts
  int32_t next = 0;
};

// Draws the target's own token at each position, as Sampler::sample does, and accepts drafts while
// they are equal to it. The tokens are those of a run without drafts, exactly, for the same seed.
//
// `target`: float32 [n + 1, vocabulary]. `history` holds the tokens before `position` and is
// afterwards as it was: the caller adds what it keeps. Draft ids may be any number: one outside
// the vocabulary is never accepted. Errors: those of Sampler, for a row that was reached.
Result<Verdict> verify_keyed(Sampler& sampler, std::span<const float> target,
                             std::span<const int32_t> drafts, const SamplingParams& params,
                             TokenHistory& history, int64_t position);

// The same where the target's tokens come from elsewhere: token(j) is that of row j. Asked for the
// rows that are reached, in order; fails as it does.
Result<Verdict> verify_keyed(std::span<const int32_t> drafts,
                             const std::function<Result<int32_t>(int64_t j)>& token);

// Rejection sampling (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318).
// With p_j the target's processed distribution and q_j the one that draft x was drawn from, x is
// accepted with probability min(1, p_j(x) / q_j(x)); the first that is not is replaced by a token
// of max(0, p_j - q_j), normalised. The tokens have the distribution of a run without drafts, but
// are not the same tokens. Accepts more than verify_keyed; with a greedy temperature the two agree.
//
// `q`: float32 [n, vocabulary], the very rows that the drafts were drawn from with noise
// independent of kTarget, kAccept and kResidual (Sampler::draft with kDraft); or empty if no
// chance was involved in the drafts (argmax, n-gram look-up), which stands for rows of one 1.
// How many drafts are verified may depend on nothing drawn at or after them.
// The rest as for verify_keyed.
Result<Verdict> verify_rejection(Sampler& sampler, std::span<const float> target,
                                 std::span<const int32_t> drafts, std::span<const float> q,
                                 const SamplingParams& params, TokenHistory& history,
                                 int64_t position);

}  // namespace tidemill
