#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/early_launch.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda {
namespace {

constexpr int kPacks = 2;  // of a thread at once

// One block a row. It and its weights are in shared memory before the sum of squares is there: y
// may be x, and nothing is waited for twice.
template <int V>
__global__ void __launch_bounds__(kMostRowThreads) rms_norm_kernel(RmsNormArgs a) {
  allow_next();
  await_previous();
  extern __shared__ float4 shared[];
  const int64_t t = blockIdx.x;
  const int width = static_cast<int>(a.weight.size);
  const int step = V * static_cast<int>(blockDim.x);
  const int first = V * static_cast<int>(threadIdx.x);
  auto* const x = reinterpret_cast<float*>(shared);
  auto* const weights = reinterpret_cast<uint16_t*>(x + padded(width));
#pragma unroll 1
  for (int begin = first; begin < width; begin += kPacks * step) {
    Pack<float, V> values[kPacks];
    Pack<uint16_t, V> codes[kPacks];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int k = begin + i * step;
      if (k < width) values[i] = load<V>(a.x.f32(t) + k);
      if (k < width) codes[i] = load<V>(a.weight.data + k);
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int k = begin + i * step;
      if (k < width) store(x + k, values[i]);
      if (k < width) store(weights + k, codes[i]);
    }
  }
  pad(x, width);
  __syncthreads();
  store_normed<V>(x, weights, width, a.eps, a.y.f32(t));
}

template <int V>
void launch(cudaStream_t stream, const RmsNormArgs& a) {
  allow_shared<rms_norm_kernel<V>>(norm_bytes(kMostHidden));
  const unsigned threads = row_threads(blocks_for(a.weight.size, V));
  launch_early(rms_norm_kernel<V>, blocks_for(a.x.count, 1), threads, norm_bytes(a.weight.size),
               stream, a);
}

}  // namespace

void rms_norm(Launch& l, const RmsNormArgs& a) {
  if (a.x.count == 0) return;
  const bool packs = in_packs(a.x, 4) && in_packs(a.y, 4) && in_packs(a.weight, 4);
  packs ? launch<4>(l.stream, a) : launch<1>(l.stream, a);
}

}  // namespace tidemill::cuda
