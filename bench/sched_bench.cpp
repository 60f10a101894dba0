// Host time of planning and committing one step, by running requests. The time is plan()'s alone;
// commit() is a counter beside it.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "sched/scheduler.h"

namespace tidemill {
namespace {

constexpr int64_t kWaiting = 1000;
constexpr int64_t kEndless = int64_t{1} << 30;

SchedulerOptions options_for(int64_t running) {
  SchedulerOptions options;
  options.context = int64_t{1} << 31;
  options.pool_blocks = int64_t{1} << 36;
  options.max_sequences = running;
  options.max_step_tokens = 8 * running + 2048;
  options.max_waiting_tokens = int64_t{1} << 50;
  options.step_ms = 1000;
  return options;
}

// Requests that decode for ever, at lengths spread over a block.
struct Running {
  explicit Running(int64_t count, int64_t slots)
      : scheduler(Scheduler::create(options_for(slots)).value()),
        capacity{.free_blocks = int64_t{1} << 30, .free_slots = slots} {
    for (int64_t i = 0; i < count; ++i) submit(1 + i % 300, i % 8);
    do {
      step();
    } while (scheduler.waiting() > 0 || plan.items.empty() || !plan.items.back().decode);
  }

  void submit(int64_t prompt, int64_t tenant) {
    const Arrival arrival{.id = ++last,
                          .tenant = static_cast<TenantId>(tenant),
                          .prompt_tokens = prompt,
                          .max_tokens = kEndless};
    if (scheduler.submit(arrival, now)) scheduler.set_drafts(last, drafts);
  }
  // Returns the seconds that plan() took.
  double step() {
    const auto start = Clock::now();
    plan = scheduler.plan(now, capacity);
    const auto planned = Clock::now();
    now += 20;
    results.resize(plan.items.size());
    for (size_t i = 0; i < results.size(); ++i) results[i] = {plan.items[i].samples, false};
    const auto done = Clock::now();
    if (!scheduler.commit(plan.step, results, 20)) std::abort();
    commit_seconds += seconds_since(done);
    return seconds_between(start, planned);
  }

  Scheduler scheduler;
  Capacity capacity;
  StepPlan plan;
  std::vector<ItemResult> results;
  RequestId last = 0;
  int64_t drafts = 0;
  double now = 0;
  double commit_seconds = 0;
};

void measure(benchmark::State& state, Running& running) {
  running.commit_seconds = 0;
  for (auto _ : state) state.SetIterationTime(running.step());
  state.counters["commit_us"] =
      benchmark::Counter(1e6 * running.commit_seconds, benchmark::Counter::kAvgIterations);
}

void plan_decode(benchmark::State& state) {
  Running running(state.range(0), state.range(0));
  measure(state, running);
}

// Every request with 5 drafts, all slots taken, 1000 requests of 8 tenants waiting.
void plan_drafts_and_queue(benchmark::State& state) {
  Running running(state.range(0), state.range(0));
  running.drafts = 5;
  for (int64_t i = 0; i < state.range(0); ++i) {
    running.scheduler.set_drafts(static_cast<RequestId>(i + 1), 5);
  }
  for (int64_t i = 0; i < kWaiting; ++i) running.submit(1000, i % 8);
  measure(state, running);
}

// The same beside a prompt of a million tokens and a free slot for which 1000 requests are put in
// order; none finds blocks.
void plan_prefill_and_queue(benchmark::State& state) {
  Running running(state.range(0), state.range(0) + 2);
  running.submit(kEndless, 0);
  running.step();
  for (int64_t i = 0; i < kWaiting; ++i) running.submit(kEndless / 2, i % 8);
  running.capacity.free_blocks = kEndless / 128 + 4096 * 64;
  measure(state, running);
}

BENCHMARK(plan_decode)
    ->Arg(1)
    ->Arg(64)
    ->Arg(512)
    ->Arg(4096)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(plan_drafts_and_queue)
    ->Arg(1)
    ->Arg(64)
    ->Arg(512)
    ->Arg(4096)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(plan_prefill_and_queue)
    ->Arg(1)
    ->Arg(64)
    ->Arg(512)
    ->Arg(4096)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tidemill
