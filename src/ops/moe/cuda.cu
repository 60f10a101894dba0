#include <algorithm>

#include "ops/cuda/few_tokens.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/many_tokens.cuh"
#include "ops/moe/cuda_assign.cuh"

namespace tidemill::cuda {
namespace {

constexpr WeightFormat kRouted = WeightFormat::kFp4Row;
constexpr WeightFormat kShared = WeightFormat::kFp8Block;
using Shared = ManyShared<false>;  // experts are many: their rows have one segment

struct Moe {
  Assignments assignments;
  int64_t hidden;  // width of the model
  int64_t inter;   // width of an expert
  float limit;
  Rows x;
  const uint16_t* x_routed;  // activations in the order of a format; a row a token, or tiles whose
  const uint16_t* x_shared;  // rows are the items' assignments
  uint16_t* inner;           // inner activations: a row an assignment, or tiles like x_routed
  uint16_t* products;        // bf16 [assignments, hidden]

  __device__ float swiglu(float gate, float up, float weight) const {
    const float g = smaller(round_bf16(gate), limit);
    const float u = clamped(round_bf16(up), limit);
    return round_bf16(mul(weight, mul(mul(g, canonical_sigmoid(g)), u)));
  }
};

// ---- few tokens: items of kFewTokens assignments

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
  __shared__ float largest[kFewWarps][kFewTokens];  // magnitude of a warp's channels
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
    float acc[4] = {};
    add_job(stream, rows_of, x + a.assignments.token(order[min(lane / 4, last)]) * a.hidden, 0,
            chunks, acc);
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
    float acc[4] = {};
    add_job(stream, rows_of, a.inner + order[min(threadIdx.x % 32 / 4, last)] * a.inter, 0, chunks,
            acc);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (token_of_sum(i) > last) continue;
      a.products[order[token_of_sum(i)] * a.hidden + tiles.in_item(job) * kFewRows +
                 row_of_sum(i)] = bf16_bits(round_bf16(acc[i]));
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

// Q8 of the tokens in both orders.
__global__ void few_activations_kernel(Rows x, uint16_t* routed, uint16_t* shared) {
  const int64_t eights = x.width / 8;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t n = min(i, x.count * eights - 1);
  float values[8];
  load_eight(x, n / eights, n % eights * 8, values);
  quantise_eight(values);
  put_eight<kRouted, Layout::kRows>(values, routed, n / eights, x.width, n % eights * 8);
  put_eight<kShared, Layout::kRows>(values, shared, n / eights, x.width, n % eights * 8);
}

// ---- many tokens: items of kTileTokens assignments, a tile each

// Q8 of the tokens of each item's assignments. Blocks (columns / 64, items) of 256 threads: eight
// threads a line.
__global__ void many_activations_kernel(Moe a, uint16_t* out) {
  if (static_cast<int>(blockIdx.y) >= *a.assignments.count) return;
  const Item item = a.assignments.items[blockIdx.y];
  const int64_t column = int64_t{blockIdx.x} * kBlockColumns + threadIdx.x % 8 * 8;
  for (int line = threadIdx.x / 8; line < kTileTokens; line += blockDim.x / 8) {
    const int valid = min(line, item.count - 1);
    float values[8];
    load_eight(a.x, a.assignments.token(a.assignments.order[item.first + valid]), column, values);
    quantise_eight(values);
    if (line >= item.count) continue;
    const int64_t row = int64_t{blockIdx.y} * kTileTokens + line;
    if (item.expert < 0) {
      put_eight<kShared, Layout::kTiles>(values, out, row, a.hidden, column);
    } else {
      put_eight<kRouted, Layout::kTiles>(values, out, row, a.hidden, column);
    }
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
      const uint16_t* tiles = kInner ? a.x_routed : a.inner;
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

// Adds the experts of a token in ascending order of their ids, the shared one last; two columns a
// thread.
__global__ void combine_kernel(Moe a, Rows y) {
  const int64_t t = blockIdx.y;
  const int64_t pair = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t pairs = a.hidden / 2;
  if (pair >= pairs) return;
  const int64_t topk = a.assignments.topk;
  const int32_t* ids = a.assignments.ids + t * topk;
  const auto* products = reinterpret_cast<const uint32_t*>(a.products) + pair;
  float low = 0;
  float high = 0;
  const auto add_row = [&](int64_t assignment) {
    const uint32_t both = products[assignment * pairs];
    low = add(low, bf16_to_float(both & 0xFFFFu));
    high = add(high, bf16_to_float(both >> 16));
  };
  int32_t last = -1;
  for (int64_t n = 0; n < topk; ++n) {
    int64_t next = -1;
    for (int64_t i = 0; i < topk; ++i) {
      if (ids[i] > last && (next < 0 || ids[i] < ids[next])) next = i;
    }
    if (next < 0) break;
    last = ids[next];
    add_row(t * topk + next);
  }
  add_row(a.assignments.routed() + t);
  *reinterpret_cast<float2*>(y.f32(t) + 2 * pair) = {round_bf16(low), round_bf16(high)};
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

void run_few(Launch& l, Moe& a, int64_t items) {
  const int64_t elements = a.x.count * a.hidden;
  auto* x = static_cast<uint16_t*>(l.quantised.take(2 * elements * int64_t{2}, l.stream));
  if (x == nullptr) return;
  a.x_routed = x;
  a.x_shared = x + elements;
  few_activations_kernel<<<blocks_for(elements / 8, 256), 256, 0, l.stream>>>(a.x, x, x + elements);
  launch_few<true>(a, items, l.stream);
  launch_few<false>(a, items, l.stream);
}

void run_many(Launch& l, Moe& a, int64_t items) {
  auto* x = static_cast<uint16_t*>(
      l.quantised.take(items * kTileTokens * a.hidden * int64_t{2}, l.stream));
  if (x == nullptr) return;
  a.x_routed = a.x_shared = x;
  const auto n = static_cast<unsigned>(items);
  many_activations_kernel<<<dim3(blocks_for(a.hidden, kBlockColumns), n), 256, 0, l.stream>>>(a, x);
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
  const int size = average > kFewTokens ? kTileTokens : kFewTokens;
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
  const dim3 grid(blocks_for(a.hidden / 2, 256), static_cast<unsigned>(tokens));
  combine_kernel<<<grid, 256, 0, l.stream>>>(a, {e.y.f32(first), tokens, a.hidden, e.y.stride});
}

bool fits(const ExpertsArgs& a) {
  if (a.experts.empty() || a.topk == 0) return false;
  const ExpertWeights& one = a.experts.front();
  for (const ExpertWeights* w : {&one, a.shared}) {
    if (!has_fragments(w->w1) || !has_fragments(w->w3) || !has_fragments(w->w2)) return false;
  }
  return one.w1.format == kRouted && one.w2.format == kRouted && a.shared->w1.format == kShared &&
         a.shared->w2.format == kShared && reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0 &&
         a.x.stride % 4 == 0 && a.y.stride % 2 == 0 &&
         reinterpret_cast<uintptr_t>(a.y.data) % 8 == 0;
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
