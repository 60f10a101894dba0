#include <algorithm>

#include "ops/cuda/few_tokens.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/many_tokens.cuh"
#include "ops/moe/cuda_assign.cuh"

namespace tidemill::cuda {
namespace {

constexpr WeightFormat kRouted = WeightFormat::kFp4Row;
constexpr WeightFormat kShared = WeightFormat::kFp8Block;
constexpr int kMostTopk = 64;
using Shared = ManyShared<false>;  // experts are many: their rows have one segment

struct Moe {
  Assignments assignments;
  int64_t hidden;  // width of the model
  int64_t inter;   // width of an expert
  float limit;
  Rows x;
  const uint16_t* x_routed;  // activations in the order of a format, a row a token
  const uint16_t* x_shared;
  const uint16_t* tiles;  // the same, a tile an item
  uint16_t* inner;        // inner activations: a row an assignment, or tiles like x_routed
  uint16_t* products;     // bf16 [assignments, hidden]

  __device__ float swiglu(float gate, float up, float weight) const {
    const float g = smaller(round_bf16(gate), limit);
    const float u = clamped(round_bf16(up), limit);
    return round_bf16(mul(weight, mul(mul(g, canonical_sigmoid(g)), u)));
  }
};

// Q8 of the tokens in both orders.
template <Layout kLayout>
__global__ void activations_kernel(Rows x, uint16_t* routed, uint16_t* shared) {
  const int64_t eights = x.width / 8;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t n = min(i, x.count * eights - 1);
  float values[8];
  load_eight(x, n / eights, n % eights * 8, values);
  quantise_eight(values);
  put_eight<kRouted, kLayout>(values, routed, n / eights, x.width, n % eights * 8);
  put_eight<kShared, kLayout>(values, shared, n / eights, x.width, n % eights * 8);
}

// ---- few tokens: items of kGroupTokens assignments

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

// ---- many tokens: items of kTileTokens assignments, a tile each

// Gathers each item's tile from a.x_routed or a.x_shared (layout kLines). Blocks (blocks of
// columns, items) of 256 threads: eight threads a line.
__global__ void tiles_kernel(Moe a, uint16_t* out) {
  if (static_cast<int>(blockIdx.y) >= *a.assignments.count) return;
  const Item& item = a.assignments.items[blockIdx.y];
  const uint16_t* x = item.expert < 0 ? a.x_shared : a.x_routed;
  const int32_t* order = a.assignments.order + item.first;
  auto* tile = reinterpret_cast<uint8_t*>(out + int64_t{blockIdx.y} * kTileTokens * a.hidden);
  const auto piece = static_cast<int>(threadIdx.x % 8);
#pragma unroll 4
  for (int line = threadIdx.x / 8; line < item.count; line += blockDim.x / 8) {
    const uint16_t* from = x + a.assignments.token(order[line]) * a.hidden;
    *reinterpret_cast<uint4*>(tile + tile_byte(blockIdx.x, line, piece)) =
        *reinterpret_cast<const uint4*>(from + int64_t{blockIdx.x} * kBlockColumns + piece * 8);
  }
}

// 128 channels: warpgroup g has w1 and w3 of channels 64 g ..
template <WeightFormat kFormat, int kTokens>
__device__ __forceinline__ void many_inner(const Moe& a, const Item& item, Shared& shared,
                                           int64_t channel) {
  const int group = threadIdx.x / 128;
  const int32_t* order = a.assignments.order + item.first;
  const int64_t tile = min(channel + group * 64 + threadIdx.x % 128 / 32 * 16, a.inter - 16);
  const ThreadRows<kFormat> rows[2] = {{item.w1.data, item.w1.scales, a.hidden, tile},
                                       {item.w3.data, item.w3.scales, a.hidden, tile}};
  float acc[2][kTokens / 2];
  multiply_many<kFormat, kTokens>(shared, rows, a.hidden, {1, 0, 1}, acc);
  sync_workers();
  put_results<kTokens>(shared, acc[0], group * 64);
  put_results<kTokens>(shared, acc[1], kManyRows / 2 + group * 64);
  sync_workers();
  constexpr int kEights = kManyRows / 2 / 8;
  for (int i = threadIdx.x; i < kTokens * kEights; i += kManyWorkers) {
    const int t = i / kEights;
    const int64_t c = channel + i % kEights * 8;
    const float weight = a.assignments.weight(order[min(t, item.count - 1)]);
    const float* gate = shared.results() + t * Shared::kStride + i % kEights * 8;
    const float* up = gate + kManyRows / 2;
    float values[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) values[k] = a.swiglu(gate[k], up[k], weight);
    quantise_eight(values);
    if (t < item.count && c < a.inter) {
      put_eight<kFormat, Layout::kTiles>(values, a.inner, int64_t{blockIdx.y} * kTileTokens + t,
                                         a.inter, c);
    }
  }
}

template <WeightFormat kFormat, int kTokens>
__device__ __forceinline__ void many_outer(const Moe& a, const Item& item, Shared& shared,
                                           int64_t row) {
  const int32_t* order = a.assignments.order + item.first;
  const int64_t tile = row + threadIdx.x / 128 * 128 + threadIdx.x % 128 / 32 * 16;
  const StoredWeights& w = item.w2;
  const ThreadRows<kFormat> rows[2] = {{w.data, w.scales, a.inter, min(tile, a.hidden - 16)},
                                       {w.data, w.scales, a.inter, min(tile + 64, a.hidden - 16)}};
  float acc[2][kTokens / 2];
  multiply_many<kFormat, kTokens>(shared, rows, a.inter, {1, 0, 1}, acc);
  sync_workers();
  const int place = threadIdx.x / 128 * 128;
  put_results<kTokens>(shared, acc[0], place);
  put_results<kTokens>(shared, acc[1], place + 64);
  sync_workers();
  if (row + threadIdx.x >= a.hidden) return;
  for (int t = 0; t < item.count; ++t) {
    a.products[order[t] * a.hidden + row + threadIdx.x] = static_cast<uint16_t>(
        __float_as_uint(round_bf16(shared.results()[t * Shared::kStride + threadIdx.x])) >> 16);
  }
}

template <bool kInner, WeightFormat kFormat, int kTokens>
__device__ __forceinline__ void many_part(const Moe& a, const Item& item, Shared& shared,
                                          int64_t row) {
  if constexpr (kInner) {
    many_inner<kFormat, kTokens>(a, item, shared, row);
  } else {
    many_outer<kFormat, kTokens>(a, item, shared, row);
  }
}

template <bool kInner, WeightFormat kFormat>
__device__ __forceinline__ void many_part(const Moe& a, const Item& item, Shared& shared,
                                          int64_t row, int tokens) {
  if (tokens == 128) {
    many_part<kInner, kFormat, 128>(a, item, shared, row);
  } else if (tokens == 96) {
    many_part<kInner, kFormat, 96>(a, item, shared, row);
  } else if (tokens == 64) {
    many_part<kInner, kFormat, 64>(a, item, shared, row);
  } else {
    many_part<kInner, kFormat, 32>(a, item, shared, row);
  }
}

// Blocks (tiles of rows, items).
template <bool kInner>
__global__ void __launch_bounds__(kManyThreads, 1) many_kernel(Moe a) {
  if (static_cast<int>(blockIdx.y) >= *a.assignments.count) return;
  Shared& shared = Shared::get();
  shared.init();
  const Item item = a.assignments.items[blockIdx.y];
  const int tokens = (item.count + 31) / 32 * 32;
  const int64_t row = int64_t{blockIdx.x} * (kInner ? kManyRows / 2 : kManyRows);
  if (threadIdx.x >= kManyWorkers) {
    give_registers();
    if (threadIdx.x == kManyWorkers) {
      const int64_t width = kInner ? a.hidden : a.inter;
      const uint16_t* tiles = kInner ? a.tiles : a.inner;
      shared.bring(reinterpret_cast<const uint8_t*>(tiles + blockIdx.y * kTileTokens * width), 0,
                   static_cast<int>(width / kBlockColumns), tokens);
    }
  } else {
    take_registers();
    if (item.expert < 0) {
      many_part<kInner, kShared>(a, item, shared, row, tokens);
    } else {
      many_part<kInner, kRouted>(a, item, shared, row, tokens);
    }
  }
}

// Adds the experts of a token in ascending order of their ids, the shared one last. A block a
// token.
__global__ void combine_kernel(Moe a, Rows y) {
  __shared__ const uint16_t* row[kMostTopk + 1];
  const int64_t t = blockIdx.x;
  const auto topk = static_cast<int>(a.assignments.topk);
  const int32_t* ids = a.assignments.ids + t * topk;
  for (int i = threadIdx.x; i <= topk; i += blockDim.x) {
    int place = i;
    if (i < topk) {
      place = 0;
      for (int k = 0; k < topk; ++k) place += ids[k] < ids[i] || (ids[k] == ids[i] && k < i);
    }
    row[place] = a.products + (i < topk ? t * topk + i : a.assignments.routed() + t) * a.hidden;
  }
  __syncthreads();
  for (int64_t d = 4 * threadIdx.x; d < a.hidden; d += 4 * blockDim.x) {
    float sum[4] = {};
#pragma unroll 4
    for (int i = 0; i <= topk; ++i) {
      const uint2 four = *reinterpret_cast<const uint2*>(row[i] + d);
      sum[0] = add(sum[0], bf16_to_float(four.x & 0xFFFFu));
      sum[1] = add(sum[1], bf16_to_float(four.x >> 16));
      sum[2] = add(sum[2], bf16_to_float(four.y & 0xFFFFu));
      sum[3] = add(sum[3], bf16_to_float(four.y >> 16));
    }
    *reinterpret_cast<float4*>(y.f32(t) + d) = {round_bf16(sum[0]), round_bf16(sum[1]),
                                                round_bf16(sum[2]), round_bf16(sum[3])};
  }
}

// ---- host

constexpr int64_t kMostTokens = 8192;  // of a pass: bounds the memory of inner activations

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

template <Layout kLayout>
bool store_activations(Launch& l, Moe& a) {
  const int64_t elements = a.x.count * a.hidden;
  auto* x = static_cast<uint16_t*>(l.quantised.take(2 * elements * int64_t{2}, l.stream));
  if (x == nullptr) return false;
  a.x_routed = x;
  a.x_shared = x + elements;
  activations_kernel<kLayout>
      <<<blocks_for(elements / 8, 256), 256, 0, l.stream>>>(a.x, x, x + elements);
  return true;
}

void run_few(Launch& l, Moe& a, int64_t items) {
  if (!store_activations<Layout::kRows>(l, a)) return;
  launch_few<true>(a, items, l.stream);
  launch_few<false>(a, items, l.stream);
}

void run_many(Launch& l, Moe& a, int64_t items) {
  auto* tiles =
      static_cast<uint16_t*>(l.tiles.take(items * kTileTokens * a.hidden * int64_t{2}, l.stream));
  if (tiles == nullptr || !store_activations<Layout::kLines>(l, a)) return;
  a.tiles = tiles;
  const auto n = static_cast<unsigned>(items);
  tiles_kernel<<<dim3(blocks_for(a.hidden, kBlockColumns), n), 256, 0, l.stream>>>(a, tiles);
  cudaFuncSetAttribute(many_kernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       Shared::bytes());
  cudaFuncSetAttribute(many_kernel<false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       Shared::bytes());
  many_kernel<true>
      <<<dim3(blocks_for(a.inter, kManyRows / 2), n), kManyThreads, Shared::bytes(), l.stream>>>(a);
  many_kernel<false>
      <<<dim3(blocks_for(a.hidden, kManyRows), n), kManyThreads, Shared::bytes(), l.stream>>>(a);
}

void pass(Launch& l, const ExpertsArgs& e, int64_t first, int64_t tokens) {
  const auto experts = static_cast<int64_t>(e.experts.size());
  // Assignments of an expert on average decide.
  const int64_t average = tokens * e.topk / experts;
  const int size = average > kGroupTokens ? kTileTokens : kGroupTokens;
  const int64_t items = most_items(tokens, e.topk, experts, size);
  Moe a{.assignments = {.tokens = tokens,
                        .topk = e.topk,
                        .ids = e.ids + first * e.topk,
                        .weights = e.weights + first * e.topk},
        .hidden = e.x.width,
        .inter = e.shared->w1.rows,
        .limit = e.swiglu_limit,
        .x = {e.x.f32(first), tokens, e.x.width, e.x.stride}};
  const int64_t all = a.assignments.all();
  auto* lists = static_cast<Item*>(
      l.lists.take(items * int64_t{sizeof(Item)} + (all + 2) * int64_t{sizeof(int32_t)}, l.stream));
  const int64_t inner_rows = size == kTileTokens ? items * kTileTokens : all;
  a.inner = static_cast<uint16_t*>(l.hidden.take(inner_rows * a.inter * int64_t{2}, l.stream));
  a.products = static_cast<uint16_t*>(l.products.take(all * a.hidden * int64_t{2}, l.stream));
  if (lists == nullptr || a.inner == nullptr || a.products == nullptr) return;
  a.assignments.items = lists;
  a.assignments.count = reinterpret_cast<int32_t*>(lists + items);
  a.assignments.order = a.assignments.count + 2;
  assign(l.stream, a.assignments, e.table, *e.shared, experts, size);
  if (size == kTileTokens) {
    run_many(l, a, items);
  } else {
    run_few(l, a, items);
  }
  combine_kernel<<<static_cast<unsigned>(tokens), 256, 0, l.stream>>>(
      a, {e.y.f32(first), tokens, a.hidden, e.y.stride});
}

bool fits(const ExpertsArgs& a) {
  if (a.experts.empty() || a.experts.size() > kMostExperts || a.topk == 0 || a.topk > kMostTopk)
    return false;
  const ExpertWeights& one = a.experts.front();
  for (const ExpertWeights* w : {&one, a.shared}) {
    if (!has_fragments(w->w1) || !has_fragments(w->w3) || !has_fragments(w->w2)) return false;
  }
  for (const Matrix* w : {&one.w1, &one.w3, &one.w2}) {
    if (w->format != kRouted) return false;
  }
  for (const Matrix* w : {&a.shared->w1, &a.shared->w3, &a.shared->w2}) {
    if (w->format != kShared) return false;
  }
  const auto aligned = [](const Rows& rows) {
    return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % 4 == 0;
  };
  return aligned(a.x) && aligned(a.y);
}

}  // namespace

void experts(Launch& l, const ExpertsArgs& a) {
  if (l.plain || !fits(a)) {
    plain::experts(l, a);
    return;
  }
  for (int64_t first = 0; first < a.x.count; first += kMostTokens) {
    pass(l, a, first, std::min(kMostTokens, a.x.count - first));
  }
}

}  // namespace tidemill::cuda
