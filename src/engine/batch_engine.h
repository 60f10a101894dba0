// Many requests on one model: continuous batching with chunked prefill, reuse of prefixes, drafts,
// preemption by recompute, cancellation.
//
// The tokens of a request are those it would have alone: the forward pass does not depend on the
// batch, noise is a function of seed and position, drafts are verified with the target's own noise,
// and a prefix hit restores the very state of a run without it.
//
// Not thread safe. step() runs one step of the device to its end; nothing is in flight between
// calls.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/model_runner.h"
#include "sample/grammar.h"
#include "sample/penalties.h"
#include "sample/sampler.h"
#include "sched/scheduler.h"
#include "state/prefix_cache.h"
#include "tidemill/sampling.h"

namespace tidemill {

struct BatchRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int64_t max_tokens = 256;
  std::vector<int32_t> stop_tokens;  // besides the model's own
  bool ignore_end = false;           // the model's end-of-sequence ids do not stop
  int64_t drafts = -1;               // per step; -1: BatchOptions::drafts
  TenantId tenant = 0;
  int32_t priority = 0;                                         // the lower, the more urgent
  double timeout_ms = std::numeric_limits<double>::infinity();  // for the whole answer
  std::string cache_salt;  // prefixes are shared among requests with an equal salt only
  std::shared_ptr<const CompiledGrammar> grammar;
  Prompt::Start start = Prompt::Start::kContent;  // where the prompt leaves the answer
};

enum class BatchFinish : uint8_t { kNone, kStop, kLength, kCancelled, kRefused, kError };
std::string_view to_string(BatchFinish finish);

struct BatchUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, not computed
  int64_t output_tokens = 0;
  int64_t drafted = 0;   // verified
  int64_t accepted = 0;  // of them
  int64_t preemptions = 0;
  double first_token_ms = 0;  // since submit
};

// Tokens of one request, in order; the last event of a request has `finish` set, and nothing
// follows it. Every accepted request gets exactly one such event.
struct BatchEvent {
  RequestId id = 0;
  std::vector<int32_t> tokens;
  BatchFinish finish = BatchFinish::kNone;
  Error error;       // kRefused and kError
  BatchUsage usage;  // so far
};

struct BatchOptions {
  SchedulerOptions scheduler;  // context, pool_blocks and max_step_tokens come from the engine
  int64_t drafts = 0;          // default of a request
  bool prefix_cache = true;
  WindowOptions windows;
};

struct BatchStats {
  int64_t steps = 0;
  int64_t prefill_tokens = 0;  // computed
  int64_t decode_rows = 0;
  int64_t preemptions = 0;
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t free_blocks = 0;
  int64_t free_slots = 0;
  double device_ms = 0;  // in forward and drafter
  double total_ms = 0;   // in step()
  PrefixCacheStats prefix;
};

class BatchEngine {
 public:
  // The engine must outlive it and is used by nobody else. Errors: kInvalidArgument.
  static Result<std::unique_ptr<BatchEngine>> create(ModelRunner& engine,
                                                     const BatchOptions& options);
  ~BatchEngine();

  // Errors: kInvalidArgument or kRequest (the field and its value), kContextLength, kNoCapacity
  // (queue full, with an estimate when to try again), kTokenOutOfRange.
  Result<RequestId> submit(BatchRequest request);
  // The request's last event follows with the next step(). False: not known or ended.
  bool cancel(RequestId id);
  // Runs one step and appends what it gave. False: there is nothing to do.
  // An error is one of the whole engine; a request's own error is its event.
  Result<bool> step(std::vector<BatchEvent>& events);
  // From now on every submit is refused.
  void drain() { scheduler_.drain(); }

  BatchStats stats();

 private:
  struct Entry;
  struct Row;

  BatchEngine(ModelRunner& engine, const BatchOptions& options, Scheduler scheduler);
  Status check(const BatchRequest& request) const;
  Capacity capacity();
  int64_t find_prefix(Entry& entry);
  Status start(Entry& entry, const PlanItem& item);
  void preempt(Entry& entry);
  Status run(const StepPlan& plan, std::vector<Row>& rows);
  Status run_part(std::span<Row* const> rows, bool first);
  Status sample(Row& row);
  void settle(Entry& entry);
  Status draft();
  void finish(Entry& entry, BatchFinish finish, std::vector<BatchEvent>& events, Error error = {});
  bool is_end(const Entry& entry, int32_t id) const;
  double now_ms() const;

  ModelRunner& engine_;
  BatchOptions options_;
  Scheduler scheduler_;
  PrefixCache prefixes_;
  Sampler sampler_;
  std::vector<int32_t> ends_;
  std::vector<uint32_t> mask_;
  Clock::time_point epoch_ = Clock::now();
  RequestId next_id_ = 1;
  std::unordered_map<RequestId, std::unique_ptr<Entry>> entries_;
  std::vector<RequestId> cancelled_;
  BatchStats stats_;
};

}  // namespace tidemill
