#include <cuda_pipeline_primitives.h>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda::plain {
namespace {

// A block computes kRowGroups x kTokenGroups half warps' sums, each of kRows rows of fn times
// kTokens tokens. Both sides go through shared memory, kChunk elements at a time.
constexpr int kRows = 3;
constexpr int kTokens = 4;
constexpr int kRowGroups = 2;
constexpr int kTokenGroups = 8;
constexpr int kChunk = 256;
constexpr int kBlockRows = kRows * kRowGroups;
constexpr int kBlockTokens = kTokens * kTokenGroups;
constexpr int kThreads = kLanes * kRowGroups * kTokenGroups;
constexpr int kPitch = kChunk + kLanes;  // neighbours lie in the other half of the banks
constexpr int kStageFloats = (kBlockRows + kBlockTokens) * kPitch;
constexpr int kStages = 4;
constexpr int kShared = 4 * kStages * kStageFloats;
constexpr int kBatch = 2;  // elements that are loaded ahead of their additions
static_assert(kShared <= 212 * 1024 && kChunk % (2 * kBatch * kLanes) == 0);

// One chunk of kRows x kTokens sums: lane l adds the elements l, l + 16, ... in this order.
template <bool kSquares>
__device__ void add_chunk(const float* fn, const float* h, float (&sum)[kRows][kTokens],
                          float (&square)[kTokens]) {
  constexpr int kSteps = kChunk / kLanes;
  struct Batch {
    float f[kBatch][kRows];
    float x[kBatch][kTokens];
  };
  const auto fetch = [&](int step, Batch& b) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int k = (step + i) * kLanes;
#pragma unroll
      for (int r = 0; r < kRows; ++r) b.f[i][r] = fn[r * kRowGroups * kPitch + k];
#pragma unroll
      for (int c = 0; c < kTokens; ++c) b.x[i][c] = h[c * kTokenGroups * kPitch + k];
    }
  };
  const auto add_batch = [&](const Batch& b) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int c = 0; c < kTokens; ++c) {
        const float x = b.x[i][c];
#pragma unroll
        for (int r = 0; r < kRows; ++r) sum[r][c] = add(sum[r][c], mul(b.f[i][r], x));
        if constexpr (kSquares) square[c] = add(square[c], mul(x, x));
      }
    }
  };
  Batch even;
  Batch odd;
  fetch(0, even);
#pragma unroll 1
  for (int step = 0; step < kSteps; step += 2 * kBatch) {
    fetch(step + kBatch, odd);
    add_batch(even);
    if (step + 2 * kBatch < kSteps) fetch(step + 2 * kBatch, even);
    add_batch(odd);
  }
}

// sums[t] = the products of fn's rows with the streams of token t, then the sum of their squares.
__global__ void __launch_bounds__(kThreads)
    sums_kernel(const float* fn, int rows, Rows h, bool aligned, float* sums) {
  extern __shared__ float4 shared[];
  auto* const stages = reinterpret_cast<float*>(shared);
  const int first_row = blockIdx.y * kBlockRows;
  const int64_t first_token = int64_t{blockIdx.x} * kBlockTokens;
  const int chunks = static_cast<int>((h.width + kChunk - 1) / kChunk);

  // Rows behind the last one are the last one again; elements behind the last are 0, which changes
  // no sum (none is -0: they begin at +0).
  const auto load_stage = [&](int chunk) {
    constexpr int kPieces = kChunk / 4;  // of 16 bytes
    const int64_t begin = int64_t{chunk} * kChunk;
    const bool whole = aligned && begin + kChunk <= h.width;
    float* const stage = stages + chunk % kStages * kStageFloats;
    for (int p = static_cast<int>(threadIdx.x); p < (kBlockRows + kBlockTokens) * kPieces;
         p += kThreads) {
      const int i = p / kPieces;
      const int k = p % kPieces * 4;
      const float* const from =
          begin + k +
          (i < kBlockRows ? fn + min(first_row + i, rows - 1) * h.width
                          : h.f32(min(first_token + i - kBlockRows, h.count - 1)));
      float* const to = stage + i * kPitch + k;
      if (whole) {
        __pipeline_memcpy_async(to, from, 16);
      } else {
        for (int e = 0; e < 4; ++e) to[e] = begin + k + e < h.width ? from[e] : 0.0f;
      }
    }
  };

  const int half_warp = lane_group();
  const int row_group = half_warp / kTokenGroups;
  const int token_group = half_warp % kTokenGroups;
  const bool squares = blockIdx.y == gridDim.y - 1 && row_group == kRowGroups - 1;
  float sum[kRows][kTokens] = {};
  float square[kTokens] = {};
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < chunks) load_stage(i);
    __pipeline_commit();
  }
  for (int chunk = 0; chunk < chunks; ++chunk) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();  // the chunk is here, and all have added the one before
    if (chunk + kStages - 1 < chunks) load_stage(chunk + kStages - 1);
    __pipeline_commit();
    const float* const stage = stages + chunk % kStages * kStageFloats + lane();
    const float* const f = stage + row_group * kPitch;
    const float* const x = stage + (kBlockRows + token_group) * kPitch;
    if (squares) {
      add_chunk<true>(f, x, sum, square);
    } else {
      add_chunk<false>(f, x, sum, square);
    }
  }
#pragma unroll
  for (int c = 0; c < kTokens; ++c) {
    const int64_t t = first_token + token_group + c * kTokenGroups;
    float* const out = sums + t * (rows + 1);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float total = add_lanes(sum[r][c]);
      const int row = first_row + row_group + r * kRowGroups;
      if (lane() == 0 && t < h.count && row < rows) out[row] = total;
    }
    if (!squares) continue;
    const float total = add_lanes(square[c]);
    if (lane() == 0 && t < h.count) out[rows] = total;
  }
}

void launch_sums(cudaStream_t stream, const Matrix& fn, const Rows& h, float* sums) {
  allow_shared<sums_kernel>(kShared);
  const dim3 grid(blocks_for(h.count, kBlockTokens), blocks_for(fn.rows, kBlockRows));
  const bool aligned = in_packs(h, 4) && in_packs(fn, sizeof(float), 4);
  sums_kernel<<<grid, kThreads, kShared, stream>>>(static_cast<const float*>(fn.data),
                                                   static_cast<int>(fn.rows), h, aligned, sums);
}

// Rows and columns in turn divided by their sums (hyper_connection/reference.cpp). Half a warp has
// the matrix, lane 4 i + j the element of row i and column j; sums run in the order of indices.
__device__ float sinkhorn(float value, int n, int64_t iterations, float eps) {
  const int i = lane() / kMostStreams;
  const int j = lane() % kMostStreams;
  float line[kMostStreams];
  const auto row = [&] {
#pragma unroll
    for (int k = 0; k < kMostStreams; ++k) {
      line[k] = __shfl_sync(0xFFFFFFFFu, value, i * kMostStreams + k, kLanes);
    }
  };
  const auto column = [&] {
#pragma unroll
    for (int k = 0; k < kMostStreams; ++k) {
      line[k] = __shfl_sync(0xFFFFFFFFu, value, k * kMostStreams + j, kLanes);
    }
  };
  const auto total = [&] {
    float sum = line[0];
#pragma unroll
    for (int k = 1; k < kMostStreams; ++k) sum = k < n ? add(sum, line[k]) : sum;
    return sum;
  };
  row();
  float largest = line[0];
#pragma unroll
  for (int k = 1; k < kMostStreams; ++k) largest = k < n ? fmaxf(largest, line[k]) : largest;
  value = canonical_exp(__fsub_rn(value, largest));
  row();
  value = add(__fdiv_rn(value, total()), eps);
  column();
  value = __fdiv_rn(value, add(total(), eps));
  for (int64_t iteration = 1; iteration < iterations; ++iteration) {
    row();
    value = __fdiv_rn(value, add(total(), eps));
    column();
    value = __fdiv_rn(value, add(total(), eps));
  }
  return value;
}

constexpr int kMixThreads = 64;
constexpr int kMixTokens = kMixThreads / kLanes;

// Half a warp a token.
__global__ void mix_kernel(HcMixArgs a, F32Vector base, F32Vector scale, const float* sums) {
  const int n = static_cast<int>(a.streams);
  const int rows = (2 + n) * n;
  const int64_t wanted = int64_t{blockIdx.x} * kMixTokens + lane_group();
  const int64_t t = min(wanted, a.h.count - 1);  // all lanes take part in the exchanges
  const float* const m = sums + t * (rows + 1);
  const float mean = __fdiv_rn(m[rows], static_cast<float>(a.h.width));
  const float r = __fdiv_rn(1.0f, __fsqrt_rn(add(mean, a.norm_eps)));
  const auto mixed = [&](int j, int kind) {
    return add(mul(mul(m[j], r), scale.data[kind]), base.data[j]);
  };
  const int i = lane() / kMostStreams;
  const int j = lane() % kMostStreams;
  const bool inside = i < n && j < n;
  const float comb =
      sinkhorn(inside ? mixed(2 * n + i * n + j, 2) : 0.0f, n, a.sinkhorn_iterations, a.hc_eps);
  if (wanted >= a.h.count) return;
  if (inside) a.comb.f32(t)[i * n + j] = comb;
  if (j >= n) return;
  if (i == 0) a.pre.f32(t)[j] = add(canonical_sigmoid(mixed(j, 0)), a.hc_eps);
  if (i == 1) a.post.f32(t)[j] = mul(2.0f, canonical_sigmoid(mixed(n + j, 1)));
}

}  // namespace

void hc_mix(Launch& l, const HcMixArgs& a) {
  if (a.h.count == 0) return;
  const HcWeights& w = *a.weights;
  auto* sums = static_cast<float*>(
      l.products.take(a.h.count * (w.fn.rows + 1) * int64_t{sizeof(float)}, l.stream));
  if (sums == nullptr) return;
  launch_sums(l.stream, w.fn, a.h, sums);
  mix_kernel<<<blocks_for(a.h.count, kMixTokens), kMixThreads, 0, l.stream>>>(a, w.base, w.scale,
                                                                              sums);
}

}  // namespace tidemill::cuda::plain
