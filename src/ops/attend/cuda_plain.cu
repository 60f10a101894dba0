#include <cmath>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda::plain {
namespace {

constexpr int kChunk = 64;     // keys per step of the online softmax
constexpr int kThreads = 256;  // half warps score keys, threads own channels
constexpr int kMostChannels = kMostHeadDim / kThreads;

// Key i of query t: window positions, then the selected entries.
__device__ const std::byte* key_of(const AttendArgs& a, int64_t t, int64_t window, int64_t i) {
  const int64_t s = a.sequence[t];
  if (i >= window) {
    return a.entries.row(s, a.selected[t * a.topk + i - window]);
  }
  const int64_t p = a.window_begin[t] + i;
  const int64_t bytes = a.window_format.bytes();
  if (p >= a.step_start[s]) {
    return a.fresh + (a.step_row[s] + p - a.step_start[s]) * bytes;
  }
  return a.ring_base + a.ring_add + a.ring_offset[s] + p % a.ring_rows * bytes;
}

__device__ int64_t entries_of(const AttendArgs& a, int64_t t) {
  if (a.entries.format.width == 0) return 0;
  int64_t n = 0;
  while (n < a.topk && a.selected[t * a.topk + n] >= 0) ++n;
  return n;
}

// One block per head of a token.
__global__ void attend_kernel(AttendArgs a, float scale) {
  __shared__ const std::byte* keys[kChunk];
  __shared__ float p[kChunk];
  __shared__ float rescale, denominator, largest;
  __shared__ int64_t count;
  const int64_t t = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int64_t dim = a.window_format.width;
  const int64_t window = a.window_end[t] - a.window_begin[t];
  const auto q = [&](int64_t c) { return element_of(a.q, t, head * dim + c); };
  if (threadIdx.x == 0) {
    count = window + entries_of(a, t);
    largest = -1e30f;
    denominator = 0;
  }
  float out[kMostChannels] = {};
  const auto value_of = [&](int64_t i, int k, int64_t c) {
    return row_value(i < window ? a.window_format : a.entries.format, keys[k], c);
  };
  __syncthreads();
  for (int64_t first = 0; first < count; first += kChunk) {
    const int n = static_cast<int>(min(int64_t{kChunk}, count - first));
    if (threadIdx.x < n) keys[threadIdx.x] = key_of(a, t, window, first + threadIdx.x);
    __syncthreads();
    for (int k = lane_group(); k < n; k += kThreads / kLanes) {
      const float d = dot(dim, q, [&](int64_t c) { return value_of(first + k, k, c); });
      if (lane() == 0) p[k] = mul(d, scale);
    }
    __syncthreads();
    if (threadIdx.x < kLanes) {  // the reference's lanes: key k in lane k mod 16
      float chunk_largest = largest;
      for (int k = 0; k < n; ++k) chunk_largest = fmaxf(chunk_largest, p[k]);
      float sum = 0;
      for (int k = lane(); k < n; k += kLanes) {
        const float e = canonical_exp(__fsub_rn(p[k], chunk_largest));
        sum = add(sum, e);
      }
      sum = add_lanes(sum);
      __syncwarp(0xFFFF);  // all have read p and largest
      for (int k = lane(); k < n; k += kLanes) {
        p[k] = round_bf16(canonical_exp(__fsub_rn(p[k], chunk_largest)));
      }
      if (lane() == 0) {
        rescale = canonical_exp(__fsub_rn(largest, chunk_largest));
        denominator = add(mul(denominator, rescale), sum);
        largest = chunk_largest;
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kMostChannels; ++i) {
      const int64_t c = threadIdx.x + int64_t{i} * kThreads;
      if (c >= dim) break;
      float value = mul(out[i], rescale);
      for (int k = 0; k < n; ++k) {
        value = add(value, mul(p[k], value_of(first + k, k, c)));
      }
      out[i] = value;
    }
    __syncthreads();
  }
  const float total = add(denominator, canonical_exp(__fsub_rn(a.sink.data[head], largest)));
#pragma unroll
  for (int i = 0; i < kMostChannels; ++i) {
    const int64_t c = threadIdx.x + int64_t{i} * kThreads;
    if (c >= dim) break;
    put_element(a.out, t, head * dim + c, count == 0 ? 0.0f : round_bf16(__fdiv_rn(out[i], total)));
  }
}

}  // namespace

void attend(Launch& l, const AttendArgs& a) {
  if (a.q.count == 0) return;
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.window_format.width));
  const dim3 grid(blocks_for(a.q.count, 1), blocks_for(a.heads, 1));
  attend_kernel<<<grid, kThreads, 0, l.stream>>>(a, scale);
}

}  // namespace tidemill::cuda::plain
