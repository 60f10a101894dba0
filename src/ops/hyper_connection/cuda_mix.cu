#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda {
namespace {

// The part of the products that a block computes: kRowGroups x kTokenGroups half warps, each kRows
// rows of fn times kTokens tokens. Both sides go through shared memory, kChunk elements at a time.
template <int kRows_, int kTokens_, int kRowGroups_, int kTokenGroups_, int kChunk_>
struct Tile {
  static constexpr int kRows = kRows_;
  static constexpr int kTokens = kTokens_;
  static constexpr int kRowGroups = kRowGroups_;
  static constexpr int kTokenGroups = kTokenGroups_;
  static constexpr int kChunk = kChunk_;
  static constexpr int kBlockRows = kRows * kRowGroups;
  static constexpr int kBlockTokens = kTokens * kTokenGroups;
  static constexpr int kAdders = (kLanes * kRowGroups * kTokenGroups + 31) / 32 * 32;
  // Where few threads add, time is a chain of additions, and others load for them.
  static constexpr int kFirstLoader = kAdders <= 128 ? kAdders : 0;
  static constexpr int kThreads = kFirstLoader + (kAdders <= 128 ? 128 : kAdders);
  static constexpr int kPitch = kChunk + kLanes;  // neighbours lie in the other half of the banks
  static constexpr int kStageFloats = (kBlockRows + kBlockTokens) * kPitch;
  static constexpr int kMostStages = 212 * 1024 / (4 * kStageFloats);
  static constexpr int kStages = kMostStages < 8 ? kMostStages : 8;
  static constexpr int kShared = 4 * kStages * kStageFloats;
  // Elements that are loaded ahead of their additions.
  static constexpr int kBatch = kRows + kTokens <= 2   ? 8
                                : kRows + kTokens <= 4 ? 4
                                : kRows + kTokens <= 8 ? 2
                                                       : 1;
  static_assert(kStages >= 2 && kChunk % (2 * kBatch * kLanes) == 0);
};

// One chunk of kRows x kTokens sums: lane l adds the elements l, l + 16, ... in this order.
template <typename T, bool kSquares>
__device__ void add_chunk(const float* fn, const float* h, float (&sum)[T::kRows][T::kTokens],
                          float (&square)[T::kTokens]) {
  constexpr int kSteps = T::kChunk / kLanes;
  struct Batch {
    float f[T::kBatch][T::kRows];
    float x[T::kBatch][T::kTokens];
  };
  const auto fetch = [&](int step, Batch& b) {
#pragma unroll
    for (int i = 0; i < T::kBatch; ++i) {
      const int k = (step + i) * kLanes;
#pragma unroll
      for (int r = 0; r < T::kRows; ++r) b.f[i][r] = fn[r * T::kRowGroups * T::kPitch + k];
#pragma unroll
      for (int c = 0; c < T::kTokens; ++c) b.x[i][c] = h[c * T::kTokenGroups * T::kPitch + k];
    }
  };
  const auto add_batch = [&](const Batch& b) {
#pragma unroll
    for (int i = 0; i < T::kBatch; ++i) {
#pragma unroll
      for (int c = 0; c < T::kTokens; ++c) {
        const float x = b.x[i][c];
#pragma unroll
        for (int r = 0; r < T::kRows; ++r) sum[r][c] = add(sum[r][c], mul(b.f[i][r], x));
        if constexpr (kSquares) square[c] = add(square[c], mul(x, x));
      }
    }
  };
  Batch even;
  Batch odd;
  fetch(0, even);
#pragma unroll 1
  for (int step = 0; step < kSteps; step += 2 * T::kBatch) {
    fetch(step + T::kBatch, odd);
    add_batch(even);
    if (step + 2 * T::kBatch < kSteps) fetch(step + 2 * T::kBatch, even);
    add_batch(odd);
  }
}

// sums[t] = the products of fn's rows with the streams of token t, then the sum of their squares.
template <typename T>
__global__ void __launch_bounds__(T::kThreads)
    sums_kernel(const float* fn, int rows, Rows h, bool aligned, float* sums) {
  extern __shared__ float4 shared[];
  auto* const stages = reinterpret_cast<float*>(shared);
  const int first_row = blockIdx.y * T::kBlockRows;
  const int64_t first_token = int64_t{blockIdx.x} * T::kBlockTokens;
  const int chunks = static_cast<int>((h.width + T::kChunk - 1) / T::kChunk);

  // Rows behind the last one are the last one again; elements behind the last are 0, which changes
  // no sum (none is -0: they begin at +0).
  const auto load_stage = [&](int chunk) {
    constexpr int kPieces = T::kChunk / 4;  // of 16 bytes
    const int64_t begin = int64_t{chunk} * T::kChunk;
    const bool whole = aligned && begin + T::kChunk <= h.width;
    float* const stage = stages + chunk % T::kStages * T::kStageFloats;
    for (int p = static_cast<int>(threadIdx.x) - T::kFirstLoader;
         p < (T::kBlockRows + T::kBlockTokens) * kPieces; p += T::kThreads - T::kFirstLoader) {
      const int i = p / kPieces;
      const int k = p % kPieces * 4;
      const float* const from =
          begin + k +
          (i < T::kBlockRows ? fn + min(first_row + i, rows - 1) * h.width
                             : h.f32(min(first_token + i - T::kBlockRows, h.count - 1)));
      float* const to = stage + i * T::kPitch + k;
      if (whole) {
        __pipeline_memcpy_async(to, from, 16);
      } else {
        for (int e = 0; e < 4; ++e) to[e] = begin + k + e < h.width ? from[e] : 0.0f;
      }
    }
  };

  const int half_warp = lane_group();
  const int row_group = half_warp / T::kTokenGroups;
  const int token_group = half_warp % T::kTokenGroups;
  const bool loads = static_cast<int>(threadIdx.x) >= T::kFirstLoader;
  const bool adds = row_group < T::kRowGroups;
  const bool squares = blockIdx.y == gridDim.y - 1 && row_group == T::kRowGroups - 1;
  float sum[T::kRows][T::kTokens] = {};
  float square[T::kTokens] = {};
  for (int i = 0; i < T::kStages - 1; ++i) {
    if (loads && i < chunks) load_stage(i);
    __pipeline_commit();
  }
  for (int chunk = 0; chunk < chunks; ++chunk) {
    __pipeline_wait_prior(T::kStages - 2);
    __syncthreads();  // the chunk is here, and all have added the one before
    if (loads && chunk + T::kStages - 1 < chunks) load_stage(chunk + T::kStages - 1);
    __pipeline_commit();
    if (!adds) continue;
    const float* const stage = stages + chunk % T::kStages * T::kStageFloats + lane();
    const float* const f = stage + row_group * T::kPitch;
    const float* const x = stage + (T::kBlockRows + token_group) * T::kPitch;
    if (squares) {
      add_chunk<T, true>(f, x, sum, square);
    } else {
      add_chunk<T, false>(f, x, sum, square);
    }
  }
  if (!adds) return;
#pragma unroll
  for (int c = 0; c < T::kTokens; ++c) {
    const int64_t t = first_token + token_group + c * T::kTokenGroups;
    float* const out = sums + t * (rows + 1);
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      const float total = add_lanes(sum[r][c]);
      const int row = first_row + row_group + r * T::kRowGroups;
      if (lane() == 0 && t < h.count && row < rows) out[row] = total;
    }
    if (!squares) continue;
    const float total = add_lanes(square[c]);
    if (lane() == 0 && t < h.count) out[rows] = total;
  }
}

template <typename T>
void launch_sums(cudaStream_t stream, const Matrix& fn, const Rows& h, float* sums) {
  allow_shared<sums_kernel<T>>(T::kShared);
  const dim3 grid(blocks_for(h.count, T::kBlockTokens), blocks_for(fn.rows, T::kBlockRows));
  const bool aligned = in_packs(h, 4) && in_packs(fn, sizeof(float), 4);
  sums_kernel<T><<<grid, T::kThreads, T::kShared, stream>>>(
      static_cast<const float*>(fn.data), static_cast<int>(fn.rows), h, aligned, sums);
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

// Tiles by the count of tokens. Until some 32 a chain of additions takes the time and every block
// has few sums; then the tiles grow, so that less is read again.
void add_up(cudaStream_t stream, const Matrix& fn, const Rows& h, float* sums) {
  if (h.count <= 4) return launch_sums<Tile<1, 1, 1, 1, 2048>>(stream, fn, h, sums);
  if (h.count <= 8) return launch_sums<Tile<1, 1, 1, 2, 2048>>(stream, fn, h, sums);
  if (h.count <= 16) return launch_sums<Tile<1, 1, 2, 2, 2048>>(stream, fn, h, sums);
  if (h.count <= 32) return launch_sums<Tile<1, 1, 3, 2, 1024>>(stream, fn, h, sums);
  if (h.count <= 64) return launch_sums<Tile<2, 2, 3, 2, 512>>(stream, fn, h, sums);
  if (h.count <= 256) return launch_sums<Tile<3, 2, 2, 4, 512>>(stream, fn, h, sums);
  if (h.count <= 1024) return launch_sums<Tile<3, 4, 2, 8, 256>>(stream, fn, h, sums);
  if (h.count <= 4096) return launch_sums<Tile<12, 4, 1, 16, 128>>(stream, fn, h, sums);
  launch_sums<Tile<24, 4, 1, 16, 128>>(stream, fn, h, sums);
}

}  // namespace

void hc_mix(Launch& l, const HcMixArgs& a) {
  if (a.h.count == 0) return;
  const HcWeights& w = *a.weights;
  auto* sums = static_cast<float*>(
      l.products.take(a.h.count * (w.fn.rows + 1) * int64_t{sizeof(float)}, l.stream));
  if (sums == nullptr) return;
  add_up(l.stream, w.fn, a.h, sums);
  mix_kernel<<<blocks_for(a.h.count, kMixTokens), kMixThreads, 0, l.stream>>>(a, w.base, w.scale,
                                                                              sums);
}

}  // namespace tidemill::cuda
