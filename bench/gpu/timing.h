// Times of calls that enqueue work on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace tidemill::gpu {

// Of one call.
struct Times {
  double first_us = 0;  // the first call: memory that grows, code that is loaded
  double median_us = 0;
  double least_us = 0;
  double p90_us = 0;
  int samples = 0;  // groups of `calls` calls between two events
  int calls = 0;
};

// Spends about so many seconds, but lets at least one sample end. Short calls are enqueued behind a
// kernel that waits, so that a group's time is the device's alone. An error ends the program with
// `name` in its message.
Times time_calls(cudaStream_t stream, const std::string& name, const std::function<void()>& call,
                 double seconds);

}  // namespace tidemill::gpu
