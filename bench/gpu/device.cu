// Kernels that make inputs and measure the device's limits.
#include <cuda_bf16.h>

#include <algorithm>
#include <chrono>

#include "device.h"
#include "ops/cuda/device_rates.h"

namespace tidemill::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 132 * 8;

__device__ int64_t first_index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t all_threads() { return int64_t{gridDim.x} * blockDim.x; }

// splitmix64
__device__ uint64_t random_at(uint64_t seed, uint64_t i) {
  uint64_t z = (seed << 40) + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

__global__ void fill_words_kernel(uint16_t* to, int64_t words, uint64_t keep, uint64_t set,
                                  uint64_t seed) {
  for (int64_t i = first_index(); i * 4 < words; i += all_threads()) {
    const uint64_t four = (random_at(seed, static_cast<uint64_t>(i)) & keep) | set;
    if (i * 4 + 4 <= words) {
      reinterpret_cast<uint64_t*>(to)[i] = four;
    } else {
      for (int64_t k = i * 4; k < words; ++k) {
        to[k] = static_cast<uint16_t>(four >> 16 * (k % 4));
      }
    }
  }
}

// The sum of four uniform numbers.
template <typename T>
__global__ void fill_activations_kernel(T* to, int64_t count, float deviation, uint64_t seed) {
  for (int64_t i = first_index(); i < count; i += all_threads()) {
    const uint64_t bits = random_at(seed, static_cast<uint64_t>(i));
    float sum = 0;
    for (int part = 0; part < 4; ++part) {
      sum += static_cast<float>(bits >> 16 * part & 0xFFFF) * (1.0f / 65536) - 0.5f;
    }
    to[i] = static_cast<T>(__float2bfloat16(sum * 1.7320508f * deviation));
  }
}

__global__ void hold_kernel(uint64_t nanoseconds) {
  uint64_t begin = 0;
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    __nanosleep(200);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

__global__ void empty_kernel() {}

__global__ void copy_kernel(const uint4* from, uint4* to, int64_t vectors) {
  constexpr int kAhead = 4;
  int64_t i = first_index();
  for (; i + (kAhead - 1) * all_threads() < vectors; i += kAhead * all_threads()) {
    uint4 v[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) v[k] = __ldcs(from + i + k * all_threads());
#pragma unroll
    for (int k = 0; k < kAhead; ++k) __stcs(to + i + k * all_threads(), v[k]);
  }
  for (; i < vectors; i += all_threads()) to[i] = from[i];
}

constexpr int kChains = 8;
constexpr int kRounds = 4096;
__global__ void arithmetic_kernel(float factor, float term, float* sink) {
  float x[kChains];
  for (int k = 0; k < kChains; ++k) x[k] = static_cast<float>(threadIdx.x + k);
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int k = 0; k < kChains; ++k) x[k] = __fadd_rn(__fmul_rn(x[k], factor), term);
  }
  float sum = 0;
  for (int k = 0; k < kChains; ++k) sum += x[k];
  if (sum == -1.0f) *sink = sum;
}

class Stream {
 public:
  Stream() {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    require(cudaEventCreate(&begin_), "event");
    require(cudaEventCreate(&end_), "event");
  }
  ~Stream() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

  // Seconds of the device for what `body` enqueues, the best of ten.
  template <typename Body>
  double best(double hold_us, const Body& body) {
    float least = 1e30f;
    for (int i = 0; i < 10; ++i) {
      if (hold_us > 0) hold(stream_, hold_us);
      require(cudaEventRecord(begin_, stream_), "event");
      body();
      require(cudaEventRecord(end_, stream_), "event");
      require(cudaGetLastError(), "launch");
      require(cudaEventSynchronize(end_), "limits");
      float ms = 0;
      require(cudaEventElapsedTime(&ms, begin_, end_), "time");
      least = std::min(least, ms);
    }
    return least / 1e3;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

void fill_words(void* to, int64_t bytes, uint16_t keep, uint16_t set, uint64_t seed) {
  constexpr uint64_t kFour = 0x0001000100010001u;
  fill_words_kernel<<<kBlocks, kThreads>>>(static_cast<uint16_t*>(to), bytes / 2, keep * kFour,
                                           set * kFour, seed);
  require(cudaGetLastError(), "random words");
  require(cudaStreamSynchronize(nullptr), "random words");
}

void fill_activations(void* to, Element element, int64_t count, float deviation, uint64_t seed) {
  if (element == Element::kBf16) {
    fill_activations_kernel<<<kBlocks, kThreads>>>(static_cast<__nv_bfloat16*>(to), count,
                                                   deviation, seed);
  } else {
    fill_activations_kernel<<<kBlocks, kThreads>>>(static_cast<float*>(to), count, deviation, seed);
  }
  require(cudaGetLastError(), "activations");
  require(cudaStreamSynchronize(nullptr), "activations");
}

void hold(cudaStream_t stream, double microseconds) {
  hold_kernel<<<1, 1, 0, stream>>>(static_cast<uint64_t>(microseconds * 1e3));
}

Limits measure_limits() {
  Limits limits;
  limits.read_bytes_per_second = cuda_device_rates().read_bytes_per_second;
  Stream stream;
  const Memory sink = allocate(64);
  {
    constexpr int64_t kBytes = int64_t{2} << 30;
    const Memory from = allocate(kBytes);
    const Memory to = allocate(kBytes);
    fill_words(from.get(), kBytes, 0x7FFF, 0, 1);
    const auto rate = [&](double seconds) { return static_cast<double>(kBytes) / seconds; };
    for (const int blocks : {132 * 4, 132 * 8}) {
      limits.copy_bytes_per_second = std::max(
          limits.copy_bytes_per_second, 2 * rate(stream.best(0, [&] {
                                          copy_kernel<<<blocks, kThreads, 0, stream>>>(
                                              as<const uint4>(from), as<uint4>(to), kBytes / 16);
                                        })));
    }
  }
  limits.f32_flops_per_second = 2.0 * kChains * kRounds * kBlocks * kThreads / stream.best(0, [&] {
    arithmetic_kernel<<<kBlocks, kThreads, 0, stream>>>(0.5f, 1.0f, as<float>(sink));
  });

  constexpr int kKernels = 200;
  const auto enqueue = [&] {
    for (int i = 0; i < kKernels; ++i) empty_kernel<<<1, 32, 0, stream>>>();
  };
  limits.stream_launch_us = stream.best(3000, enqueue) * 1e6 / kKernels;
  hold(stream, 3000);
  const auto begin = std::chrono::steady_clock::now();
  enqueue();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  limits.host_launch_us = time.count() * 1e6 / kKernels;
  require(cudaStreamSynchronize(stream), "launches");

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  enqueue();
  require(cudaStreamEndCapture(stream, &graph), "capture");
  require(cudaGraphInstantiate(&executable, graph, 0), "graph");
  const auto launch = [&] { require(cudaGraphLaunch(executable, stream), "graph"); };
  limits.graph_launch_us = stream.best(1000, launch) * 1e6 / kKernels;
  require(cudaGraphExecDestroy(executable), "graph");
  require(cudaGraphDestroy(graph), "graph");
  return limits;
}

}  // namespace tidemill::gpu
