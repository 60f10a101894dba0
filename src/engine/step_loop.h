// The host's side of the step loop: takes requests in, plans steps, hands them to the device, turns
// outcomes into events. While step N runs, the outcome of N - 1 is committed and N + 1 is planned
// and launched; nothing in between waits.
//
// Not thread safe: the engine's lock guards it. Only Device::wait may be called without the lock,
// by the thread that turns the loop.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/answer_text.h"
#include "engine/constraints.h"
#include "engine/device.h"
#include "engine/model_runner.h"
#include "engine/step_job.h"
#include "sched/draft_calibration.h"
#include "sched/draft_feedback.h"
#include "sched/draft_scheduler.h"
#include "sched/scheduler.h"
#include "state/prefix_cache.h"
#include "tidemill/engine.h"

namespace tidemill {

struct LoopOptions {
  SchedulerOptions scheduler;  // context, pool_blocks and max_step_tokens come from the runner
  DraftPolicy drafts;
  std::optional<CostCurve> draft_cost;  // profile of the device
  DraftTemperatures temperatures;
  Verification verification = Verification::kKeyed;
  bool prefix_cache = true;
  int64_t fill_context = 0;  // Options::fill_context
  WindowOptions windows;
  int64_t replay_keep = 0;
  bool encoder_replay = false;
  int64_t suspend_bytes = 0;
  std::string identity;  // of the checkpoint: checkpoint_digest()
};

class StepLoop {
 public:
  // Runner and constraints must outlive it. Errors: kInvalidArgument.
  static Result<std::unique_ptr<StepLoop>> create(ModelRunner& runner, Constraints& constraints,
                                                  LoopOptions options);
  ~StepLoop();

  // ---- requests (tidemill/engine.h)
  // What is wrong with a request whatever else is there. Looks at nothing that changes: needs no
  // lock.
  Status check(const Request& request) const;
  // A request that passed check(), and its constraint.
  Result<RequestId> submit(Request request, std::optional<GrammarSpec> constraint);
  bool cancel(RequestId id);
  void drain() { scheduler_.drain(); }
  int64_t requests() const { return static_cast<int64_t>(groups_.size()); }
  std::vector<RequestId> ids() const;
  std::vector<Event> take_events() { return std::exchange(events_, {}); }

  // ---- the loop. A turn: wait for the device if must_wait(), then commit(), then launch().
  // The pipeline is full, or nothing can be planned before a step in flight has ended.
  bool must_wait() const {
    return in_flight() > 0 && (in_flight() >= depth_ || stalled_ || failed_);
  }
  int64_t in_flight() const { return static_cast<int64_t>(flights_.size()); }
  Device& device() { return *device_; }
  int64_t launched() const { return launched_; }
  int64_t committed() const { return launched_ - in_flight(); }
  // Takes in all outcomes that are there. An error is one of the engine: all requests have ended
  // with it, and no more are accepted.
  Status commit();
  // Plans and launches a step; false when there is none to launch now.
  Result<bool> launch();
  // Ends all requests.
  void fail_all(const Error& error);

  Stats stats();
  void clear_cache() { prefixes_.clear(); }
  std::string cache_rule() const;
  const std::vector<int32_t>& end_tokens() const { return ends_; }

 private:
  struct Answer;
  struct Group;
  struct Flight {
    uint64_t step = 0;
    std::vector<RequestId> answers;  // in the order of the job's items
    std::vector<PlanItem> items;
  };

  StepLoop(ModelRunner& runner, Constraints& constraints, LoopOptions options, Scheduler scheduler,
           DraftScheduler drafts);
  double now_ms() const { return 1e3 * seconds_since(epoch_); }

  // step_loop.cpp: the life of requests
  bool shares_prompt(const Group& group) const;
  Status enqueue(Group& group, double now);
  void add_answer(Group& group, int64_t choice);
  void release_siblings(Group& group);
  void take_grammars();
  void finish(Answer& answer, FinishReason reason, Error error = {});

  // step_launch.cpp: from a plan to a job
  Capacity capacity();
  PrefixReuse find_prefix(Answer& answer);
  PrefixReuse filled_prefix(Answer& answer);
  void end_lookups(const StepPlan& plan);
  static void fill_tokens(Answer& answer);
  void preempt(const Preemption& preemption, StepJob& job);
  Status start(Answer& answer, const PlanItem& plan, JobItem& item);
  Status add_item(const PlanItem& plan, StepJob& job, Flight& flight);
  Status plan_drafts(const StepPlan& plan, StepJob& job);
  void weigh_drafts(const DraftDemand& demand, const DraftPlan& drafts);
  void send(StepJob job, Flight flight);

  // step_commit.cpp: from an outcome to events
  Status commit_one(StepOutcome& outcome);
  ItemResult take_outputs(Answer& answer, ItemOutcome& out, Event& event);
  void settle(Answer& answer, ItemOutcome& out);
  Status learn(StepOutcome& outcome);
  void count(const StepOutcome& outcome);

  ModelRunner& runner_;
  Constraints& constraints_;
  const LoopOptions options_;
  Scheduler scheduler_;
  DraftScheduler drafts_;
  DraftFeedback feedback_;
  SamplerTime draft_time_{0.0};  // of the draft pass
  CalibrationReport calibration_;
  PrefixCache prefixes_;
  StateIdentity identity_;
  std::vector<int32_t> ends_;
  int64_t depth_ = 2;  // steps in flight at most

  Clock::time_point epoch_ = Clock::now();
  RequestId next_request_ = 1;
  RequestId next_answer_ = 1;
  std::unordered_map<RequestId, std::unique_ptr<Group>> groups_;    // by the client's id
  std::unordered_map<RequestId, std::unique_ptr<Answer>> answers_;  // by ids of our own
  std::unordered_map<GrammarPool::Ticket, Group*> compiling_;
  std::vector<Answer*> looked_up_;  // by the plan in the making
  std::deque<Flight> flights_;
  int64_t launched_ = 0;
  bool stalled_ = false;
  bool idle_ = true;             // the device is not expected to have work
  int64_t draft_steps_ = 0;      // steps planned: the clock of draft decisions
  int64_t processed_steps_ = 0;  // steps committed: the clock of confidences
  int64_t suspended_total_ = 0;  // bytes
  std::optional<Error> failed_;
  std::vector<Event> events_;
  Stats stats_;

  std::unique_ptr<Device> device_;  // last: its thread ends first
};

}  // namespace tidemill
