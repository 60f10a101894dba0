// What the GPU benchmarks need of a device besides its operations: memory, inputs that are made
// there, time. A CUDA error ends the program with a message.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/weights.h"
#include "ops/tensor.h"

namespace tidemill::gpu {

void require(cudaError_t error, const char* what);

using Memory = std::shared_ptr<std::byte>;
Memory allocate(int64_t bytes);
Memory upload(const void* data, int64_t bytes);
template <typename T>
Memory upload(const std::vector<T>& values) {
  return upload(values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
}
template <typename T>
T* as(const Memory& memory) {
  return reinterpret_cast<T*>(memory.get());
}

// Finished on return, in the default stream.
// Every 16-bit word is (random & keep) | set.
void fill_words(void* to, int64_t bytes, uint16_t keep, uint16_t set, uint64_t seed);
// Values that bf16 has, nearly normal.
void fill_activations(void* to, Element element, int64_t count, float deviation, uint64_t seed);

struct DeviceRows {
  Memory memory;
  Rows view;
};
double size_of(const Rows& rows);  // bytes
DeviceRows empty_rows(int64_t count, int64_t width, Element element = Element::kF32);
DeviceRows activations(int64_t count, int64_t width, float deviation = 1.0f,
                       Element element = Element::kF32);

// Random weights without NaN; FP8 codes and bf16 values of the magnitudes of a model's.
struct DeviceMatrix {
  Memory memory;
  Matrix view;
};
DeviceMatrix weights(WeightFormat format, int64_t rows, int64_t cols);
int64_t bytes_of(const Matrix& matrix);  // with its scales

// Keeps the stream busy for so long: what is enqueued meanwhile then runs without the host's gaps.
void hold(cudaStream_t stream, double microseconds);

// Of the device, each the best of several runs.
struct Limits {
  double read_bytes_per_second = 0;
  double copy_bytes_per_second = 0;  // read and written
  double f32_flops_per_second = 0;   // products and sums, not fused
  double host_launch_us = 0;         // of the host for an empty kernel
  double stream_launch_us = 0;       // from one empty kernel to the next in a stream
  double graph_launch_us = 0;        // the same in a graph
};
Limits measure_limits();

}  // namespace tidemill::gpu
