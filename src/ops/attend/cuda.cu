// Attention on tensor cores. Where tokens are many, a block takes one at a time, and its four
// warpgroups are stages that tiles of 64 keys go through: one widens them, one turns scores into
// probabilities, two add up the values, of half of the channels each. Few tokens are divided among
// more blocks (cuda_few.cuh). Every sum is the same sequence of products in both, so a token's bits
// do not depend on how many there are.
#include <algorithm>
#include <cmath>

#include "ops/attend/cuda_few.cuh"
#include "ops/attend/cuda_softmax.cuh"
#include "ops/attend/cuda_stream.cuh"

namespace tidemill::cuda {
namespace {

template <int kDim>
struct Shared {
  uint8_t q[kTile * kDim * 2];
  uint8_t keys[2][kTile * kDim * 2];  // tile `number` of a block is in number % 2
  Softened softened[2];
  Staged staged;
  float2 denominators[2][kTile];  // largest product and sum of a head after a token's last tile
};

// Barriers: those of tile `number` are + number % 2. What a tile is softened into needs none of its
// own: it was read before the keys of the tile before last were released.
constexpr int kWidened = 1;   // to the one that softens
constexpr int kGiven = 3;     // to those that add values
constexpr int kReleased = 5;  // and back to the one that widens
constexpr int kQuery = 7;     // the first two

__device__ void prefetch_query(const AttendArgs& a, int64_t t) {
  const auto bytes = static_cast<uint32_t>(a.q.width * int64_t{sizeof(float)});
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(a.q.f32(t)), "r"(bytes));
}

// By the first two warpgroups, when nobody multiplies the query before any more.
template <int kDim>
__device__ void replace_query(const AttendArgs& a, int64_t t, Shared<kDim>& shared) {
  wait_at(kQuery, 2 * kWarpgroup);
  load_query<kDim, 8>(a, t, static_cast<int>(threadIdx.x / 32), shared.q);
  fence_shared_for_wgmma();
  wait_at(kQuery, 2 * kWarpgroup);
}

template <int kDim>
__device__ void widen_tokens(const AttendArgs& a, Shared<kDim>& shared) {
  int number = 0;  // of the next tile, over all tokens of the block
  for (int64_t t = blockIdx.x; t < a.q.count; t += gridDim.x) {
    const KeyTiles tiles(a, t);
    const int count = tiles.count();
    if (count == 0) continue;
    const KeyRows rows(a, t);
    RowStream<kDim> stream(a, tiles, rows, shared.staged);
    if (threadIdx.x == 0 && t + gridDim.x < a.q.count) prefetch_query(a, t + gridDim.x);
    replace_query<kDim>(a, t, shared);
#pragma unroll 1
    for (int tile = 0; tile < count; ++tile, ++number) {
      const int buffer = number % 2;
      if (number >= 2) wait_at(kReleased + buffer, 3 * kWarpgroup);
      stream.widen(tile, shared.keys[buffer]);
      fence_shared_for_wgmma();
      arrive_at(kWidened + buffer, 2 * kWarpgroup);
    }
  }
  // No barrier is left with arrivals.
  for (int last = max(number - 2, 0); last < number; ++last) {
    wait_at(kReleased + last % 2, 3 * kWarpgroup);
  }
}

template <int kDim>
__device__ void soften_tokens(const AttendArgs& a, float scale, Shared<kDim>& shared) {
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
  const int row = thread / 32 * 16 + thread % 32 / 4;
  int number = 0;
  for (int64_t t = blockIdx.x; t < a.q.count; t += gridDim.x) {
    const KeyTiles tiles(a, t);
    const int count = tiles.count();
    if (count == 0) continue;
    replace_query<kDim>(a, t, shared);
    Softmax softmax;
#pragma unroll 1
    for (int tile = 0; tile < count; ++tile, ++number) {
      const int buffer = number % 2;
      const int zero = unknown_zero();
      wait_at(kWidened + buffer, 2 * kWarpgroup);
      float s[32];
      multiply_query<kDim>(shared.q + zero, shared.keys[buffer], s);
      hide_absent(s, tiles.keys(tile));
      soften(s, scale, softmax, shared.softened[buffer + zero]);
      if (tile == count - 1) {
        add_columns(softmax);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          shared.denominators[buffer][row + 8 * r] = {softmax.largest[r], softmax.sum[r]};
        }
      }
      fence_shared_for_wgmma();
      arrive_at(kGiven + buffer, 3 * kWarpgroup);
    }
  }
}

template <int kDim>
__device__ void add_values_of_tokens(const AttendArgs& a, float scale, Shared<kDim>& shared) {
  const int half = static_cast<int>(threadIdx.x / kWarpgroup) - 2;
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
  const int row = thread / 32 * 16 + thread % 32 / 4;
  int number = 0;
  for (int64_t t = blockIdx.x; t < a.q.count; t += gridDim.x) {
    const int count = KeyTiles(a, t).count();
    Softmax softmax;
    ValueSums<kDim / 2> sums;
#pragma unroll 1
    for (int tile = 0; tile < count; ++tile, ++number) {
      const int buffer = number % 2;
      wait_at(kGiven + buffer, 3 * kWarpgroup);
      if (tile == count - 1) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float2 of_row = shared.denominators[buffer][row + 8 * r];
          softmax.largest[r] = of_row.x;
          softmax.sum[r] = of_row.y;
        }
      }
      add_values(sums, shared.softened[buffer],
                 shared.keys[buffer] + half * (kDim / kPart / 2) * kPartBytes);
      arrive_at(kReleased + buffer, 3 * kWarpgroup);
    }
    write_values(a, t, kDim, half * (kDim / 2), scale, softmax, sums, count != 0);
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1) attend_kernel(AttendArgs a, float scale) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(memory);
  static_assert(sizeof(shared) <= 227 * 1024);
  if (threadIdx.x < 2 * kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 96;");
    if (threadIdx.x < kWarpgroup) {
      widen_tokens(a, shared);
    } else {
      soften_tokens(a, scale, shared);
    }
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
constexpr int64_t kFewTokens = 16;

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
