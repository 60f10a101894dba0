#include "cli/bench/run.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"

namespace tidemill::cli {
namespace {

constexpr double kCancelSeconds = 10;  // until the events of cancelled requests must be here

class Run {
 public:
  Run(Engine& engine, const RunPlan& plan) : engine_(engine), plan_(plan) {}

  Result<RunResult> perform() {
    before_ = engine_.stats();
    while (!over()) {
      if (!stopping_ && is_cancelled()) {
        interrupted_ = true;
        stop();
      }
      CHECK_OK(submit_due());
      for (const Event& event : engine_.poll(wait())) recorder_.take(event, now_polled());
      watch_steady();
      if (plan_.progress) plan_.progress(fraction());
      polled_.reset();
    }
    return result();
  }

 private:
  double now() const { return seconds_since(start_); }
  // Events of one poll() became visible together.
  double now_polled() {
    if (!polled_) polled_ = now();
    return *polled_;
  }
  bool open_loop() const { return !plan_.arrivals.empty(); }
  bool all_submitted() const { return stopping_ || next_ == plan_.items.size(); }
  bool is_cancelled() const {
    return plan_.cancel != nullptr && plan_.cancel->load(std::memory_order_relaxed);
  }
  bool over() const {
    if (all_submitted() && recorder_.in_flight() == 0) return true;
    return stopping_ && now() > stop_s_ + kCancelSeconds;
  }

  bool is_due() const {
    if (all_submitted()) return false;
    if (open_loop()) return plan_.arrivals[next_] <= now();
    return recorder_.in_flight() < plan_.concurrency;
  }

  Status submit_due() {
    while (is_due()) {
      const WorkItem& item = plan_.items[next_];
      Request request;
      request.prompt = item.prompt;
      request.max_tokens = item.output_tokens;
      request.ignore_end = item.exact;
      request.sampling.temperature = static_cast<float>(plan_.temperature);
      request.sampling.seed = next_;
      const double submit_s = now();
      const double arrival_s = open_loop() ? plan_.arrivals[next_] : submit_s;
      const auto id = engine_.submit(std::move(request));
      if (id) {
        recorder_.submitted(*id, next_, arrival_s, submit_s);
      } else if (id.error().code == ErrorCode::kNoCapacity) {
        recorder_.refused(next_, arrival_s, submit_s, id.error());
      } else {
        return tl::unexpected(id.error());
      }
      ++next_;
    }
    return {};
  }

  Engine::Milliseconds wait() const {
    constexpr int64_t kLongest = 50;  // how late Ctrl-C may be seen
    if (!open_loop() || all_submitted()) return Engine::Milliseconds(kLongest);
    // Whole milliseconds: an arrival is submitted up to one late, and its latency counts that.
    const auto until = static_cast<int64_t>(1000 * (plan_.arrivals[next_] - now()));
    return Engine::Milliseconds(std::clamp<int64_t>(until, 1, kLongest));
  }

  void watch_steady() {
    if (open_loop() || stopping_) return;
    if (!steady_ && recorder_.begun() >= plan_.concurrency) {
      steady_.emplace().begin_s = now_polled();
      steady_before_ = engine_.stats();
      steady_tokens_before_ = recorder_.tokens();
    }
    if (!steady_ || steady_->end_s > 0) return;
    const bool enough = plan_.steady_tokens > 0 &&
                        recorder_.tokens() - steady_tokens_before_ >= plan_.steady_tokens;
    if (enough || (all_submitted() && recorder_.in_flight() < plan_.concurrency)) {
      steady_->end_s = now_polled();
      steady_->work = work_between(steady_before_, engine_.stats());
    }
    if (enough) stop();
  }

  void stop() {
    stopping_ = true;
    stop_s_ = now();
    for (const RequestId id : recorder_.open_ids()) engine_.cancel(id);
  }

  double fraction() const {
    if (plan_.steady_tokens > 0 && steady_) {
      return static_cast<double>(recorder_.tokens() - steady_tokens_before_) /
             static_cast<double>(plan_.steady_tokens);
    }
    return static_cast<double>(recorder_.ended()) / static_cast<double>(plan_.items.size());
  }

  Result<RunResult> result() {
    RunResult result;
    result.work = work_between(before_, engine_.stats());
    result.records = recorder_.take_records();
    result.interrupted = interrupted_;
    if (steady_ && steady_->end_s > steady_->begin_s) {
      steady_->tokens = tokens_between(result.records, steady_->begin_s, steady_->end_s);
      if (steady_->tokens > 0) result.steady = std::move(steady_);
    }
    return result;
  }

  Engine& engine_;
  const RunPlan& plan_;
  Clock::time_point start_ = Clock::now();
  RunRecorder recorder_;
  size_t next_ = 0;
  std::optional<double> polled_;
  bool stopping_ = false;
  bool interrupted_ = false;
  double stop_s_ = 0;
  Stats before_, steady_before_;
  std::optional<SteadyPart> steady_;
  int64_t steady_tokens_before_ = 0;
};

}  // namespace

int64_t RunResult::tokens() const {
  int64_t count = 0;
  for (const RequestRecord& record : records) count += record.tokens();
  return count;
}

double RunResult::last_token_s() const {
  double last = 0;
  for (const RequestRecord& record : records) {
    if (!record.bursts.empty()) last = std::max(last, record.last_s());
  }
  return last;
}

double RunResult::tokens_per_second() const {
  const double seconds = last_token_s();
  return seconds > 0 ? static_cast<double>(tokens()) / seconds : 0;
}

Result<RunResult> run_workload(Engine& engine, const RunPlan& plan) {
  return Run(engine, plan).perform();
}

}  // namespace tidemill::cli
