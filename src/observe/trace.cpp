#include "observe/trace.h"

#include <algorithm>
#include <array>

namespace tidemill {

std::vector<RequestPhase> request_phases(const RequestRecord& record) {
  struct Start {
    std::string_view name;
    double at_ms;
  };
  const std::array<Start, 4> starts = {{{"prepare", 0},
                                        {"queue", record.prepared_ms},
                                        {"prefill", record.started_ms},
                                        {"decode", record.first_token_ms}}};
  const double end = std::max(record.ended_ms, 0.0);
  std::vector<RequestPhase> phases;
  for (const Start& start : starts) {
    if (start.at_ms < 0) continue;
    // Clocks of several threads: the phases stay in their order.
    const double begin = std::clamp(start.at_ms, phases.empty() ? 0 : phases.back().begin_ms, end);
    if (!phases.empty()) phases.back().end_ms = begin;
    phases.push_back({start.name, begin, end});
  }
  return phases;
}

RequestTrace::RequestTrace(size_t capacity)
    : capacity_(std::clamp(capacity, size_t{1}, kMaxCapacity)) {}

void RequestTrace::add(const RequestRecord& record) {
  const std::lock_guard lock(mutex_);
  if (records_.size() == capacity_) records_.pop_front();
  records_.push_back(record);
}

std::vector<RequestRecord> RequestTrace::recent(size_t n) const {
  const std::lock_guard lock(mutex_);
  n = std::min(n, records_.size());
  return {records_.rbegin(), records_.rbegin() + static_cast<std::ptrdiff_t>(n)};
}

std::string RequestTrace::chrome_json() const {
  // Written outside the lock: it takes milliseconds.
  std::vector<RequestRecord> records = recent(kMaxCapacity);
  std::reverse(records.begin(), records.end());
  return chrome_trace(records);
}

}  // namespace tidemill
