// A load run in numbers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/bench/statistics.h"
#include "cli/load/arrivals.h"
#include "cli/load/record.h"
#include "cli/load/slo.h"

namespace tidemill::cli {

// What the run was meant to be.
struct LoadIntent {
  std::string target;  // "http://127.0.0.1:8000/v1/chat/completions"
  std::string model;
  ArrivalProcess process = ArrivalProcess::kPoisson;
  double rate = 0;  // not of a trace
  int64_t planned = 0;
  int64_t connections = 1;
  uint64_t seed = 0;
  Slo slo;
};

// Requests that failed alike.
struct LoadFailure {
  int status = 0;
  std::string reason;
  int64_t count = 0;
  std::string example;  // the first one's detail
};

// Sends later than this at the 99th percentile: the generator distorts what it measures.
inline constexpr double kMostLagMs = 10;

struct LoadSummary {
  int64_t arrived = 0;  // planned, less those that an interruption kept from arriving
  int64_t sent = 0;     // a connection was at hand or asked for
  int64_t ok = 0;
  int64_t failed = 0;
  int64_t aborted = 0;
  std::vector<LoadFailure> failures;  // the most frequent first

  double seconds = 0;  // from the first arrival's time to the last end
  // Of requests that ended well.
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  int64_t without_usage = 0;              // their prompts count 0 and their output is chunks
  int64_t without_content = 0;            // no TTFT
  Percentiles ttft_ms, e2e_ms;            // from the intended time
  Percentiles sent_ttft_ms, sent_e2e_ms;  // from the actual one
  Percentiles itl_ms;                     // every gap between neighbouring chunks, undivided
  Percentiles tpot_ms;                    // one per request with two tokens or more
  int64_t good = 0;                       // meet the SLO

  // The generator's own work, over all that were sent.
  Percentiles lag_ms;  // intended to actual
  int64_t waited = 0;  // found no free connection
  GapCheck intended_gaps, sent_gaps;

  double per_second(int64_t count) const;
  // Of all that arrived, less those aborted.
  double good_share() const;
  bool kept_up() const { return waited == 0 && lag_ms.p99 <= kMostLagMs; }
};

LoadSummary summarise(std::span<const LoadRecord> records, const LoadIntent& intent);

// Plain sentences about what was wrong with the measurement; none if nothing was.
std::vector<std::string> load_notes(const LoadSummary& summary, const LoadIntent& intent);

Json load_summary_json(const LoadSummary& summary, const LoadIntent& intent);
std::string load_summary_text(const LoadSummary& summary, const LoadIntent& intent);

}  // namespace tidemill::cli
