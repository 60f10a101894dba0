#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/device_rates.h"

namespace tidemill {
namespace {

constexpr int kThreads = 256;

// `sink` is written where the sum is one that zeros do not have: nothing may be left out.
__global__ void read_kernel(const uint4* from, int64_t vectors, uint32_t* sink) {
  constexpr int kAhead = 8;
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  uint32_t sum = 0;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kAhead - 1) * threads < vectors; i += kAhead * threads) {
    uint4 v[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) v[k] = __ldcs(from + i + k * threads);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) sum |= v[k].x | v[k].y | v[k].z | v[k].w;
  }
  if (sum != 0) *sink = sum;
}

// Milliseconds of the fastest pass; 0 if one failed.
float fastest_pass(const uint4* memory, int64_t vectors, uint32_t* sink, int blocks) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaError_t error = cudaEventCreate(&begin);
  if (error == cudaSuccess) error = cudaEventCreate(&end);
  float best = 0;
  for (int pass = 0; pass < 10 && error == cudaSuccess; ++pass) {
    cudaEventRecord(begin);
    read_kernel<<<blocks, kThreads>>>(memory, vectors, sink);
    cudaEventRecord(end);
    error = cudaEventSynchronize(end);
    float ms = 0;
    if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, begin, end);
    if (error == cudaSuccess) best = best == 0 ? ms : std::min(best, ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return error == cudaSuccess ? best : 0;
}

double attribute(cudaDeviceAttr which) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, 0) == cudaSuccess ? value : 0;
}

}  // namespace

std::string cuda_device_name() {
  cudaDeviceProp properties;
  return cudaGetDeviceProperties(&properties, 0) == cudaSuccess ? properties.name : "";
}

DeviceRates cuda_device_rates() {
  constexpr int64_t kBytes = int64_t{2} << 30;
  constexpr double kFlopsPerClock = 4096;  // of a multiprocessor of Hopper, bf16
  const double processors = attribute(cudaDevAttrMultiProcessorCount);
  DeviceRates rates;
  rates.flops_per_second = processors * kFlopsPerClock * attribute(cudaDevAttrClockRate) * 1e3;

  void* memory = nullptr;
  if (cudaMalloc(&memory, kBytes + sizeof(uint4)) != cudaSuccess) return rates;
  if (cudaMemset(memory, 0, kBytes) == cudaSuccess) {
    const auto* from = static_cast<const uint4*>(memory);
    constexpr int64_t kVectors = kBytes / sizeof(uint4);
    auto* sink = reinterpret_cast<uint32_t*>(static_cast<char*>(memory) + kBytes);
    for (const int per_processor : {4, 8}) {
      const int blocks = static_cast<int>(processors) * per_processor;
      const float ms = fastest_pass(from, kVectors, sink, blocks);
      if (ms <= 0) continue;
      rates.read_bytes_per_second = std::max(rates.read_bytes_per_second, kBytes / ms * 1e3);
    }
  }
  cudaFree(memory);
  return rates;
}

}  // namespace tidemill
