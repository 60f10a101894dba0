#include "cli/bench/recorder.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tidemill::cli {
namespace {

int64_t sum(std::span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

template <typename T>
void add(std::vector<T>& to, const std::vector<T>& values) {
  to.resize(std::max(to.size(), values.size()));
  for (size_t i = 0; i < values.size(); ++i) to[i] += values[i];
}

template <typename T>
std::vector<T> difference(std::vector<T> after, const std::vector<T>& before) {
  for (size_t i = 0; i < std::min(after.size(), before.size()); ++i) after[i] -= before[i];
  return after;
}

}  // namespace

int64_t RequestRecord::tokens() const {
  int64_t count = 0;
  for (const TokenBurst& burst : bursts) count += burst.tokens;
  return count;
}

void RunRecorder::submitted(RequestId id, size_t index, double arrival_s, double submit_s) {
  RequestRecord record;
  record.index = index;
  record.arrival_s = arrival_s;
  record.submit_s = submit_s;
  open_.emplace(id, std::move(record));
}

void RunRecorder::refused(size_t index, double arrival_s, double submit_s, const Error& error) {
  RequestRecord record;
  record.index = index;
  record.arrival_s = arrival_s;
  record.submit_s = record.end_s = submit_s;
  record.finish = FinishReason::kRefused;
  record.error = error.message;
  records_.push_back(std::move(record));
}

void RunRecorder::take(const Event& event, double now_s) {
  const auto at = open_.find(event.id);
  if (at == open_.end()) return;
  RequestRecord& record = at->second;
  if (const auto count = static_cast<int64_t>(event.tokens.size()); count > 0) {
    tokens_ += count;
    if (record.bursts.empty()) ++begun_;
    record.bursts.push_back({now_s, count});
  }
  if (event.finish != FinishReason::kNone) {
    record.finish = event.finish;
    record.usage = event.usage;
    record.error = event.error.message;
  }
  if (event.last) {
    record.end_s = now_s;
    records_.push_back(std::move(record));
    open_.erase(at);
  }
}

std::vector<RequestId> RunRecorder::open_ids() const {
  std::vector<RequestId> ids;
  for (const auto& [id, record] : open_) ids.push_back(id);
  return ids;
}

int64_t tokens_between(std::span<const RequestRecord> records, double begin_s, double end_s) {
  int64_t count = 0;
  for (const RequestRecord& record : records) {
    for (const TokenBurst& burst : record.bursts) {
      if (burst.at_s > begin_s && burst.at_s <= end_s) count += burst.tokens;
    }
  }
  return count;
}

StepWork& StepWork::operator+=(const StepWork& other) {
  steps += other.steps;
  prefill_tokens += other.prefill_tokens;
  request_steps += other.request_steps;
  output_tokens += other.output_tokens;
  add(drafted, other.drafted);
  add(accepted, other.accepted);
  add(predicted, other.predicted);
  busy_ms += other.busy_ms;
  idle_ms += other.idle_ms;
  plan_ms += other.plan_ms;
  commit_ms += other.commit_ms;
  exposed_ms += other.exposed_ms;
  preemptions += other.preemptions;
  return *this;
}

int64_t StepWork::all_drafted() const { return sum(drafted); }
int64_t StepWork::all_accepted() const { return sum(accepted); }

double StepWork::tokens_per_step() const {
  if (request_steps <= 0) return 0;
  return 1 + static_cast<double>(all_accepted()) / static_cast<double>(request_steps);
}

double StepWork::idle_share() const {
  const double all = busy_ms + idle_ms;
  return all > 0 ? idle_ms / all : 0;
}

double StepWork::hidden_share() const {
  return host_ms() > 0 ? std::clamp(1 - exposed_ms / host_ms(), 0.0, 1.0) : 0;
}

StepWork work_between(const Stats& before, const Stats& after) {
  StepWork work{.steps = after.steps - before.steps,
                .prefill_tokens = after.prefill_tokens - before.prefill_tokens,
                .request_steps = after.decode_rows - before.decode_rows,
                .output_tokens = after.output_tokens - before.output_tokens,
                .drafted = difference(after.drafted, before.drafted),
                .accepted = difference(after.accepted, before.accepted),
                .predicted = difference(after.predicted, before.predicted),
                .busy_ms = after.device_busy_ms - before.device_busy_ms,
                .idle_ms = after.device_idle_ms - before.device_idle_ms,
                .plan_ms = after.plan_ms - before.plan_ms,
                .commit_ms = after.commit_ms - before.commit_ms,
                .exposed_ms = after.exposed_ms - before.exposed_ms,
                .preemptions = after.preemptions - before.preemptions};
  work.request_steps -= work.all_drafted();
  return work;
}

}  // namespace tidemill::cli
