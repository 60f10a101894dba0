// Attention of few tokens: the scores of a token are divided by tiles and its values by channels
// among blocks, in two kernels. Sums are those of many_kernel.
#pragma once

#include "ops/attend/cuda_softmax.cuh"
#include "ops/cuda/early_launch.cuh"

namespace tidemill::cuda {

// Products of the query and a tile's keys, and the largest of each head.
struct TileScores {
  float4 row[2][4][kWarpgroup];  // of a thread
  float largest[kTile];

  __device__ void set(int r, const RowProducts& products) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto* pair = products.pair + 2 * i;
      row[r][i][threadIdx.x % kWarpgroup] = {pair[0][0], pair[0][1], pair[1][0], pair[1][1]};
    }
  }
  __device__ RowProducts get(int r) const {
    RowProducts products;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      auto* pair = products.pair + 2 * i;
      const float4 four = row[r][i][threadIdx.x % kWarpgroup];
      pair[0][0] = four.x, pair[0][1] = four.y, pair[1][0] = four.z, pair[1][1] = four.w;
    }
    return products;
  }
};

template <int kDim>
constexpr int kScoreThreads = kDim < 256 ? kThreads / 2 : kThreads;  // each has a group at least

template <int kDim>
struct SharedScores {
  uint8_t q[kTile * kDim * 2];
  uint8_t keys[2][kTile * kDim * 2];
};

// scores[t * most_tiles + tile]. Block (x, t) takes the tiles x, x + gridDim.x, ... of token t; all
// widen them, one warpgroup multiplies.
template <int kDim>
__global__ void __launch_bounds__(kScoreThreads<kDim>, 1)
    few_scores_kernel(AttendArgs a, TileScores* scores, int most_tiles) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<SharedScores<kDim>*>(memory);
  allow_next();
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
    widen_tile<kDim, kDim, kScoreThreads<kDim> / 32>(
        at, tile < tiles.of_window(), 0,
        [&] {
          if (first)
            load_query<kDim, kDim / kSpan, kScoreThreads<kDim> / 32>(
                a, t, 0, static_cast<int>(threadIdx.x / 32), shared.q, [] {});
          if (tile + step < count) next = find_rows(a, tiles, rows, tile + step);
        },
        [&](int row, int group, const uint32_t(&pairs)[4][4]) {
          store_for_scores(pairs, row, group, shared.keys[buffer]);
        });
    at = next;
    fence_shared_for_wgmma();
    __syncthreads();  // and who multiplied the tile before last has come by
    if (threadIdx.x >= kWarpgroup) continue;
    float s[32];
    multiply_query<kDim>(shared.q, shared.keys[buffer], s);
    TileScores& to = scores[t * most_tiles + tile];
    const unsigned head = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      RowProducts row = RowProducts::of(s, r);
      row.hide_absent(tiles.keys(tile));
      const float largest = row.largest();
      if (threadIdx.x % 4 == 0) to.largest[head + 8 * r] = largest;
      to.set(r, row);
    }
  }
}

constexpr int kSlice = 64;  // channels of a block of few_values_kernel
constexpr int kRound = 10;  // tiles at once: all of the released model's

// From those that softened a tile to those that add its values.
struct alignas(1024) Softened {
  uint8_t p[kTile * kTile * 2];  // [head][key] bf16, swizzled
  float2 rescale[kWarpgroup];    // factors of a thread's sums so far
  RowSoftmax softmax[2][kWarpgroup];
};

struct SharedSlice {
  uint8_t keys[kRound][kTile * kSlice * 2];
  Softened softened[kRound];
  float largest[kRound][kTile];
};

// Of both rows. Afterwards the writes to shared memory need a fence for wgmma.
__device__ inline void soften_tile(const TileScores& scores, float scale,
                                   const float (&reference)[2], Softened& to) {
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
  float rescale[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * r;
    RowSoftmax softmax{reference[r], 0};
    rescale[r] = soften(scores.get(r), scale, softmax, [&](int j, uint32_t p) {
      *reinterpret_cast<uint32_t*>(to.p + in_part(row, j) + thread % 4 * 4) = p;
    });
    to.softmax[r][thread] = softmax;
  }
  to.rescale[thread] = {rescale[0], rescale[1]};
}

// sums = sums * rescale + p * (a tile's channels).
template <int kColumns>
__device__ void add_values(ValueSums<kColumns>& sums, const Softened& softened,
                           const uint8_t* values) {
  static_assert(kColumns <= 128);
  const float2 rescale = softened.rescale[threadIdx.x % kWarpgroup];
  rescale_sums(sums, rescale.x, rescale.y);
  const uint64_t p = swizzled_tile(softened.p);
  const uint64_t v = transposed_tile(values);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kTile / 16; ++i) wgmma<1>(sums.block[0], p + 2 * i, v + i * kValueStep);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_done(sums.block[0]);
}

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
  RowSoftmax softmax[2];
  ValueSums<kSlice> sums;
#pragma unroll 1
  for (int first = 0; first < count; first += kRound) {
    const int end = min(first + kRound, count);
    const KeyRows rows(a, t);
#pragma unroll 1
    for (int tile = first + own; tile < end; tile += kWarpgroups) {
      uint8_t* values = shared.keys[tile - first];
      widen_tile<kDim, kSlice, 4>(
          find_rows(a, tiles, rows, tile), tile < tiles.of_window(), slice * (kSlice / kGroup),
          [] {},
          [&](int row, int group, const uint32_t(&pairs)[4][4]) {
            store_for_values<kSlice / kGroup>(pairs, row, group, values);
          });
    }
    fence_shared_for_wgmma();
    await_previous();
    for (int i = static_cast<int>(threadIdx.x); i < (end - first) * kTile; i += kThreads) {
      shared.largest[i / kTile][i % kTile] = from[first + i / kTile].largest[i % kTile];
    }
    __syncthreads();
    float reference[2] = {softmax[0].reference, softmax[1].reference};
#pragma unroll 1
    for (int tile = first; tile < end; ++tile) {
      if ((tile - first) % kWarpgroups == own) {
        soften_tile(from[tile], scale, reference, shared.softened[tile - first]);
      }
      for (int r = 0; r < 2; ++r) {
        reference[r] =
            next_reference(reference[r], shared.largest[tile - first][row + 8 * r], scale);
      }
    }
    for (int r = 0; r < 2; ++r) softmax[r].reference = reference[r];
    fence_shared_for_wgmma();
    __syncthreads();
    if (own == 0) {
#pragma unroll 1
      for (int tile = first; tile < end; ++tile) {
        const Softened& softened = shared.softened[tile - first];
        const float2 rescale = softened.rescale[thread];
        softmax[0].sum = __fmaf_rn(softmax[0].sum, rescale.x, softened.softmax[0][thread].sum);
        softmax[1].sum = __fmaf_rn(softmax[1].sum, rescale.y, softened.softmax[1][thread].sum);
        add_values(sums, softened, shared.keys[tile - first]);
      }
    }
    __syncthreads();
  }
  await_previous();  // without keys, too: what follows this kernel follows both
  if (own != 0) return;
  float factors[2];
  for (int r = 0; r < 2; ++r)
    factors[r] = last_factor(a, row + 8 * r, scale, softmax[r], count != 0);
  write_values<GroupColumns<kSlice / kGroup>>(a, t, kDim, slice * kSlice, factors, sums);
}

}  // namespace tidemill::cuda
