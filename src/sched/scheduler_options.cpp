#include "sched/scheduler_options.h"

#include <cmath>

namespace tidemill {
namespace {

Status in_range(std::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return fail(ErrorCode::kInvalidArgument, "{} is {}; it must be between {} and {}", name, value,
              low, high);
}

Status at_least(std::string_view name, double value, double low) {
  if (std::isfinite(value) && value >= low) return {};
  return fail(ErrorCode::kInvalidArgument, "{} is {}; it must be a number of at least {}", name,
              value, low);
}

}  // namespace

Status SchedulerOptions::check() const {
  constexpr int64_t kMost = int64_t{1} << 40;
  CHECK_OK(in_range("context", context, 1, int64_t{1} << 32));
  CHECK_OK(in_range("pool_blocks", pool_blocks, 1, kMost));
  CHECK_OK(in_range("block_tokens", block_tokens, 1, 1 << 20));
  CHECK_OK(in_range("max_sequences", max_sequences, 1, 1 << 20));
  CHECK_OK(in_range("min_chunk", min_chunk, 1, 1 << 20));
  CHECK_OK(in_range("chunk_align", chunk_align, 1, 1 << 20));
  // Then decode never leaves prefill without room for a chunk.
  CHECK_OK(in_range("max_step_tokens", max_step_tokens, max_sequences + 2 * min_chunk, kMost));
  CHECK_OK(at_least("step_ms", step_ms, 0));
  CHECK_OK(in_range("floor_every", floor_every, 1, kMost));
  CHECK_OK(in_range("max_waiting", max_waiting, 1, kMost));
  CHECK_OK(in_range("max_tenant_waiting", max_tenant_waiting, 1, kMost));
  CHECK_OK(in_range("max_waiting_tokens", max_waiting_tokens, 1, int64_t{1} << 60));
  CHECK_OK(at_least("watermark", watermark, 0));
  if (watermark >= 1) {
    return fail(ErrorCode::kInvalidArgument, "watermark is {}; it must be below 1", watermark);
  }
  CHECK_OK(at_least("reservation_ms", reservation_ms, 0));
  CHECK_OK(in_range("lookahead", lookahead, 1, kMost));
  CHECK_OK(at_least("age_ms", age_ms, 1));
  CHECK_OK(at_least("age_ms_per_token", age_ms_per_token, 0));
  CHECK_OK(in_range("fair_quantum", fair_quantum, 1, kMost));
  CHECK_OK(in_range("snapshot_from", snapshot_from, 0, std::numeric_limits<int64_t>::max()));
  CHECK_OK(in_range("max_priority_preemptions", max_priority_preemptions, 0, kMost));
  CHECK_OK(in_range("cost.min_samples", cost.min_samples, 3, kMost));
  CHECK_OK(at_least("cost.ridge", cost.ridge, 0));
  CHECK_OK(at_least("cost.outlier", cost.outlier, 1.1));
  if (!(cost.memory > 0 && cost.memory <= 1)) {
    return fail(ErrorCode::kInvalidArgument, "cost.memory is {}; it must be in (0, 1]",
                cost.memory);
  }
  return {};
}

}  // namespace tidemill
