#include "serve/service/span_exporter.h"

#include <chrono>
#include <utility>

#include "base/log.h"
#include "observe/trace.h"
#include "serve/http/http_post.h"

namespace tidemill {
namespace {

constexpr std::chrono::milliseconds kEvery{2000};
constexpr std::chrono::milliseconds kTimeout{5000};
constexpr std::chrono::milliseconds kLastTimeout{500};  // at the end of the program
constexpr const char* kPath = "/v1/traces";

}  // namespace

SpanExporter::SpanExporter(ServerUrl collector, std::string service_name)
    : collector_(std::move(collector)),
      service_name_(std::move(service_name)),
      thread_([this] { run(); }) {}

SpanExporter::~SpanExporter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SpanExporter::add(const RequestRecord& record) {
  const std::lock_guard lock(mutex_);
  if (waiting_.size() < kMostWaiting) {
    waiting_.push_back(record);
  } else {
    ++lost_;
  }
}

int64_t SpanExporter::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void SpanExporter::run() {
  std::unique_lock lock(mutex_);
  for (bool last = false; !last;) {
    changed_.wait_for(lock, kEvery, [&] { return stopping_; });
    last = stopping_;
    const std::vector<RequestRecord> records = std::exchange(waiting_, {});
    if (records.empty()) continue;
    lock.unlock();
    const Status sent = http_post(collector_, kPath, otlp_spans(records, service_name_),
                                  last ? kLastTimeout : kTimeout);
    lock.lock();
    if (!sent) lost_ += static_cast<int64_t>(records.size());
    // Once for every outage.
    if (!sent && !is_failing_) log_warning("traces: {}; spans are lost", sent.error().message);
    is_failing_ = !sent;
  }
}

}  // namespace tidemill
