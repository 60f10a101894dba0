#include <algorithm>

#include "ops/cuda/few_tokens.cuh"
#include "ops/moe/cuda_experts.cuh"

namespace tidemill::cuda {
namespace {

__device__ inline uint16_t bf16_bits(float value) {
  return static_cast<uint16_t>(__float_as_uint(value) >> 16);
}

// The last block works out the items; the others store Q8 of the tokens in both orders.
__global__ void __launch_bounds__(kAssignThreads)
    prepare_kernel(Moe a, const ExpertWeights* routed, ExpertWeights shared, int experts,
                   uint16_t* x_routed, uint16_t* x_shared) {
  allow_next();
  await_previous();
  if (blockIdx.x == gridDim.x - 1) {
    assign_items(a.assignments, routed, shared, experts, kGroupTokens);
  } else {
    store_eight<Layout::kRows>(a.x, int64_t{blockIdx.x} * blockDim.x + threadIdx.x, x_routed,
                               x_shared);
  }
}

// Neighbouring tiles of items: those that one block or warp takes.
struct FewTiles {
  int first;
  int jobs;
  int of_item;  // tiles of an item

  // Share `place` of so many.
  __device__ FewTiles(int begin, int tiles, int place, int shares, int of_an_item)
      : first(begin + place * (tiles / shares) + min(place, tiles % shares)),
        jobs(tiles / shares + (place < tiles % shares)),
        of_item(of_an_item) {}
};

// Goes from tile to tile.
struct FewPlace {
  const Item* item;
  int tile;  // of the item

  __device__ FewPlace(const Moe& a, const FewTiles& tiles)
      : item(a.assignments.items + tiles.first / tiles.of_item),
        tile(tiles.first % tiles.of_item) {}
  __device__ void advance(const FewTiles& tiles) {
    if (++tile == tiles.of_item) ++item, tile = 0;
  }
};

// What an item says of weights. The kernel may not yet wait for the one before: not from L1, which
// may have an older item.
__device__ inline StoredWeights weights_of(const StoredWeights& w) {
  const auto* words = reinterpret_cast<const unsigned long long*>(&w);
  return {reinterpret_cast<const void*>(__ldcg(words)),
          reinterpret_cast<const uint8_t*>(__ldcg(words + 1))};
}

// Channels of a block: each warp has eight, w1 of them as rows 0 to 7 of its tiles and w3 as rows 8
// to 15, so that a thread has both sums of a channel.
constexpr int kFewChannels = 8 * kFewWarps;

template <WeightFormat kFormat, int kDepth>
__device__ __forceinline__ void few_inner(const Moe& a, const FewTiles& tiles, void* memory) {
  if (tiles.jobs == 0) return;
  __shared__ float largest[kFewWarps][kGroupTokens];  // magnitude of a warp's channels
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const auto chunks = static_cast<int>(a.hidden / chunk_columns(kFormat));
  FewPlace coming(a, tiles);
  StoredWeights w1, w3;
  const auto rows_of = [&](int job) -> RowPair<kFormat> {
    if (job > 0) coming.advance(tiles);
    if (job == 0 || coming.tile == 0) {
      w1 = weights_of(coming.item->w1);
      w3 = weights_of(coming.item->w3);
    }
    const int64_t channel = min(int64_t{coming.tile} * kFewChannels + 8 * warp, a.inter - 8);
    return {{w1.data, w1.scales, channel}, {w3.data, w3.scales, channel}, a.hidden};
  };
  FewStream<kFormat, kDepth> stream(memory, tiles.jobs, 0, chunks, rows_of);
  const uint16_t* x = kFormat == kShared ? a.x_shared : a.x_routed;
  FewPlace at(a, tiles);
  const int32_t* order = nullptr;
  int last = 0;
  TokenRows<kFormat> rows;
#pragma unroll 1
  for (int job = 0; job < tiles.jobs; ++job, at.advance(tiles)) {
    if (job == 0 || at.tile == 0) {
      order = a.assignments.order + at.item->first;
      last = at.item->count - 1;
      rows.set(x + a.assignments.token(order[min(lane / 4, last)]) * a.hidden, 0);
    }
    float acc[4] = {};
    add_job(stream, rows_of, rows, chunks, acc);
    int32_t assignment[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      assignment[i] = order[min(token_of_sum(i), last)];
      acc[i] = a.swiglu(acc[i], acc[i + 2], a.assignments.weight(assignment[i]));
      float most = fabsf(acc[i]);
#pragma unroll
      for (int other = 4; other < 32; other *= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, other));
      }
      if (lane < 4) largest[warp][token_of_sum(i)] = most;
    }
    __syncthreads();
    const int64_t channel = int64_t{at.tile} * kFewChannels + 8 * warp;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = token_of_sum(i);
      float most = 0;  // of 32 channels: a scale of their Q8
#pragma unroll
      for (int w = 0; w < 4; ++w) most = fmaxf(most, largest[warp / 4 * 4 + w][t]);
      const float scale = e8m0_to_float(q8_scale_of(most));
      if (t <= last && channel < a.inter) {
        a.inner[assignment[i] * a.inter + place_of_eight<kFormat>(channel) +
                place_of_column<kFormat>(lane / 4)] =
            bf16_bits(mul(e4m3_to_float(q8_code(acc[i], scale)), scale));
      }
    }
    __syncthreads();
  }
}

template <WeightFormat kFormat, int kDepth>
__device__ __forceinline__ void few_outer(const Moe& a, const FewTiles& tiles, void* memory) {
  if (tiles.jobs == 0) return;
  const auto chunks = static_cast<int>(a.inter / chunk_columns(kFormat));
  FewPlace coming(a, tiles);
  StoredWeights w2;
  const auto rows_of = [&](int job) -> RowPair<kFormat> {
    if (job > 0) coming.advance(tiles);
    if (job == 0 || coming.tile == 0) w2 = weights_of(coming.item->w2);
    const int64_t row = int64_t{coming.tile} * kFewRows;
    return {{w2.data, w2.scales, row}, {w2.data, w2.scales, row + 8}, a.inter};
  };
  FewStream<kFormat, kDepth> stream(memory, tiles.jobs, 0, chunks, rows_of);
  await_previous();
  FewPlace at(a, tiles);
  const int32_t* order = nullptr;
  int last = 0;
  TokenRows<kFormat> rows;
#pragma unroll 1
  for (int job = 0; job < tiles.jobs; ++job, at.advance(tiles)) {
    if (job == 0 || at.tile == 0) {
      order = a.assignments.order + at.item->first;
      last = at.item->count - 1;
      rows.set(a.inner + order[min(threadIdx.x % 32 / 4, last)] * a.inter, 0);
    }
    float acc[4] = {};
    add_job(stream, rows_of, rows, chunks, acc);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (token_of_sum(i) > last) continue;
      a.products[order[token_of_sum(i)] * a.hidden + at.tile * kFewRows + row_of_sum(i)] =
          bf16_bits(round_bf16(acc[i]));
    }
  }
}

// With more tokens an early start costs more than it hides: blocks that begin beside others are
// spread unevenly, and shares of the work are fixed.
constexpr int64_t kEarlyTokens = 1;

template <int kDepth>
constexpr int kWarpBytes = std::max(FewStream<kRouted, kDepth>::kBytes,
                                    FewStream<kShared, kDepth>::kBytes);

// Blocks share tiles of channels, or warps tiles of rows of w2: first those of the shared expert,
// whose weights have another format and are known before the items are, then those of the others.
template <bool kInner, int kDepth>
__global__ void __launch_bounds__(kFewThreads, few_blocks(kDepth)) few_kernel(Moe a) {
  extern __shared__ uint8_t memory[];
  // Streams of both formats, one after the other, at their own warps' pace.
  void* own = memory + threadIdx.x / 32 * kWarpBytes<kDepth>;
  const auto blocks = static_cast<int>(gridDim.x);
  const auto block = static_cast<int>(blockIdx.x);
  const int place = kInner ? block : static_cast<int>(threadIdx.x / 32) * blocks + block;
  const int shares = kInner ? blocks : blocks * kFewWarps;
  const auto of_item =
      static_cast<int>(kInner ? (a.inter + kFewChannels - 1) / kFewChannels : a.hidden / kFewRows);
  if constexpr (kInner) await_previous();
  allow_next();  // not before items are there: the next kernel begins with them (early_launch.cuh)
  const int routed = __ldcg(a.assignments.count + 1) * of_item;
  const int all = __ldcg(a.assignments.count) * of_item;
  const FewTiles of_shared(routed, all - routed, place, shares, of_item);
  // Who has one more of the former is not the first to have one more of these.
  const FewTiles of_routed(0, routed, (place + shares - (all - routed) % shares) % shares, shares,
                           of_item);
  if constexpr (kInner) {
    few_inner<kShared, kDepth>(a, of_shared, own);
    few_inner<kRouted, kDepth>(a, of_routed, own);
  } else {
    few_outer<kShared, kDepth>(a, of_shared, own);
    few_outer<kRouted, kDepth>(a, of_routed, own);
    await_previous();  // also where there was nothing to do
  }
}

// False: not all tiles have room at once.
template <bool kInner, int kDepth>
bool launch_few(const Moe& a, int64_t items, cudaStream_t stream) {
  constexpr auto kernel = few_kernel<kInner, kDepth>;
  constexpr int kBytes = kFewWarps * kWarpBytes<kDepth>;
  static const int blocks =
      blocks_at_once(reinterpret_cast<const void*>(kernel), kFewThreads, kBytes);
  const int64_t tiles = items * blocks_for(a.inter, kFewChannels);
  if (kDepth == kDeep && tiles > blocks) return false;
  // Of warps with tiles of w2 all multiprocessors shall have the same number.
  const auto grid = static_cast<unsigned>(kInner ? std::min<int64_t>(blocks, tiles) : blocks);
  launch_alike(a.x.count <= kEarlyTokens, kernel, grid, kFewThreads, kBytes, stream, a);
  return true;
}

}  // namespace

void experts_few(Launch& l, Moe& a, const ExpertsArgs& e, int64_t items) {
  if (!take_activations(l, a)) return;
  const unsigned blocks = blocks_for(a.x.count * (a.hidden / 8), kAssignThreads) + 1;
  launch_early(prepare_kernel, blocks, kAssignThreads, 0, l.stream, a, e.table, *e.shared,
               static_cast<int>(e.experts.size()), a.x_routed, a.x_shared);
  if (!launch_few<true, kDeep>(a, items, l.stream)) launch_few<true, kFewDepth>(a, items, l.stream);
  launch_few<false, kFewDepth>(a, items, l.stream);
}

}  // namespace tidemill::cuda
