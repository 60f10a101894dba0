// The device as the loop sees it: a queue of steps that runs by itself. On a host backend it is a
// thread, rank 0 of the kernel team; it alone touches the memory of slots and blocks while a step
// runs.
//
// A step knows lengths that the loop did not know when it planned: whose drafts were accepted, who
// has ended. The device corrects them here, at the start of the step, from its own copies.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/model_runner.h"
#include "engine/step_job.h"
#include "sample/sampler.h"
#include "sched/draft_calibration.h"

namespace tidemill {

enum class Verification : uint8_t { kKeyed, kRejection };

struct DeviceOptions {
  int64_t draft_length = 0;  // drafts made behind a step; 0: none
  DraftTemperatures temperatures;
  Verification verification = Verification::kKeyed;
};

// launch() and the waits belong to one thread, the loop's.
class Device {
 public:
  // The runner must outlive it, and nobody else uses its forward pass.
  Device(ModelRunner& runner, DeviceOptions options);
  // Waits for the running step; queued ones are dropped.
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Returns at once. Jobs run in the order of launch.
  void launch(StepJob job);
  // The outcome of the oldest job, if it has ended.
  std::optional<StepOutcome> take();
  // Waits until take() has something. False: the deadline passed.
  bool wait(Deadline deadline);

 private:
  struct Row;
  struct Computed;

  void work();
  StepOutcome execute(StepJob& job);
  Status run_step(StepJob& job, StepOutcome& out);
  void begin_item(JobItem& item);
  void allocate(const StepJob& job, std::vector<Row>& rows) const;
  void make_input(const StepJob& job, Row& row) const;
  Status run_part(std::span<Row> all, size_t part, StepOutcome& out);
  bool draws_on_backend(const DeviceRequest& request) const;
  std::vector<DrawRow> draws_of(std::span<Row* const> rows, std::span<const StepItem> items) const;
  Status sample(Row& row, const Computed& computed);
  Status keep(Row& row, std::span<const int32_t> drawn, std::span<const float> logits);
  void copy_windows(Row& row) const;
  Status draft(std::span<Row> rows, StepOutcome& out);
  Status draft_group(std::span<DeviceRequest* const> group);

  ModelRunner& runner_;
  const DeviceOptions options_;
  const int64_t vocabulary_;
  Sampler sampler_;
  std::vector<uint32_t> mask_;
  int64_t step_ = 0;  // steps with items, the current one included

  std::mutex mutex_;
  std::condition_variable launched_;
  std::condition_variable finished_;
  std::deque<StepJob> jobs_;
  std::deque<StepOutcome> outcomes_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tidemill
