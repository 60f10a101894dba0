// Draft policies compared on a simulated device (sched/draft_simulation.h): no model is needed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "sched/draft_simulation.h"

namespace tidemill::cli {

// A difference in throughput that means nothing: finite runs of equal policies differ by about so
// much.
inline constexpr double kDraftNoise = 0.002;

struct DraftComparison {
  std::vector<std::string> policies;  // as parse_draft_policy reads them
  std::vector<int64_t> concurrencies;
  int64_t seeds = 3;  // each policy at each concurrency runs once with each of 1 to `seeds`
  int64_t request_steps = 20000;  // per run, shared by the requests; at least 200 steps
  int32_t draft_length = 5;
};

struct DraftResult {
  int64_t concurrency = 0;
  size_t policy = 0;
  DraftThroughput median;  // over the seeds, each number by itself
};

struct DraftVerdict {
  int64_t concurrency = 0;
  std::string dynamic;
  std::string best_fixed;  // also "off"; of the median
  // Throughput of `dynamic` over the other's on the same confidences, median over the seeds; 0 when
  // the other was not measured.
  double over_best = 0;
  double over_fixed_5 = 0;
};

struct DraftReport {
  std::vector<DraftResult> results;    // by concurrency, then by policy
  std::vector<DraftVerdict> verdicts;  // by concurrency, then by dynamic policy
};

// `progress` gets 0 to 1; it returns false to stop, which gives the concurrencies that are
// complete. Errors: those of parse_draft_policy and simulate_drafts.
Result<DraftReport> compare_drafts(const CostCurve& curve, const DraftComparison& comparison,
                                   const std::function<bool(double)>& progress);

// Does every dynamic policy reach the best fixed length everywhere, and does "dynamic" beat fixed:5
// at 60 and 96? Each breach is one line; none is good. Something missing is a breach too.
std::vector<std::string> check_drafts(const DraftReport& report);

}  // namespace tidemill::cli
