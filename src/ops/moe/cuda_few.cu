#include <algorithm>

#include "ops/cuda/few_tokens.cuh"
#include "ops/moe/cuda_experts.cuh"

namespace tidemill::cuda {
namespace {

__device__ inline uint16_t bf16_bits(float value) {
  return static_cast<uint16_t>(__float_as_uint(value) >> 16);
}

// Tiles of all items that one block or warp takes: first + j * stride for j from 0 to jobs - 1.
struct FewTiles {
  int first;
  int stride;
  int jobs;
  int of_item;  // tiles of an item

  __device__ const Item& item(const Moe& a, int job) const {
    return a.assignments.items[(first + job * stride) / of_item];
  }
  __device__ int in_item(int job) const { return (first + job * stride) % of_item; }
};

// Channels of a block: each warp has eight, w1 of them as rows 0 to 7 of its tiles and w3 as rows 8
// to 15, so that a thread has both sums of a channel.
constexpr int kFewChannels = 8 * kFewWarps;

template <WeightFormat kFormat>
__device__ __forceinline__ void few_inner(const Moe& a, const FewTiles& tiles, void* memory) {
  __shared__ float largest[kFewWarps][kGroupTokens];  // magnitude of a warp's channels
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const auto chunks = static_cast<int>(a.hidden / chunk_columns(kFormat));
  const auto channel_of = [&](int job) {
    return int64_t{tiles.in_item(job)} * kFewChannels + 8 * warp;
  };
  const auto rows_of = [&](int job) -> RowPair<kFormat> {
    const Item& item = tiles.item(a, job);
    const int64_t channel = min(channel_of(job), a.inter - 8);
    return {
        {item.w1.data, item.w1.scales, channel}, {item.w3.data, item.w3.scales, channel}, a.hidden};
  };
  FewStream<kFormat> stream(memory, tiles.jobs, 0, chunks, rows_of);
  const uint16_t* x = kFormat == kShared ? a.x_shared : a.x_routed;
  for (int job = 0; job < tiles.jobs; ++job) {
    const Item& item = tiles.item(a, job);
    const int32_t* order = a.assignments.order + item.first;
    const int last = item.count - 1;
    float sums[1][4] = {};
    float(&acc)[4] = sums[0];
    const TokenRows<1> rows{x + a.assignments.token(order[min(lane / 4, last)]) * a.hidden};
    add_job(stream, rows_of, rows, 0, chunks, sums);
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
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = token_of_sum(i);
      float most = 0;  // of 32 channels: a scale of their Q8
#pragma unroll
      for (int w = 0; w < 4; ++w) most = fmaxf(most, largest[warp / 4 * 4 + w][t]);
      const float scale = e8m0_to_float(q8_scale_of(most));
      if (t <= last && channel_of(job) < a.inter) {
        a.inner[assignment[i] * a.inter + channel_of(job) + place_of_column<kFormat>(lane / 4)] =
            bf16_bits(mul(e4m3_to_float(q8_code(acc[i], scale)), scale));
      }
    }
    __syncthreads();
  }
}

template <WeightFormat kFormat>
__device__ __forceinline__ void few_outer(const Moe& a, const FewTiles& tiles, void* memory) {
  const auto chunks = static_cast<int>(a.inter / chunk_columns(kFormat));
  const auto rows_of = [&](int job) -> RowPair<kFormat> {
    const StoredWeights& w = tiles.item(a, job).w2;
    const int64_t row = int64_t{tiles.in_item(job)} * kFewRows;
    return {{w.data, w.scales, row}, {w.data, w.scales, row + 8}, a.inter};
  };
  FewStream<kFormat> stream(memory, tiles.jobs, 0, chunks, rows_of);
  for (int job = 0; job < tiles.jobs; ++job) {
    const Item& item = tiles.item(a, job);
    const int32_t* order = a.assignments.order + item.first;
    const int last = item.count - 1;
    float acc[1][4] = {};
    const TokenRows<1> rows{a.inner + order[min(threadIdx.x % 32 / 4, last)] * a.inter};
    add_job(stream, rows_of, rows, 0, chunks, acc);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (token_of_sum(i) > last) continue;
      a.products[order[token_of_sum(i)] * a.hidden + tiles.in_item(job) * kFewRows +
                 row_of_sum(i)] = bf16_bits(round_bf16(acc[0][i]));
    }
  }
}

// Blocks take turns with tiles of channels, or warps with tiles of rows of w2: first those of
// routed experts, then those of the shared one, whose weights have another format.
template <bool kInner>
__global__ void __launch_bounds__(kFewThreads, 2) few_kernel(Moe a) {
  extern __shared__ uint8_t memory[];
  // Streams of both formats, one after the other, at their own warps' pace.
  constexpr int kWarpBytes = std::max(FewStream<kRouted>::kBytes, FewStream<kShared>::kBytes);
  void* own = memory + threadIdx.x / 32 * kWarpBytes;
  const auto blocks = static_cast<int>(gridDim.x);
  const auto block = static_cast<int>(blockIdx.x);
  const int first = kInner ? block : static_cast<int>(threadIdx.x / 32) * blocks + block;
  const int stride = kInner ? blocks : blocks * kFewWarps;
  const auto of_item =
      static_cast<int>(kInner ? (a.inter + kFewChannels - 1) / kFewChannels : a.hidden / kFewRows);
  const auto jobs_below = [&](int items) {
    const int tiles = items * of_item;
    return first < tiles ? (tiles - first + stride - 1) / stride : 0;
  };
  const int routed = jobs_below(a.assignments.count[1]);
  const int all = jobs_below(a.assignments.count[0]);
  const FewTiles of_routed{first, stride, routed, of_item};
  const FewTiles of_shared{first + routed * stride, stride, all - routed, of_item};
  if constexpr (kInner) {
    few_inner<kRouted>(a, of_routed, own);
    few_inner<kShared>(a, of_shared, own);
  } else {
    few_outer<kRouted>(a, of_routed, own);
    few_outer<kShared>(a, of_shared, own);
  }
}

template <bool kInner>
void launch_few(const Moe& a, int64_t items, cudaStream_t stream) {
  constexpr int kBytes =
      kFewWarps * std::max(FewStream<kRouted>::kBytes, FewStream<kShared>::kBytes);
  static const int blocks =
      blocks_at_once(reinterpret_cast<const void*>(few_kernel<kInner>), kFewThreads, kBytes);
  const int64_t tiles =
      items * blocks_for(kInner ? a.inter : a.hidden, kInner ? kFewChannels : kFewRows * kFewWarps);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(blocks, tiles));
  few_kernel<kInner><<<grid, kFewThreads, kBytes, stream>>>(a);
}

}  // namespace

void experts_few(Launch& l, Moe& a, int64_t items) {
  if (!store_activations<Layout::kRows>(l, a)) return;
  launch_few<true>(a, items, l.stream);
  launch_few<false>(a, items, l.stream);
}

}  // namespace tidemill::cuda
