#include "cli/bench/cell.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tidemill::cli {
namespace {

bool is_steady(CellKind kind) { return kind == CellKind::kDecode || kind == CellKind::kHost; }

// Prompt tokens that were computed until the last first token.
std::optional<double> prefill_rate(const RunResult& run) {
  int64_t tokens = 0;
  double end = 0;
  for (const RequestRecord& record : run.records) {
    if (record.bursts.empty()) continue;
    tokens += record.usage.prompt_tokens - record.usage.cached_tokens;
    end = std::max(end, record.first_s());
  }
  if (!(end > 0)) return std::nullopt;
  return static_cast<double>(tokens) / end;
}

std::optional<double> rate_of(CellKind kind, const RunResult& run) {
  if (kind == CellKind::kPrefill) return prefill_rate(run);
  if (kind == CellKind::kWorkload) return run.tokens_per_second();
  if (!run.steady) return std::nullopt;
  return run.steady->tokens_per_second();
}

struct Samples {
  std::vector<double> rate, steady, user, queued, ttft, total, token, burst;

  // Bursts outside of the window are left out: before the steady part, prompts share the steps.
  void add(const RequestRecord& record, double begin_s, double end_s) {
    if (record.bursts.empty()) return;
    queued.push_back(record.queued_ms());
    ttft.push_back(record.ttft_ms());
    const bool whole =
        record.finish == FinishReason::kStop || record.finish == FinishReason::kLength;
    if (whole) total.push_back(record.total_ms());
    double seconds = 0;
    int64_t tokens = 0;
    for (size_t i = 1; i < record.bursts.size(); ++i) {
      const double from = record.bursts[i - 1].at_s, to = record.bursts[i].at_s;
      if (from < begin_s || to > end_s) continue;
      const int64_t count = record.bursts[i].tokens;
      seconds += to - from;
      tokens += count;
      burst.push_back(1000 * (to - from));
      token.insert(token.end(), static_cast<size_t>(count),
                   1000 * (to - from) / static_cast<double>(count));
    }
    if (seconds > 0) user.push_back(static_cast<double>(tokens) / seconds);
  }
};

}  // namespace

std::string_view to_string(CellKind kind) {
  switch (kind) {
    case CellKind::kWorkload:
      return "workload";
    case CellKind::kPrefill:
      return "prefill";
    case CellKind::kDecode:
      return "decode";
    case CellKind::kHost:
      return "host";
  }
  return "?";
}

Result<Cell> measure_cell(Engine& engine, const CellShape& shape, std::span<const WorkItem> items,
                          const CellRuns& runs) {
  CHECK_OK(check_lengths(items, engine.info().context));
  std::vector<double> arrivals;
  if (shape.concurrency == 0) {
    arrivals = poisson_arrivals(static_cast<int64_t>(items.size()), shape.rate, runs.seed);
  }
  Cell cell{.shape = shape, .runs = {}};
  for (int64_t run = -runs.warmups; run < runs.repeats; ++run) {
    if (!is_steady(shape.kind)) engine.clear_cache();
    RunPlan plan{.items = items,
                 .concurrency = shape.concurrency,
                 .arrivals = arrivals,
                 .temperature = runs.temperature,
                 .steady_tokens = 0,
                 .cancel = runs.cancel,
                 .progress = {}};
    if (is_steady(shape.kind)) plan.steady_tokens = shape.concurrency * runs.decode_tokens;
    if (run < 0 && shape.kind == CellKind::kWorkload) {
      // Enough to touch all weights and to fill a step.
      plan.arrivals = {};
      plan.concurrency = std::max<int64_t>(shape.concurrency, 1);
      plan.items = items.first(std::min(items.size(), static_cast<size_t>(plan.concurrency)));
    }
    plan.progress = [&](double fraction) {
      if (!runs.progress) return;
      runs.progress((static_cast<double>(run + runs.warmups) + fraction) /
                    static_cast<double>(runs.warmups + runs.repeats));
    };
    TRY(RunResult result, run_workload(engine, plan));
    const bool interrupted = result.interrupted;
    if (run >= 0) cell.runs.push_back(std::move(result));
    if (interrupted) break;
  }
  return cell;
}

std::vector<WorkItem> batch_items(int64_t batch, int64_t prompt_tokens, int64_t output_tokens,
                                  const TokenSource& tokens, uint64_t seed) {
  BenchRandom random(seed);
  std::vector<WorkItem> items(static_cast<size_t>(batch));
  for (WorkItem& item : items) {
    item.prompt = tokens.draw(prompt_tokens, random);
    item.output_tokens = output_tokens;
  }
  return items;
}

int64_t decode_output_tokens(int64_t batch, int64_t prompt_tokens, int64_t decode_tokens,
                             int64_t chunk, int64_t max_drafts) {
  // Decoding requests take their rows of a step first; some are left for prompts in any case.
  const int64_t prefill_rows = std::max({chunk - batch * (1 + max_drafts), chunk / 4, int64_t{1}});
  const int64_t prefill_steps = (batch * prompt_tokens + prefill_rows - 1) / prefill_rows + 1;
  return decode_tokens + (prefill_steps + 1) * (1 + max_drafts);
}

double CellSummary::step_ms() const {
  return work.steps > 0 ? 1000 * seconds / static_cast<double>(work.steps) : 0;
}

CellSummary summarise(const Cell& cell) {
  CellSummary summary;
  Samples samples;
  for (const RunResult& run : cell.runs) {
    const bool part = is_steady(cell.shape.kind) && run.steady;
    const double begin_s = part ? run.steady->begin_s : 0;
    const double end_s = part ? run.steady->end_s : std::numeric_limits<double>::infinity();
    for (const RequestRecord& record : run.records) {
      ++summary.requests;
      if (record.finish == FinishReason::kCancelled) ++summary.cancelled;
      if (record.failed() && summary.failed++ == 0) summary.first_error = record.error;
      summary.prompt_tokens += record.usage.prompt_tokens;
      summary.cached_tokens += record.usage.cached_tokens;
      summary.output_tokens += record.tokens();
      samples.add(record, begin_s, end_s);
    }
    if (const auto rate = rate_of(cell.shape.kind, run)) samples.rate.push_back(*rate);
    if (run.steady) samples.steady.push_back(run.steady->tokens_per_second());
    if (!is_steady(cell.shape.kind)) {
      summary.work += run.work;
      summary.seconds += run.last_token_s();
    } else if (run.steady) {
      summary.work += run.steady->work;
      summary.seconds += run.steady->seconds();
    }
  }
  summary.tokens_per_second = spread(std::move(samples.rate));
  summary.steady_tokens_per_second = spread(std::move(samples.steady));
  summary.user_tokens_per_second = percentiles(std::move(samples.user));
  summary.queued_ms = percentiles(std::move(samples.queued));
  summary.ttft_ms = percentiles(std::move(samples.ttft));
  summary.total_ms = percentiles(std::move(samples.total));
  summary.token_ms = percentiles(std::move(samples.token));
  summary.burst_ms = percentiles(std::move(samples.burst));
  return summary;
}

}  // namespace tidemill::cli
