#include "ops/cuda/many_tokens.cuh"
#include "ops/moe/cuda_experts.cuh"

namespace tidemill::cuda {
namespace {

using Shared = ManyShared<false>;  // experts are many: their rows have one segment

__global__ void activations_kernel(Moe a) {
  store_eight<Layout::kLines>(a.x, int64_t{blockIdx.x} * blockDim.x + threadIdx.x, a.x_routed,
                              a.x_shared);
}

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

}  // namespace

void experts_many(Launch& l, Moe& a, const ExpertsArgs& e, int64_t items) {
  auto* tiles =
      static_cast<uint16_t*>(l.tiles.take(items * kTileTokens * a.hidden * int64_t{2}, l.stream));
  if (tiles == nullptr || !take_activations(l, a)) return;
  a.tiles = tiles;
  assign(l.stream, a.assignments, e.table, *e.shared, static_cast<int64_t>(e.experts.size()),
         kTileTokens);
  activations_kernel<<<blocks_for(a.x.count * (a.hidden / 8), 256), 256, 0, l.stream>>>(a);
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

}  // namespace tidemill::cuda
