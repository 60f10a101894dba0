// What happened to each request of a benchmark run, and when. Knows times and events only, so that
// its arithmetic can be tested without an engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tidemill/engine.h"

namespace tidemill::cli {

// Tokens that one event brought: several where a step's drafts stood.
struct TokenBurst {
  double at_s = 0;
  int64_t tokens = 0;
};

// Times are seconds since the start of the run.
struct RequestRecord {
  size_t index = 0;
  // When the request came into being: in an open loop its place on the arrival clock, even if it
  // could not be submitted at once. Every latency starts here.
  double arrival_s = 0;
  double submit_s = 0;
  double end_s = 0;
  std::vector<TokenBurst> bursts;  // in order
  FinishReason finish = FinishReason::kNone;
  std::string error;  // kRefused, kError
  Usage usage;

  bool failed() const { return finish == FinishReason::kRefused || finish == FinishReason::kError; }
  int64_t tokens() const;
  // Only of a request that has tokens.
  double first_s() const { return bursts.front().at_s; }
  double last_s() const { return bursts.back().at_s; }
  double ttft_ms() const { return 1000 * (first_s() - arrival_s); }
  double total_ms() const { return 1000 * (end_s - arrival_s); }
  // From arrival until the engine started it.
  double queued_ms() const { return 1000 * (submit_s - arrival_s) + usage.queued_ms; }
};

// One thread.
class RunRecorder {
 public:
  void submitted(RequestId id, size_t index, double arrival_s, double submit_s);
  void refused(size_t index, double arrival_s, double submit_s, const Error& error);
  // Events of unknown requests are ignored.
  void take(const Event& event, double now_s);

  int64_t in_flight() const { return static_cast<int64_t>(open_.size()); }
  int64_t ended() const { return static_cast<int64_t>(records_.size()); }
  // Requests that have had a token.
  int64_t begun() const { return begun_; }
  int64_t tokens() const { return tokens_; }
  std::vector<RequestId> open_ids() const;

  // Of requests that ended, in the order of their ends.
  std::vector<RequestRecord> take_records() { return std::move(records_); }

 private:
  std::unordered_map<RequestId, RequestRecord> open_;
  std::vector<RequestRecord> records_;
  int64_t begun_ = 0;
  int64_t tokens_ = 0;
};

// Tokens that came after `begin_s` and not after `end_s`.
int64_t tokens_between(std::span<const RequestRecord> records, double begin_s, double end_s);

// Time that the engine spent and what it did in it: the difference of two Stats.
struct StepWork {
  int64_t steps = 0;
  int64_t prefill_tokens = 0;
  int64_t request_steps = 0;  // decode rows that are not drafts
  int64_t output_tokens = 0;
  std::vector<int64_t> drafted, accepted;  // by position
  std::vector<double> predicted;           // acceptances that the confidences announced
  double busy_ms = 0, idle_ms = 0;         // of the device
  double plan_ms = 0, commit_ms = 0, exposed_ms = 0;
  int64_t preemptions = 0;

  StepWork& operator+=(const StepWork& other);
  int64_t all_drafted() const;
  int64_t all_accepted() const;
  // Of one request in decode: 1 and the drafts that stood. 0 without decode steps.
  double tokens_per_step() const;
  double idle_share() const;  // of the device's time; 0 to 1
  double host_ms() const { return plan_ms + commit_ms; }
  // Of the host's work, the share that ran while the device computed.
  double hidden_share() const;
};
StepWork work_between(const Stats& before, const Stats& after);

}  // namespace tidemill::cli
