#include "sched/draft_budget.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <vector>

namespace tidemill {
namespace {

struct Candidate {
  float acceptance;
  int32_t position;
  int64_t request;
};

// NaN counts as 0.
float clamp_confidence(float c) { return c > 0.0f ? std::min(c, 1.0f) : 0.0f; }

double step_ms(const DraftBatch& batch, const DraftCost& cost, int64_t drafts) {
  return cost.step_ms(batch.requests + batch.other_tokens + drafts);
}

// a[request][j] for j below the request's limit, in order of j.
template <typename Take>
void for_each_acceptance(const DraftBatch& batch, int64_t request, Take take) {
  const float* c = batch.confidence.data() + request * batch.draft_length;
  const int32_t limit = batch.limit(request);
  float acceptance = 1.0f;
  for (int32_t j = 0; j < limit; ++j) {
    acceptance *= clamp_confidence(c[j]);
    take(j, acceptance);
  }
}

// In the order in which drafts are taken.
std::vector<Candidate> sorted_candidates(const DraftBatch& batch) {
  std::vector<Candidate> candidates;
  candidates.reserve(static_cast<size_t>(batch.requests * batch.draft_length));
  for (int64_t r = 0; r < batch.requests; ++r) {
    for_each_acceptance(batch, r, [&](int32_t j, float a) { candidates.push_back({a, j, r}); });
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& x, const Candidate& y) {
    if (x.acceptance != y.acceptance) return x.acceptance > y.acceptance;
    return x.position != y.position ? x.position < y.position : x.request < y.request;
  });
  return candidates;
}

void check([[maybe_unused]] const DraftBatch& batch) {
  assert(batch.confidence.size() == static_cast<size_t>(batch.requests * batch.draft_length));
  assert(batch.limits.empty() || batch.limits.size() == static_cast<size_t>(batch.requests));
}

}  // namespace

int32_t DraftBatch::limit(int64_t request) const {
  return limits.empty() ? draft_length : std::clamp(limits[request], 0, draft_length);
}

DraftBudget search_budget(const DraftBatch& batch, const DraftCost& cost) {
  check(batch);
  // Which request a candidate belongs to does not matter here.
  std::vector<float> acceptance;
  acceptance.reserve(batch.confidence.size());
  for (int64_t r = 0; r < batch.requests; ++r) {
    for_each_acceptance(batch, r, [&](int32_t, float a) { acceptance.push_back(a); });
  }
  std::sort(acceptance.begin(), acceptance.end(), std::greater<>());

  DraftBudget candidate{0, static_cast<double>(batch.requests), step_ms(batch, cost, 0)};
  DraftBudget best = candidate;
  for (const float a : acceptance) {
    if (candidate.drafts >= batch.max_drafts) break;
    ++candidate.drafts;
    candidate.expected_tokens += a;
    candidate.step_ms = step_ms(batch, cost, candidate.drafts);
    if (candidate.tokens_per_ms() > best.tokens_per_ms()) best = candidate;
  }
  return best;
}

DraftBudget fixed_budget(const DraftBatch& batch, const DraftCost& cost, int32_t length) {
  check(batch);
  DraftBudget budget{0, static_cast<double>(batch.requests), 0.0};
  for (int64_t r = 0; r < batch.requests; ++r) {
    for_each_acceptance(batch, r, [&](int32_t j, float a) {
      if (j >= length) return;
      ++budget.drafts;
      budget.expected_tokens += a;
    });
  }
  budget.step_ms = step_ms(batch, cost, budget.drafts);
  return budget;
}

DraftBudget early_stop(const DraftBatch& batch, const DraftCost& cost, EarlyStart start,
                       std::span<int32_t> lengths) {
  assert(lengths.size() == static_cast<size_t>(batch.requests));
  DraftBudget budget = fixed_budget(batch, cost, start.first);
  for (int64_t r = 0; r < batch.requests; ++r) {
    lengths[r] = std::min(batch.limit(r), std::max(start.first, 0));
  }
  if (!start.extend) return budget;

  int64_t rows = batch.requests + batch.other_tokens + budget.drafts;
  // Tokens are concave in the rows and smooth_ms is convex: once a candidate does not pay, no later
  // one does.
  for (const Candidate& candidate : sorted_candidates(batch)) {
    if (candidate.position < start.first) continue;
    if (budget.drafts >= batch.max_drafts) break;
    const bool pays = (budget.expected_tokens + candidate.acceptance) * cost.smooth_ms(rows) >
                      budget.expected_tokens * cost.smooth_ms(rows + 1);
    if (!pays && cost.padded(rows + 1) != cost.padded(rows)) break;
    ++rows;
    ++budget.drafts;
    budget.expected_tokens += candidate.acceptance;
    ++lengths[candidate.request];
  }
  budget.step_ms = cost.step_ms(rows);
  return budget;
}

EarlyStart best_start(const DraftBatch& batch, const DraftCost& cost) {
  std::vector<int32_t> lengths(static_cast<size_t>(batch.requests));
  EarlyStart best{0, false};
  DraftBudget best_budget = fixed_budget(batch, cost, 0);
  for (int32_t first = 0; first <= batch.draft_length; ++first) {
    for (const bool extend : {false, true}) {
      const EarlyStart start{first, extend};
      const DraftBudget budget = early_stop(batch, cost, start, lengths);
      if (budget.drafts > std::max<int64_t>(batch.max_drafts, 0)) return best;
      if (budget.tokens_per_ms() > best_budget.tokens_per_ms()) {
        best = start;
        best_budget = budget;
      }
    }
  }
  return best;
}

void allocate_drafts(const DraftBatch& batch, int64_t drafts, std::span<int32_t> lengths) {
  check(batch);
  assert(lengths.size() == static_cast<size_t>(batch.requests));
  std::fill(lengths.begin(), lengths.end(), 0);
  const auto candidates = sorted_candidates(batch);
  const int64_t count = std::clamp<int64_t>(std::min(drafts, batch.max_drafts), 0,
                                            static_cast<int64_t>(candidates.size()));
  for (int64_t rank = 0; rank < count; ++rank) ++lengths[candidates[rank].request];
}

}  // namespace tidemill
