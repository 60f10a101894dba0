// Attention of few tokens: the scores of a token are divided by tiles and its values by channels
// among blocks, in two kernels. Sums are those of attend_kernel.
#pragma once

#include "ops/attend/cuda_softmax.cuh"

namespace tidemill::cuda {

// Products of the query and a tile's keys, and the largest of each head.
struct TileScores {
  float4 s[8][kWarpgroup];  // as wgmma leaves them
  float largest[kTile];
};

template <int kDim>
struct SharedScores {
  uint8_t q[kTile * kDim * 2];
  uint8_t keys[2][kTile * kDim * 2];
};

// scores[t * most_tiles + tile]. Block (x, t) takes the tiles x, x + gridDim.x, ... of token t; all
// widen them, one warpgroup multiplies.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    few_scores_kernel(AttendArgs a, TileScores* scores, int most_tiles) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<SharedScores<kDim>*>(memory);
  asm volatile("griddepcontrol.launch_dependents;");
  const int64_t t = blockIdx.y;
  const int step = static_cast<int>(gridDim.x);
  const KeyTiles tiles(a, t);
  const int count = tiles.count();
  int tile = static_cast<int>(blockIdx.x);
  if (tile >= count) return;
  const KeyRows rows(a, t);
  RowAddresses at = find_rows(a, tiles, rows, tile);
#pragma unroll 1
  for (int buffer = 0; tile < count; tile += step, buffer ^= 1) {
    const bool first = tile == static_cast<int>(blockIdx.x);
    RowAddresses next{};
    widen_tile<kDim, kDim, kThreads / 32>(
        at, tile < tiles.of_window(), 0, shared.keys[buffer],
        [&] {
          if (first) load_query<kDim, kThreads / 32>(a, t, threadIdx.x / 32, shared.q);
          if (tile + step < count) next = find_rows(a, tiles, rows, tile + step);
        },
        [] {});
    at = next;
    fence_shared_for_wgmma();
    __syncthreads();  // and who multiplied the tile before last has come by
    if (threadIdx.x >= kWarpgroup) continue;
    float s[32];
    multiply_query<kDim>(shared.q, shared.keys[buffer], s);
    hide_absent(s, tiles.keys(tile));
    TileScores& to = scores[t * most_tiles + tile];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      to.s[i][threadIdx.x] = {s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]};
    }
    const unsigned row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float largest = largest_of(s, r);
      if (threadIdx.x % 4 == 0) to.largest[row + 8 * r] = largest;
    }
  }
}

constexpr int kSlice = 64;  // channels of a block of few_values_kernel
constexpr int kRound = 10;  // tiles at once: all of the released model's
struct SharedSlice {
  uint8_t keys[kRound][kTile * kSlice * 2];
  Softened softened[kRound];
  float largest[kRound][kTile];
};

// Until few_scores_kernel has ended; this one was launched to begin before.
__device__ inline void wait_for_scores() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Block (x, t): channels kSlice * x .. of token t. The warpgroups widen and soften tiles in turn:
// the largest scores are known before, so a tile need not wait for another. Then one warpgroup adds
// up. What does not need scores is done while few_scores_kernel runs.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    few_values_kernel(AttendArgs a, float scale, const TileScores* scores, int most_tiles) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<SharedSlice*>(memory);
  constexpr int kWarpgroups = kThreads / kWarpgroup;
  const int64_t t = blockIdx.y;
  const int slice = static_cast<int>(blockIdx.x);
  const int own = static_cast<int>(threadIdx.x / kWarpgroup);
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
  const int row = thread / 32 * 16 + thread % 32 / 4;
  const KeyTiles tiles(a, t);
  const int count = tiles.count();
  const TileScores* from = scores + t * most_tiles;
  Softmax softmax;
  ValueSums<kSlice> sums;
#pragma unroll 1
  for (int first = 0; first < count; first += kRound) {
    const int end = min(first + kRound, count);
    const KeyRows rows(a, t);
#pragma unroll 1
    for (int tile = first + own; tile < end; tile += kWarpgroups) {
      widen_tile<kDim, kSlice, 4>(
          find_rows(a, tiles, rows, tile), tile < tiles.of_window(), slice * (kSlice / kGroup),
          shared.keys[tile - first], [] {}, [] {});
    }
    fence_shared_for_wgmma();
    wait_for_scores();
    for (int i = static_cast<int>(threadIdx.x); i < (end - first) * kTile; i += kThreads) {
      shared.largest[i / kTile][i % kTile] = from[first + i / kTile].largest[i % kTile];
    }
    __syncthreads();
    Softmax state{{softmax.largest[0], softmax.largest[1]}, {0, 0}};
#pragma unroll 1
    for (int tile = first; tile < end; ++tile) {
      if ((tile - first) % kWarpgroups == own) {
        float s[32];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float4 four = from[tile].s[i][thread];
          s[4 * i] = four.x, s[4 * i + 1] = four.y, s[4 * i + 2] = four.z, s[4 * i + 3] = four.w;
        }
        Softmax of_tile = state;
        soften(s, scale, of_tile, shared.softened[tile - first]);
      }
      for (int r = 0; r < 2; ++r) {
        state.largest[r] = fmaxf(state.largest[r], shared.largest[tile - first][row + 8 * r]);
      }
    }
    for (int r = 0; r < 2; ++r) softmax.largest[r] = state.largest[r];
    fence_shared_for_wgmma();
    __syncthreads();
    if (own == 0) {
#pragma unroll 1
      for (int tile = first; tile < end; ++tile) {
        const Softened& softened = shared.softened[tile - first];
        const float2 rescale = softened.rescale[thread];
        const Softmax& of_tile = softened.softmax[thread];
        softmax.sum[0] = __fmaf_rn(softmax.sum[0], rescale.x, of_tile.sum[0]);
        softmax.sum[1] = __fmaf_rn(softmax.sum[1], rescale.y, of_tile.sum[1]);
        add_values(sums, softened, shared.keys[tile - first]);
      }
    }
    __syncthreads();
  }
  wait_for_scores();  // without keys, too: what follows this kernel follows both
  if (own == 0) write_values(a, t, kDim, slice * kSlice, scale, softmax, sums, count != 0);
}

}  // namespace tidemill::cuda
