// Attention on tensor cores. Where tokens are many, a block takes one at a time: two warpgroups
// widen tiles of 64 keys in turn, two multiply; each of these has half of the channels of scores
// and values. Where they are few, the scores of a token are divided by tiles and its values by
// channels among more blocks, in two kernels. Every sum is the same sequence of products in both,
// so a token's bits do not depend on how many there are.
#include <algorithm>
#include <cmath>

#include "ops/attend/cuda_softmax.cuh"

namespace tidemill::cuda {
namespace {

constexpr int kThreads = 4 * kWarpgroup;

template <int kDim>
struct Shared {
  uint8_t q[kTile * kDim * 2];
  uint8_t keys[2][kTile * kDim * 2];
  ScoreTile scores[2];
};

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1) attend_kernel(AttendArgs a, float scale) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(memory);
  const TileRing<2, sizeof(shared.keys[0]), 3 * kWarpgroup> ring{shared.keys[0]};
  constexpr int kPair = 5;  // barrier of the two that multiply
  const int warpgroup = static_cast<int>(threadIdx.x / kWarpgroup);
  int number = 0;  // of a token's first tile, over all tokens of the block

  if (warpgroup < 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
    for (int64_t t = blockIdx.x; t < a.q.count; t += gridDim.x) {
      const KeyTiles tiles(a, t);
      const int first = (number + warpgroup) % 2;  // this warpgroup has one of the buffers
      widen_tiles<kDim, kDim, 4>(a, t, tiles, {first, 2, number + first, 2}, 0, ring);
      number += tiles.count();
    }
    for (int last = max(number - 2, 0); last < number; ++last) {
      if (last % 2 == warpgroup) ring.wait_released(last);
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 192;");
  const int half = warpgroup - 2;
  for (int64_t t = blockIdx.x; t < a.q.count; t += gridDim.x) {
    // The last to read the query before was the other warpgroup's product of its last scores, which
    // came before a barrier of both.
    load_query<kDim, 8>(a, t, static_cast<int>(threadIdx.x / 32) - 8, shared.q);
    fence_shared_for_wgmma();
    const KeyTiles tiles(a, t);
    const int count = tiles.count();
    wait_at(kPair, 2 * kWarpgroup);
    Softmax softmax;
    ValueSums<kDim / 2> sums;
    for (int i = 0; i < count; ++i, ++number) {
      const uint8_t* keys = ring.buffer(number);
      ring.wait_filled(number);
      float s[32];
      multiply_queries<kDim>(shared.q, keys, half, shared.scores, kPair, s);
      uint32_t p[16];
      float rescale[2];
      soften(s, tiles.keys(i), scale, softmax, p, rescale);
      add_values(sums, p, rescale, keys + half * (kDim / kPart / 2) * kPartBytes);
      ring.release(number);
    }
    write_values(a, t, kDim, half * (kDim / 2), scale, softmax, sums, count != 0);
  }
}

// ---- few tokens
// Scores of all tiles of all tokens: scores[t * most_tiles + tile]. Block (x, t) takes the tiles x,
// x + gridDim.x, ... of token t; two warpgroups widen each of them together, two multiply.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    score_kernel(AttendArgs a, ScoreTile* scores, int most_tiles) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(memory);
  const TileRing<2, sizeof(shared.keys[0]), kThreads> ring{shared.keys[0]};
  constexpr int kPair = 5;
  const int64_t t = blockIdx.y;
  const int first = static_cast<int>(blockIdx.x);
  const int step = static_cast<int>(gridDim.x);
  const int warpgroup = static_cast<int>(threadIdx.x / kWarpgroup);
  const KeyTiles tiles(a, t);
  const int count = tiles.count();
  if (first >= count) return;
  const int own = (count - first + step - 1) / step;
  if (warpgroup < 2) {
    widen_tiles<kDim, kDim, 8>(a, t, tiles, {first, step, 0, 1}, 0, ring);
    for (int last = max(own - 2, 0); last < own; ++last) ring.wait_released(last);
    return;
  }
  const int half = warpgroup - 2;
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
  load_query<kDim, 8>(a, t, static_cast<int>(threadIdx.x / 32) - 8, shared.q);
  fence_shared_for_wgmma();
  wait_at(kPair, 2 * kWarpgroup);
  for (int number = 0; number < own; ++number) {
    ring.wait_filled(number);
    float s[32];
    multiply_queries<kDim>(shared.q, ring.buffer(number), half, shared.scores, kPair, s);
    ring.release(number);
    ScoreTile& to = scores[t * most_tiles + first + number * step];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i / 4 == half) to[i][thread] = {s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]};
    }
  }
}

constexpr int kSlice = 128;      // channels of a block of value_kernel
constexpr int kScoresAhead = 4;  // tiles of scores on their way
struct SharedSlice {
  uint8_t keys[6][kTile * kSlice * 2];
  ScoreTile scores[kScoresAhead];
};

__device__ void copy_16_bytes(void* to_shared, const void* from) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(to_shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Block (x, t): channels kSlice * x .. of token t. Three warpgroups widen tiles in turn, one
// multiplies.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    value_kernel(AttendArgs a, float scale, const ScoreTile* scores, int most_tiles) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<SharedSlice*>(memory);
  const TileRing<6, sizeof(shared.keys[0]), 2 * kWarpgroup> ring{shared.keys[0]};
  const int64_t t = blockIdx.y;
  const int slice = static_cast<int>(blockIdx.x);
  const int warpgroup = static_cast<int>(threadIdx.x / kWarpgroup);
  const KeyTiles tiles(a, t);
  const int count = tiles.count();
  if (warpgroup < 3) {
    widen_tiles<kDim, kSlice, 4>(a, t, tiles, {warpgroup, 3, warpgroup, 3},
                                 slice * (kSlice / kGroup), ring);
    for (int last = max(count - 6, 0); last < count; ++last) {
      if (last % 3 == warpgroup) ring.wait_released(last);
    }
    return;
  }
  // Every thread copies and reads its own scores.
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
  const ScoreTile* from = scores + t * most_tiles;
  const auto fetch = [&](int tile) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (tile < count) {
        copy_16_bytes(&shared.scores[tile % kScoresAhead][i][thread], &from[tile][i][thread]);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int i = 0; i < kScoresAhead; ++i) fetch(i);
  Softmax softmax;
  ValueSums<kSlice> sums;
  for (int i = 0; i < count; ++i) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kScoresAhead - 1) : "memory");
    float s[32];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float4 four = shared.scores[i % kScoresAhead][j][thread];
      s[4 * j] = four.x, s[4 * j + 1] = four.y, s[4 * j + 2] = four.z, s[4 * j + 3] = four.w;
    }
    uint32_t p[16];
    float rescale[2];
    soften(s, tiles.keys(i), scale, softmax, p, rescale);
    fetch(i + kScoresAhead);
    ring.wait_filled(i);
    add_values(sums, p, rescale, ring.buffer(i));
    ring.release(i);
  }
  write_values(a, t, kDim, slice * kSlice, scale, softmax, sums, count != 0);
}

// ---- which calls this is for
bool aligned(const void* data, int64_t offset, int64_t bytes) {
  return (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(offset)) %
             static_cast<uintptr_t>(bytes) ==
         0;
}
bool fits(const AttendArgs& a) {
  const int64_t dim = a.window_format.width;
  if ((dim != 128 && dim != 512) || a.heads > kTile) return false;
  if (a.window_format.kind != RowKind::kQ8) return false;
  for (const Rows* rows : {&a.q, &a.out}) {
    if (!aligned(rows->data, 0, 16) || rows->stride % 4 != 0) return false;
  }
  const int64_t window_bytes = dim == 512 ? 16 : 4;
  if (!aligned(a.fresh, 0, window_bytes) || !aligned(a.ring_base, a.ring_add, window_bytes)) {
    return false;
  }
  if (a.entries.format.width == 0) return true;
  const int64_t entry_bytes = dim == 512 ? 16 : 8;
  return a.entries.format.kind == RowKind::kQ4Entry && a.entries.format.width == dim &&
         aligned(a.entries.base, a.entries.offset, entry_bytes) &&
         a.entries.block_bytes % entry_bytes == 0;
}

int64_t multiprocessors() {
  int device = 0;
  int count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// Up to so many tokens blocks of one token each would leave multiprocessors without work.
constexpr int64_t kFewTokens = 64;

template <typename Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(bytes));
}

template <int kDim>
void attend_many(Launch& l, const AttendArgs& a, float scale) {
  const size_t bytes = sizeof(Shared<kDim>);
  allow_shared(attend_kernel<kDim>, bytes);
  const auto blocks = static_cast<unsigned>(std::min(a.q.count, multiprocessors()));
  attend_kernel<kDim><<<blocks, kThreads, bytes, l.stream>>>(a, scale);
}

template <int kDim>
void attend_few(Launch& l, const AttendArgs& a, float scale) {
  const int64_t tokens = a.q.count;
  const int64_t topk = a.entries.format.width == 0 ? 0 : a.topk;
  const int64_t most_tiles = (a.ring_rows + kTile - 1) / kTile + (topk + kTile - 1) / kTile;
  const auto most = static_cast<int>(most_tiles);
  const int64_t size = tokens * most_tiles * static_cast<int64_t>(sizeof(ScoreTile));
  auto* scores = static_cast<ScoreTile*>(l.products.take(size, l.stream));
  if (scores == nullptr) return;
  const int64_t parts = std::clamp<int64_t>(multiprocessors() / tokens, 1, most_tiles);
  const size_t score_bytes = sizeof(Shared<kDim>);
  allow_shared(score_kernel<kDim>, score_bytes);
  allow_shared(value_kernel<kDim>, sizeof(SharedSlice));
  const dim3 score_grid(static_cast<unsigned>(parts), static_cast<unsigned>(tokens));
  score_kernel<kDim><<<score_grid, kThreads, score_bytes, l.stream>>>(a, scores, most);
  const dim3 value_grid(kDim / kSlice, static_cast<unsigned>(tokens));
  value_kernel<kDim>
      <<<value_grid, kThreads, sizeof(SharedSlice), l.stream>>>(a, scale, scores, most);
}

}  // namespace

void attend(Launch& l, const AttendArgs& a) {
  if (l.plain || !fits(a)) return plain::attend(l, a);
  if (a.q.count == 0) return;
  const int64_t dim = a.window_format.width;
  const float scale = kLog2E / std::sqrt(static_cast<float>(dim));
  if (dim == 128) return attend_many<128>(l, a, scale);
  return a.q.count <= kFewTokens ? attend_few<512>(l, a, scale) : attend_many<512>(l, a, scale);
}

}  // namespace tidemill::cuda
