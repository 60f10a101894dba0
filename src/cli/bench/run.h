// One run of a workload through an engine.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "cli/bench/recorder.h"
#include "cli/bench/workload.h"
#include "tidemill/engine.h"

namespace tidemill::cli {

struct RunPlan {
  std::span<const WorkItem> items;
  // Closed loop: so many requests are kept in flight; one arrives when another has ended.
  int64_t concurrency = 1;
  // Open loop instead if not empty: when each item arrives, in seconds from the start, ascending.
  // Nothing holds arrivals back: a slow engine gets a queue, as a real one would.
  std::span<const double> arrivals;
  double temperature = 0;
  // Stop, cancelling what is in flight, once the steady part has given so many tokens; 0: never.
  int64_t steady_tokens = 0;
  const std::atomic<bool>* cancel = nullptr;  // polled; stops likewise
  std::function<void(double fraction)> progress;
};

// The part of a closed loop in which the engine was full: from the moment `concurrency` requests
// have had their first token until the first end that no arrival makes up for.
struct SteadyPart {
  double begin_s = 0, end_s = 0;
  int64_t tokens = 0;
  StepWork work;

  double seconds() const { return end_s - begin_s; }
  double tokens_per_second() const { return static_cast<double>(tokens) / seconds(); }
};

struct RunResult {
  std::vector<RequestRecord> records;  // in the order of their ends
  StepWork work;
  std::optional<SteadyPart> steady;  // none in an open loop and in too short a run
  bool interrupted = false;

  int64_t tokens() const;
  double last_token_s() const;
  // Output over the whole run, from the first arrival to the last token.
  double tokens_per_second() const;
};

// The calling thread is the engine's only client. A request that the engine refuses for lack of
// capacity is recorded as refused and not tried again. Errors: any other of submit(), such as an
// engine that failed; what was measured of the run is then lost.
Result<RunResult> run_workload(Engine& engine, const RunPlan& plan);

}  // namespace tidemill::cli
