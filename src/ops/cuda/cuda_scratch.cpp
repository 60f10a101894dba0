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
  cudaStreamSynchronize(stream);  // whoever still reads the old memory
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

}  // namespace tidemill::cuda
