#include "timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "device.h"

namespace tidemill::gpu {
namespace {

using Clock = std::chrono::steady_clock;

double since_us(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

class Group {
 public:
  Group(cudaStream_t stream, const std::string& name) : stream_(stream), name_(name) {
    require(cudaEventCreate(&begin_), "event");
    require(cudaEventCreate(&end_), "event");
  }
  ~Group() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Microseconds of the device for a call.
  double run(const std::function<void()>& call, int calls, double hold_us) {
    if (hold_us > 0) hold(stream_, hold_us);
    require(cudaEventRecord(begin_, stream_), "event");
    for (int i = 0; i < calls; ++i) call();
    require(cudaEventRecord(end_, stream_), "event");
    require(cudaGetLastError(), name_.c_str());
    require(cudaEventSynchronize(end_), name_.c_str());
    float ms = 0;
    require(cudaEventElapsedTime(&ms, begin_, end_), "time");
    return ms * 1e3 / calls;
  }

 private:
  cudaStream_t stream_;
  const std::string& name_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

Times time_calls(cudaStream_t stream, const std::string& name, const std::function<void()>& call,
                 double seconds) {
  Group group(stream, name);
  Times times;
  times.first_us = group.run(call, 1, 0);
  const Clock::time_point begin = Clock::now();
  const double estimate = group.run(call, 1, 0);
  const double left_us = seconds * 1e6 - since_us(begin);

  constexpr double kSampleUs = 1000;
  constexpr int kMostCalls = 50;
  times.calls =
      static_cast<int>(std::clamp(std::ceil(kSampleUs / estimate), 1.0, 1.0 * kMostCalls));
  double hold_us = 0;
  if (estimate < 20 * kSampleUs) {  // and warm up
    const Clock::time_point enqueue = Clock::now();
    for (int i = 0; i < times.calls; ++i) call();
    hold_us = std::min(1.5 * since_us(enqueue) + 20, 5000.0);
    group.run(call, times.calls, 0);
  }
  constexpr size_t kMostSamples = 200;
  std::vector<double> samples;
  do {
    samples.push_back(group.run(call, times.calls, hold_us));
  } while (since_us(begin) < left_us && samples.size() < kMostSamples);
  std::sort(samples.begin(), samples.end());
  times.samples = static_cast<int>(samples.size());
  times.least_us = samples.front();
  times.median_us = samples[samples.size() / 2];
  times.p90_us = samples[(samples.size() - 1) * 9 / 10];
  return times;
}

}  // namespace tidemill::gpu
