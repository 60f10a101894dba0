// Where the time of single requests went.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "observe/request_record.h"

namespace tidemill {

// The phases of a request one after the other; they fill the time from arrival to end without gaps.
// A phase that the request did not reach is absent: the last one reached lasts until the end.
struct RequestPhase {
  std::string_view name;  // prepare (also receives the body), queue, prefill, decode
  double begin_ms = 0;    // since arrival
  double end_ms = 0;
};
std::vector<RequestPhase> request_phases(const RequestRecord& record);

// The last records of a server. Any thread.
class RequestTrace {
 public:
  static constexpr size_t kMaxCapacity = 100'000;

  // How many are kept, 1 to kMaxCapacity; others are clamped.
  explicit RequestTrace(size_t capacity = 1000);

  void add(const RequestRecord& record);
  // At most n, the latest first.
  std::vector<RequestRecord> recent(size_t n) const;
  // chrome_trace of all.
  std::string chrome_json() const;

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::deque<RequestRecord> records_;
};

// Chrome's trace event format (JSON object form), for Perfetto: a row for each request, with one
// span for the whole and one for each phase inside it; token counts are in the arguments. Times are
// in microseconds from the earliest arrival.
std::string chrome_trace(std::span<const RequestRecord> records);

// The body of a POST to /v1/traces of an OTLP/HTTP collector (JSON encoding of protobuf): a server
// span for each request with its phases as children. Attributes follow OpenTelemetry's semantic
// conventions for HTTP and generative AI. Ids are made from the request's id and arrival: the same
// records give the same text. https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
std::string otlp_spans(std::span<const RequestRecord> records, std::string_view service_name);

}  // namespace tidemill
