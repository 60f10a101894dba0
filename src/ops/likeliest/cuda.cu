#include <cmath>

#include "ops/cuda/launch.h"

namespace tidemill::cuda {
namespace {

constexpr int kThreads = 1024;  // a block has a row: there are few, and each is long
constexpr int kWarps = kThreads / 32;

struct Best {
  float value;
  int id;  // -1: none yet

  __device__ void take(float other, int other_id) {
    const bool first = other == value && other_id >= 0 && (id < 0 || other_id < id);
    if (!(other > value) && !first) return;
    value = other;
    id = other_id;
  }
};

__device__ Best of_warp(Best best) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const float value = __shfl_xor_sync(0xFFFFFFFFu, best.value, distance);
    const int id = __shfl_xor_sync(0xFFFFFFFFu, best.id, distance);
    best.take(value, id);
  }
  return best;
}

__global__ void likeliest_kernel(LikeliestArgs a) {
  __shared__ float values[kWarps];
  __shared__ int ids[kWarps];
  const float* row = a.logits.f32(blockIdx.x);
  Best best{-INFINITY, -1};
  bool bad = false;
#pragma unroll 8
  for (int64_t k = threadIdx.x; k < a.logits.width; k += kThreads) {
    const float x = row[k];
    bad |= !(x < INFINITY);
    if (x > best.value) best = {x, static_cast<int>(k)};  // ascending: the first of equals stays
  }
  best = of_warp(best);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (lane == 0) {
    values[warp] = best.value;
    ids[warp] = best.id;
  }
  const bool any_bad = __syncthreads_or(bad) != 0;
  if (warp != 0) return;
  best = of_warp({values[lane], ids[lane]});
  if (lane == 0) a.id[blockIdx.x] = any_bad ? -1 : best.id;
}

}  // namespace

void likeliest(Launch& l, const LikeliestArgs& a) {
  static_assert(kWarps == 32, "the first warp reads one result of each");
  if (a.logits.count == 0) return;
  likeliest_kernel<<<blocks_for(a.logits.count, 1), kThreads, 0, l.stream>>>(a);
}

}  // namespace tidemill::cuda
