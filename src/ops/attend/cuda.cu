// Attention on tensor cores. Where tokens are many, a block takes one at a time: two warpgroups
// take turns at tiles of 64 keys, widen them and turn scores into probabilities; two add up the
// values, of half of the channels each. Few tokens are divided among more blocks (cuda_few.cuh).
// Every sum is the same sequence of products in both, so a token's bits do not depend on how many
// there are.
#include <algorithm>
#include <cmath>

#include "ops/attend/cuda_few.cuh"
#include "ops/attend/cuda_softmax.cuh"

namespace tidemill::cuda {
namespace {

template <int kDim>
struct Shared {
  uint8_t q[kTile * kDim * 2];
  uint8_t keys[2][kTile * kDim * 2];  // tile `number` of a block is in number % 2
  Softened softened[2];
};

// Barriers: those of tile `number` are + number % 2, and also its warpgroup is number % 2.
constexpr int kWidened = 1;   // within the warpgroup
constexpr int kSoftened = 3;  // to the warpgroup of the next tile
constexpr int kGiven = 5;     // to those that add values
constexpr int kReleased = 7;  // and back
constexpr int kQuery = 9;     // all that read the query

__device__ void prefetch_query(const AttendArgs& a, int64_t t) {
  const auto bytes = static_cast<uint32_t>(a.q.width * int64_t{sizeof(float)});
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(a.q.f32(t)), "r"(bytes));
}

template <int kDim>
__device__ void soften_tokens(const AttendArgs& a, float scale, Shared<kDim>& shared) {
  const int own = static_cast<int>(threadIdx.x / kWarpgroup);
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
  int number = 0;  // of a token's first tile, over all tokens of the block
  for (int64_t t = blockIdx.x; t < a.q.count; t += gridDim.x) {
    if (threadIdx.x == 0 && t + gridDim.x < a.q.count) prefetch_query(a, t + gridDim.x);
    const KeyTiles tiles(a, t);
    const int count = tiles.count();
    if (count == 0) continue;
    const KeyRows rows(a, t);
    int tile = (number + own) % 2;
    RowAddresses at{};
    if (tile < count) at = find_rows(a, tiles, rows, tile);
    wait_at(kQuery, 2 * kWarpgroup);  // nobody multiplies the query before any more
    load_query<kDim, 8>(a, t, static_cast<int>(threadIdx.x / 32), shared.q);
    fence_shared_for_wgmma();
    wait_at(kQuery, 2 * kWarpgroup);
#pragma unroll 1
    for (; tile < count; tile += 2) {
      const int n = number + tile;
      const int zero = unknown_zero();
      uint8_t* keys = shared.keys[own] + zero;
      RowAddresses next{};
      widen_tile<kDim, kDim, 4>(
          at, tile < tiles.of_window(), 0, keys,
          [&] {
            if (tile + 2 < count) next = find_rows(a, tiles, rows, tile + 2);
          },
          [&] {
            if (n >= 2) wait_at(kReleased + own, 3 * kWarpgroup);
          });
      at = next;
      fence_shared_for_wgmma();
      wait_at(kWidened + own, kWarpgroup);
      float s[32];
      multiply_query<kDim>(shared.q + zero, keys, s);
      hide_absent(s, tiles.keys(tile));
      if (n > 0) wait_at(kSoftened + 1 - own, 2 * kWarpgroup);
      Softmax softmax;
      if (tile > 0) softmax = shared.softened[1 - own].softmax[thread];
      soften(s, scale, softmax, shared.softened[own + zero]);
      fence_shared_for_wgmma();
      arrive_at(kSoftened + own, 2 * kWarpgroup);
      arrive_at(kGiven + own, 3 * kWarpgroup);
    }
    number += count;
  }
  // No barrier is left with arrivals.
  if (number > 0 && (number - 1) % 2 != own) wait_at(kSoftened + 1 - own, 2 * kWarpgroup);
  if (number > own) wait_at(kReleased + own, 3 * kWarpgroup);
}

template <int kDim>
__device__ void add_values_of_tokens(const AttendArgs& a, float scale, Shared<kDim>& shared) {
  const int half = static_cast<int>(threadIdx.x / kWarpgroup) - 2;
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
  int number = 0;
  for (int64_t t = blockIdx.x; t < a.q.count; t += gridDim.x) {
    const int count = KeyTiles(a, t).count();
    Softmax softmax;
    ValueSums<kDim / 2> sums;
#pragma unroll 1
    for (int tile = 0; tile < count; ++tile, ++number) {
      const int buffer = number % 2;
      const Softened& softened = shared.softened[buffer];
      wait_at(kGiven + buffer, 3 * kWarpgroup);
      if (tile == count - 1) softmax = softened.softmax[thread];
      add_values(sums, softened, shared.keys[buffer] + half * (kDim / kPart / 2) * kPartBytes);
      arrive_at(kReleased + buffer, 3 * kWarpgroup);
    }
    write_values(a, t, kDim, half * (kDim / 2), scale, softmax, sums, count != 0);
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1) attend_kernel(AttendArgs a, float scale) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(memory);
  if (threadIdx.x < 2 * kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 96;");
    soften_tokens(a, scale, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    add_values_of_tokens(a, scale, shared);
  }
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
constexpr int64_t kFewTokens = 32;

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
  const int64_t size = tokens * most_tiles * static_cast<int64_t>(sizeof(TileScores));
  auto* scores = static_cast<TileScores*>(l.products.take(size, l.stream));
  if (scores == nullptr) return;
  const int64_t parts = std::clamp<int64_t>(multiprocessors() / tokens, 1, most_tiles);
  const size_t score_bytes = sizeof(SharedScores<kDim>);
  allow_shared(few_scores_kernel<kDim>, score_bytes);
  allow_shared(few_values_kernel<kDim>, sizeof(SharedSlice));
  const dim3 score_grid(static_cast<unsigned>(parts), static_cast<unsigned>(tokens));
  few_scores_kernel<kDim><<<score_grid, kThreads, score_bytes, l.stream>>>(a, scores, most);
  cudaLaunchAttribute early{};  // few_values_kernel waits for the scores itself
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(kDim / kSlice, static_cast<unsigned>(tokens));
  launch.blockDim = dim3(kThreads);
  launch.dynamicSmemBytes = sizeof(SharedSlice);
  launch.stream = l.stream;
  launch.attrs = &early;
  launch.numAttrs = 1;
  cudaLaunchKernelEx(&launch, few_values_kernel<kDim>, a, scale,
                     static_cast<const TileScores*>(scores), most);
}

}  // namespace

void attend(Launch& l, const AttendArgs& a) {
  if (l.plain || !fits(a)) return plain::attend(l, a);
  if (a.q.count == 0) return;
  const int64_t dim = a.window_format.width;
  const float scale = kLog2E / kKeyFactor / std::sqrt(static_cast<float>(dim));
  if (dim == 128) return attend_many<128>(l, a, scale);
  return a.q.count <= kFewTokens ? attend_few<512>(l, a, scale) : attend_many<512>(l, a, scale);
}

}  // namespace tidemill::cuda
