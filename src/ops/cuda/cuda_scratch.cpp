#include <cuda_runtime_api.h>

#include "ops/cuda/launch.h"

namespace tidemill::cuda {

Scratch::~Scratch() { cudaFree(memory_); }

void* Scratch::take(int64_t bytes, cudaStream_t stream) {
  if (bytes <= bytes_) return memory_;
  ++moves_;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream, &capture);
  if (capture != cudaStreamCaptureStatusNone) return nullptr;
  cudaDeviceSynchronize();  // whoever still reads the old memory: a graph does on another stream
  cudaFree(memory_);
  bytes_ = 0;
  const int64_t wanted = bytes + bytes / 4;
  if (cudaMalloc(&memory_, static_cast<size_t>(wanted)) != cudaSuccess) {
    memory_ = nullptr;
    return nullptr;
  }
  bytes_ = wanted;
  return memory_;
}

int multiprocessors() {
  static const int count = [] {
    int value = 0;
    cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0);
    return value;
  }();
  return count;
}

int blocks_at_once(const void* kernel, int threads, int shared_bytes) {
  int each = 0;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads,
                                                static_cast<size_t>(shared_bytes));
  return multiprocessors() * (each > 0 ? each : 1);
}

}  // namespace tidemill::cuda
