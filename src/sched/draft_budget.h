// How many drafts a step verifies, and whose: DSpark's confidence scheduling (arXiv 2607.05147).
//
// The drafter gives each draft a confidence c[r][j]: the probability that draft j of request r is
// accepted if those before it are. It survives with a[r][j] = c[r][0] * ... * c[r][j], so a step
// that verifies lengths[r] drafts of request r is expected to give
//
//   tokens = sum over r of (1 + sum over j < lengths[r] of a[r][j])
//
// and takes DraftCost::step_ms(rows). The best step has the most tokens per millisecond. Candidates
// are taken in descending order of a; of equal ones the smaller position first, then the smaller
// request. As a never rises along a request, every prefix of that order gives each request a
// prefix of its drafts.
//
// What a rule may look at. Rejection sampling keeps the target's distribution only if the decision
// to verify a draft does not depend on that draft's token or on later ones of its request.
// c[r][j] is known before draft j is drawn, c[r][j + 1] is not. Hence
//  * how many candidates to take may be decided from older steps' confidences by any rule
//    (search_budget), and then which ones from this step's (allocate_drafts): whether draft j of r
//    is among the first K depends on candidates before it in the order, which are earlier drafts
//    of r and drafts of other requests, and on nothing else;
//  * from this step's confidences alone, the taking may only stop at the first candidate that does
//    not pay (early_stop);
//  * a search over this step's confidences is biased, even if only fixed lengths are compared:
//    draft 0 would be verified more often when a good draft 1 follows it.
// The same holds for `limits`. (Where drafts are compared with the target's own draw, verify_keyed,
// no rule can change a token and all this is moot.)
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "sched/draft_cost.h"

namespace tidemill {

// A request in decode has 1 row that gives a token for certain, and the rows of its drafts.
struct DraftBatch {
  std::span<const float> confidence;  // [requests, draft_length], 0 to 1; outside or NaN: clamped
  // Drafts at most, [requests], 0 to draft_length (clamped); empty: draft_length for all.
  std::span<const int32_t> limits;
  int64_t requests = 0;
  int32_t draft_length = 0;
  // Rows of the step that are none of these requests' (prefill).
  int64_t other_tokens = 0;
  // Drafts at most in the whole step; negative counts as 0.
  int64_t max_drafts = INT64_MAX;

  int32_t limit(int64_t request) const;
};

struct DraftBudget {
  int64_t drafts = 0;            // rows beyond the requests' own and other_tokens
  double expected_tokens = 0.0;  // under the confidences it was made from
  double step_ms = 0.0;

  double tokens_per_ms() const { return step_ms > 0.0 ? expected_tokens / step_ms : 0.0; }
};

// The best number of drafts if they are taken in order: all numbers are compared, because curves
// with graph sizes have local maxima; of equally good ones the smallest. Among them are those of
// every fixed length, with at least as many expected tokens: the result is never worse than the
// best fixed length under the same confidences and costs. O(n log n) in the candidates.
DraftBudget search_budget(const DraftBatch& batch, const DraftCost& cost);

// Every request verifies `length` drafts, or its limit.
DraftBudget fixed_budget(const DraftBatch& batch, const DraftCost& cost, int32_t length);

// Where early_stop begins.
struct EarlyStart {
  int32_t first = 0;   // drafts of every request (or its limit) that are taken unseen
  bool extend = true;  // or leave it at that: a fixed length
};

// Takes candidates in order and stops at the first that does not raise tokens per ms, or at
// max_drafts (which does not shorten the start). Two things make the rule of the paper useful on a
// curve with graph sizes, where the first row of a larger graph never pays by itself: whether a
// candidate pays is judged with DraftCost::smooth_ms, and after the stop the rows that would be
// padding are filled. Both keep to what may be looked at. `lengths`: out, [requests].
DraftBudget early_stop(const DraftBatch& batch, const DraftCost& cost, EarlyStart start,
                       std::span<int32_t> lengths);

// The start with which early_stop gives the most tokens per ms under these confidences (of an
// older step, see above), among those that keep to max_drafts. Every fixed length is among them.
EarlyStart best_start(const DraftBatch& batch, const DraftCost& cost);

// Gives the first `drafts` candidates their place: lengths[r], out, [requests]. Fewer if the
// limits leave fewer; the sum of lengths is min(drafts, sum of limits, max_drafts).
//
// This is the reference of the device kernel, which must agree with it exactly: a is a product of
// float32 from the left, the sort is stable and descending over candidates in the order position
// 0 of all requests, position 1 of all, and so on; those of rank < drafts count.
void allocate_drafts(const DraftBatch& batch, int64_t drafts, std::span<int32_t> lengths);

}  // namespace tidemill
