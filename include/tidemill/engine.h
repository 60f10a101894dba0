// The engine: a loaded model that answers many requests at once. Continuous batching, reuse of
// prefixes, drafts and preemption happen inside; the tokens of a request are those it would have
// alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidemill/options.h"
#include "tidemill/request.h"

namespace tidemill {

struct ModelInfo {
  int64_t vocabulary = 0;
  int64_t context = 0;     // of this engine
  int64_t max_drafts = 0;  // per step
  int64_t prefill_chunk = 0;
  int threads = 0;
  std::vector<int32_t> end_tokens;
  int64_t weight_bytes = 0;
  std::string weights_held;  // how: "7.9 GiB in huge pages", "322.3 MiB mapped"
  SamplingParams defaults;   // the checkpoint's
  std::string memory_table;  // where the memory goes
  std::string cache_rule;    // the smallest reusable prefix and why
};

// Counters since open().
struct Stats {
  int64_t submitted = 0;  // choices, like all that follows
  int64_t finished = 0;
  int64_t waiting = 0;
  int64_t running = 0;
  int64_t preemptions = 0;
  int64_t suspends = 0;  // preemptions to host memory

  int64_t steps = 0;
  int64_t prefill_tokens = 0;  // computed
  int64_t decode_rows = 0;     // computed: one per request and step, and one per draft
  int64_t output_tokens = 0;
  std::vector<int64_t> drafted;  // by position
  std::vector<int64_t> accepted;
  std::vector<int64_t> reached;   // drafted, and all before it accepted
  std::vector<double> predicted;  // acceptances that the confidences of `reached` announced
  std::string calibration;        // the same per Request::tag, as a table

  // Wall time of the device and of the host beside it, in milliseconds.
  double device_busy_ms = 0;
  double device_idle_ms = 0;  // while requests were running
  double forward_ms = 0;      // of busy
  double plan_ms = 0;         // host: plan and launch
  double commit_ms = 0;       // host: results
  double exposed_ms = 0;      // of these two: while the device had nothing to do
  double last_idle_ms = 0;    // of the latest step
  int64_t late_steps = 0;     // that the device had to wait for

  int64_t pool_blocks = 0;
  int64_t free_blocks = 0;
  int64_t slots = 0;
  int64_t free_slots = 0;
  int64_t suspended_bytes = 0;

  int64_t cache_lookups = 0;
  int64_t cache_hits = 0;
  int64_t cache_asked_tokens = 0;
  int64_t cache_hit_tokens = 0;
  int64_t cache_replays = 0;
  int64_t cache_blocks = 0;
  int64_t cache_evicted_blocks = 0;
  int64_t window_bytes = 0;
  std::vector<std::pair<std::string, int64_t>> cache_misses;  // by reason

  int64_t grammar_entries = 0;
  int64_t grammar_bytes = 0;
  int64_t grammars_compiling = 0;
};

// submit(), cancel(), stats() and drain() may be called from any thread; poll() by one consumer at
// a time; step() by one thread at a time. Destroying an engine drops what is in it.
class Engine {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // Loads the model and starts. `progress` sees 0 to 1 while weights are read. Errors: those of the
  // options (kInvalidArgument, kConflictingOptions), of the files and of the checkpoint, and
  // kNoCapacity when the memory does not hold one sequence.
  static Result<std::unique_ptr<Engine>> open(const Options& options,
                                              std::function<void(double)> progress = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Errors: kRequest and kInvalidArgument (field, value and range), kTokenOutOfRange,
  // kContextLength, kNoCapacity (full or draining; the text says when to try again), kDeadline. A
  // request is taken whole, with all its choices, or not at all.
  Result<RequestId> submit(Request request);
  // Its last events follow, unless the engine has decided them already. False: not known or ended.
  bool cancel(RequestId id);

  // All events since the last call, in the order of their making; waits for the first one up to
  // `wait` (not with own_thread off: nothing happens then but in step()). Empty: none came in time.
  std::vector<Event> poll(Milliseconds wait = Milliseconds(0));

  // With own_thread off: one turn of the loop; waits for the device at most `wait`. Events go to
  // poll(). False: there was nothing to do. Errors are of the engine as a whole; every request ends
  // with kError and nothing is accepted any more.
  Result<bool> step(Milliseconds wait = Milliseconds(1000));

  // Waits until all steps launched before the call have come back and their events are in poll().
  // Error kDeadline.
  Status flush(Milliseconds wait);
  // Takes no more requests and waits until all have ended. Those that have not by then are
  // cancelled: kDeadline, with their number. Their events are in poll() in either case.
  Status drain(Milliseconds wait);

  const ModelInfo& info() const;
  Stats stats() const;
  // Forgets all cached state that no request uses.
  void clear_cache();

  // Text as a caller writes it: no special token is recognised in it.
  std::vector<int32_t> encode(std::string_view text) const;
  std::string decode(std::span<const int32_t> tokens) const;

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidemill
