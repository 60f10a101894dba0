// A cell: one point of a benchmark, measured several times and summed up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/bench/run.h"
#include "cli/bench/statistics.h"
#include "cli/bench/workload.h"

namespace tidemill::cli {

enum class CellKind {
  kWorkload,  // a whole workload: its tokens/s are the answers' over the whole run
  kPrefill,   // a batch of prompts with one token each: prompt tokens/s
  kDecode,    // a batch that decodes: tokens/s of the steady part
  kHost,      // the same, for what the host does meanwhile
};
std::string_view to_string(CellKind kind);

struct CellShape {
  CellKind kind = CellKind::kWorkload;
  std::string drafts = "off";
  int64_t chunk = 0;          // Options::max_step_tokens
  int64_t concurrency = 0;    // requests in flight, or of the batch; 0: open loop
  double rate = 0;            // requests per second of an open loop
  int64_t prompt_tokens = 0;  // of each request; 0: as the workload has it
};

struct CellRuns {
  int64_t warmups = 0;
  int64_t repeats = 1;
  double temperature = 0;
  uint64_t seed = 0;          // of arrivals
  int64_t decode_tokens = 0;  // kDecode, kHost: of the steady part, per request
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(double fraction)> progress;
};

struct Cell {
  CellShape shape;
  std::vector<RunResult> runs;  // the measured ones
};

// Warms up, then measures. Cached state is dropped before each run, except in decode: there it only
// shortens the way to the steady part. Interrupted: with the runs there are, perhaps none.
// Errors: those of run_workload, and kContextLength.
Result<Cell> measure_cell(Engine& engine, const CellShape& shape, std::span<const WorkItem> items,
                          const CellRuns& runs);

// Requests of a sweep's cell: random prompts, exact answers.
std::vector<WorkItem> batch_items(int64_t batch, int64_t prompt_tokens, int64_t output_tokens,
                                  const TokenSource& tokens, uint64_t seed);

// The answer's length with which a batch of kDecode stays together for `decode_tokens` steps even
// though its first prompt is ready long before its last.
int64_t decode_output_tokens(int64_t batch, int64_t prompt_tokens, int64_t decode_tokens,
                             int64_t chunk, int64_t max_drafts);

struct CellSummary {
  int64_t requests = 0;   // that ended, of all runs
  int64_t failed = 0;     // refused or ended by an error
  int64_t cancelled = 0;  // by the benchmark: interrupted, or enough was measured
  std::string first_error;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;

  // Over the runs. What counts as a token depends on the kind; `count` 0 where a run was too short
  // to have a steady part.
  Spread tokens_per_second;
  Spread steady_tokens_per_second;
  // Over all requests of all runs.
  Percentiles user_tokens_per_second;  // after the first token
  Percentiles queued_ms, ttft_ms;
  Percentiles total_ms;  // of those that came to their end
  // Between tokens: the time between two bursts, in equal parts for each token of the second.
  Percentiles token_ms;
  Percentiles burst_ms;  // between two bursts: what a reader of a stream sees standing still

  StepWork work;       // of the steady parts in kDecode and kHost, of all else
  double seconds = 0;  // that `work` took
  double step_ms() const;
};
CellSummary summarise(const Cell& cell);

}  // namespace tidemill::cli
