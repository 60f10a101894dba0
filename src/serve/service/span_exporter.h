// Sends the spans of requests to an OTLP/HTTP collector, from a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "observe/request_record.h"
#include "serve/http/url.h"

namespace tidemill {

// add() from any thread; it never waits. What the collector does not take is lost and counted.
class SpanExporter {
 public:
  static constexpr size_t kMostWaiting = 10'000;  // records; more are dropped

  SpanExporter(ServerUrl collector, std::string service_name);
  // Sends what waits, once.
  ~SpanExporter();
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  void add(const RequestRecord& record);
  int64_t lost() const;  // records

 private:
  void run();

  const ServerUrl collector_;
  const std::string service_name_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RequestRecord> waiting_;
  int64_t lost_ = 0;
  bool is_failing_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tidemill
