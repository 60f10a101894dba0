// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event
// Format)
#include <algorithm>
#include <numeric>

#include <nlohmann/json.hpp>

#include "observe/trace.h"
#include "observe/utf8_lossy.h"

namespace tidemill {
namespace {

using Json = nlohmann::ordered_json;

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Json arguments(const RequestRecord& record) {
  return {{"client", utf8_lossy(record.client)},
          {"model", utf8_lossy(record.model)},
          {"status", record.status},
          {"outcome", utf8_lossy(record.outcome)},
          {"reason", utf8_lossy(record.reason)},
          {"stream", record.stream},
          {"choices", record.choices},
          {"prompt_tokens", record.prompt_tokens},
          {"cached_tokens", record.cached_tokens},
          {"output_tokens", record.output_tokens},
          {"reasoning_tokens", record.reasoning_tokens},
          {"drafted", sum(record.drafted)},
          {"accepted", sum(record.accepted)},
          {"preemptions", record.preemptions},
          {"bytes_sent", record.bytes_sent}};
}

Json span_event(std::string_view name, size_t row, double begin_us, double end_us) {
  return {{"name", name},   {"cat", "request"},        {"ph", "X"}, {"pid", 1}, {"tid", row},
          {"ts", begin_us}, {"dur", end_us - begin_us}};
}

}  // namespace

std::string chrome_trace(std::span<const RequestRecord> records) {
  double epoch = 0;
  for (const RequestRecord& record : records) {
    if (&record == &records.front() || record.arrived_unix_s < epoch) {
      epoch = record.arrived_unix_s;
    }
  }
  Json events = Json::array();
  size_t row = 0;
  for (const RequestRecord& record : records) {
    ++row;
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 1},
                      {"tid", row},
                      {"args", {{"name", utf8_lossy(record.id)}}}});
    const double arrival = (record.arrived_unix_s - epoch) * 1e6;
    const std::vector<RequestPhase> phases = request_phases(record);
    Json whole =
        span_event(utf8_lossy(record.endpoint), row, arrival, arrival + phases.back().end_ms * 1e3);
    whole["args"] = arguments(record);
    events.push_back(std::move(whole));
    for (const RequestPhase& phase : phases) {
      events.push_back(span_event(phase.name, row, arrival + phase.begin_ms * 1e3,
                                  arrival + phase.end_ms * 1e3));
    }
  }
  const Json trace = {{"displayTimeUnit", "ms"},
                      {"otherData", {{"epoch_unix_s", epoch}}},
                      {"traceEvents", std::move(events)}};
  return trace.dump();
}

}  // namespace tidemill
