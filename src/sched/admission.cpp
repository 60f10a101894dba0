#include "sched/admission.h"

#include <algorithm>
#include <cmath>

namespace tidemill {
namespace {

constexpr double kKeep = 0.95;  // weight of the past in the averages
constexpr double kMostRetrySeconds = 600;

void average(double& mean, double value) {
  mean = mean > 0 ? kKeep * mean + (1 - kKeep) * value : value;
}

int64_t retry_seconds(double ms) {
  return static_cast<int64_t>(std::ceil(std::clamp(ms / 1000, 1.0, kMostRetrySeconds)));
}

template <typename... Args>
Refusal refusal(RequestId id, Why why, int64_t retry_after, ErrorCode code,
                fmt::format_string<Args...> text, Args&&... args) {
  return {id, why, Error{code, fmt::format(text, std::forward<Args>(args)...)}, retry_after};
}

std::optional<Refusal> never_possible(const Arrival& a, const SchedulerOptions& options) {
  if (a.prompt_tokens < 1 || a.max_tokens < 1) {
    return refusal(a.id, Why::kInvalid, 0, ErrorCode::kRequest,
                   "a prompt of {} tokens and max_tokens {}: both must be at least 1",
                   a.prompt_tokens, a.max_tokens);
  }
  if (std::abs(static_cast<int64_t>(a.priority)) > Arrival::kMaxPriority) {
    return refusal(a.id, Why::kInvalid, 0, ErrorCode::kRequest,
                   "priority {} is not between -{} and {}", a.priority, Arrival::kMaxPriority,
                   Arrival::kMaxPriority);
  }
  if (std::isnan(a.deadline)) {
    return refusal(a.id, Why::kInvalid, 0, ErrorCode::kRequest, "the deadline is not a number");
  }
  // Compared without a sum: both numbers are a client's.
  if (a.prompt_tokens > options.context || a.max_tokens > options.context - a.prompt_tokens) {
    return refusal(a.id, Why::kContext, 0, ErrorCode::kContextLength,
                   "{} prompt tokens + {} output tokens exceed the context of {}", a.prompt_tokens,
                   a.max_tokens, options.context);
  }
  // The last output is never computed.
  const int64_t positions = a.prompt_tokens + a.max_tokens - 1;
  const int64_t blocks = (positions + options.block_tokens - 1) / options.block_tokens;
  if (blocks > options.pool_blocks) {
    return refusal(a.id, Why::kPool, 0, ErrorCode::kContextLength,
                   "{} prompt tokens + {} output tokens need {} blocks of {} tokens; the whole "
                   "pool has {}",
                   a.prompt_tokens, a.max_tokens, blocks, options.block_tokens,
                   options.pool_blocks);
  }
  return std::nullopt;
}

}  // namespace

void Throughput::add_step(int64_t tokens, double ms) {
  if (!std::isfinite(ms) || ms <= 0 || tokens <= 0) return;
  average(step_ms, ms);
  average(step_tokens, static_cast<double>(tokens));
}

void Throughput::add_finished(int64_t request_outputs) {
  average(outputs, static_cast<double>(request_outputs));
}

double Throughput::drain_ms(RequestQueue::Backlog backlog) const {
  if (tokens_per_ms() <= 0) return 0;
  return (static_cast<double>(backlog.tokens) + outputs * static_cast<double>(backlog.requests)) /
         tokens_per_ms();
}

std::optional<Refusal> refuse(const Arrival& a, double now, const SchedulerOptions& options,
                              const AdmissionView& view) {
  if (auto impossible = never_possible(a, options)) return impossible;
  const RequestQueue& queue = *view.queue;
  const Throughput& throughput = *view.throughput;

  if (queue.size() >= options.max_waiting) {
    return refusal(a.id, Why::kQueueRequests,
                   retry_seconds(throughput.drain_ms({1, queue.tokens() / queue.size()})),
                   ErrorCode::kNoCapacity, "{} requests wait already, the most allowed is {}",
                   queue.size(), options.max_waiting);
  }
  if (a.prompt_tokens > options.max_waiting_tokens - queue.tokens() && !queue.empty()) {
    const int64_t excess = a.prompt_tokens - (options.max_waiting_tokens - queue.tokens());
    return refusal(a.id, Why::kQueueTokens, retry_seconds(throughput.drain_ms({0, excess})),
                   ErrorCode::kNoCapacity,
                   "prompts of {} tokens wait already; with {} more they exceed the {} allowed",
                   queue.tokens(), a.prompt_tokens, options.max_waiting_tokens);
  }
  if (view.tenant_waiting >= options.max_tenant_waiting) {
    return refusal(a.id, Why::kTenantQueue,
                   retry_seconds(throughput.drain_ms({1, queue.tokens() / queue.size()})),
                   ErrorCode::kNoCapacity,
                   "{} requests of this tenant wait already, the most allowed is {}",
                   view.tenant_waiting, options.max_tenant_waiting);
  }
  if (a.deadline <= now) {
    return refusal(a.id, Why::kDeadlinePassed, 0, ErrorCode::kDeadline,
                   "the deadline passed {:.0f} ms before the request arrived", now - a.deadline);
  }
  if (throughput.tokens_per_ms() > 0) {
    const double wait = throughput.drain_ms(queue.ahead_of(a.priority));
    const double outputs = std::min(throughput.outputs, static_cast<double>(a.max_tokens));
    const double work = static_cast<double>(a.prompt_tokens) / throughput.tokens_per_ms() +
                        outputs * throughput.step_ms;
    const double late = wait + work - (a.deadline - now);
    if (late > 0) {
      // Waiting longer does not help a request whose own work is too long.
      const int64_t retry = wait > 0 ? retry_seconds(std::min(late, wait)) : 0;
      return refusal(a.id, Why::kWaitTooLong, retry, ErrorCode::kDeadline,
                     "about {:.0f} ms of waiting and {:.0f} ms of work do not fit into the {:.0f} "
                     "ms to the deadline",
                     wait, work, a.deadline - now);
    }
  }
  return std::nullopt;
}

}  // namespace tidemill
