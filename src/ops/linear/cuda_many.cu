#include <cooperative_groups.h>

#include "ops/cuda/many_tokens.cuh"
#include "ops/linear/cuda_product.cuh"

namespace tidemill::cuda {
namespace {

template <WeightFormat kFormat, int kTokens, bool kSegmented>
__device__ __forceinline__ void multiply(const Product& a, ManyShared<kSegmented>& shared,
                                         int64_t row, const Segments& segments) {
  const int64_t tile = row + threadIdx.x / 128 * 128 + threadIdx.x % 128 / 32 * 16;
  const auto rows_from = [&](int64_t first) {
    return ThreadRows<kFormat>(a.w.data, a.w.scales, a.w.cols, min(first, a.w.rows - 16));
  };
  const ThreadRows<kFormat> rows[2] = {rows_from(tile), rows_from(tile + 64)};
  float acc[2][kTokens / 2];
  multiply_many<kFormat, kTokens>(shared, rows, a.w.cols, segments, acc);
  sync_workers();
  const int place = threadIdx.x / 128 * 128;
  put_results<kTokens>(shared, acc[0], place);
  put_results<kTokens>(shared, acc[1], place + 64);
  sync_workers();
}

// Segments of a tile, by one thread and by the workers; results are then in shared memory for the
// workers.
template <WeightFormat kFormat, bool kSegmented>
__device__ __forceinline__ void bring_tile(const Product& a, ManyShared<kSegmented>& shared,
                                           int64_t row, int64_t token, int padded,
                                           const Segments& segments) {
  constexpr int kBlocks = unit_columns(kFormat) / kBlockColumns;
  const auto units = static_cast<int>(a.w.cols / unit_columns(kFormat));
  const auto* tile = reinterpret_cast<const uint8_t*>(a.x + token * a.width) +
                     row / a.group_rows * a.w.cols * (kTileTokens * int64_t{sizeof(uint16_t)});
  shared.bring(tile, segments.begin(segments.first, units) * kBlocks,
               segments.begin(segments.last, units) * kBlocks, padded);
}

template <WeightFormat kFormat, bool kSegmented>
__device__ __forceinline__ void multiply_tile(const Product& a, ManyShared<kSegmented>& shared,
                                              int64_t row, int padded, const Segments& segments) {
  if (padded == 128) {
    multiply<kFormat, 128>(a, shared, row, segments);
  } else if (padded == 64) {
    multiply<kFormat, 64>(a, shared, row, segments);
  } else {
    multiply<kFormat, 32>(a, shared, row, segments);
  }
}

__device__ inline int padded_tokens(int tokens) {
  return tokens > 64 ? 128 : tokens > 32 ? 64 : 32;
}

// Grid (tiles of tokens, tiles of rows).
template <WeightFormat kFormat, bool kSegmented>
__global__ void __launch_bounds__(kManyThreads, 1) many_kernel(Product a) {
  auto& shared = ManyShared<kSegmented>::get();
  shared.init();
  const int64_t token = int64_t{blockIdx.x} * kTileTokens;
  const int64_t row = int64_t{blockIdx.y} * kManyRows;
  const auto tokens = static_cast<int>(min(int64_t{kTileTokens}, a.tokens - token));
  const Segments segments{a.segments, 0, a.segments};
  if (threadIdx.x >= kManyWorkers) {
    give_registers();
    if (threadIdx.x == kManyWorkers) {
      bring_tile<kFormat>(a, shared, row, token, padded_tokens(tokens), segments);
    }
  } else {
    take_registers();
    multiply_tile<kFormat>(a, shared, row, padded_tokens(tokens), segments);
    if (row + threadIdx.x >= a.w.rows) return;
    const float* results = shared.results() + threadIdx.x;
#pragma unroll 4
    for (int t = 0; t < tokens; ++t) {
      a.put(token + t, row + threadIdx.x, results[t * ManyShared<kSegmented>::kStride]);
    }
  }
}

// The same where tiles are fewer than multiprocessors: a cluster of blocks has a tile, a block a
// segment of it, then its share of the rows to add up. Grid (segments, tiles of rows, tiles of
// tokens).
template <WeightFormat kFormat, int kSegments>
__global__ void __cluster_dims__(kSegments, 1, 1) __launch_bounds__(kManyThreads, 1)
    split_kernel(Product a) {
  using Shared = ManyShared<false>;
  const auto cluster = cooperative_groups::this_cluster();
  Shared& shared = Shared::get();
  shared.init();
  const auto segment = static_cast<int>(blockIdx.x);
  const int64_t row = int64_t{blockIdx.y} * kManyRows;
  const int64_t token = int64_t{blockIdx.z} * kTileTokens;
  const auto tokens = static_cast<int>(min(int64_t{kTileTokens}, a.tokens - token));
  const Segments segments{kSegments, segment, segment + 1};
  if (threadIdx.x >= kManyWorkers) {
    give_registers();
    if (threadIdx.x == kManyWorkers) {
      bring_tile<kFormat>(a, shared, row, token, padded_tokens(tokens), segments);
    }
    cluster.sync();
    cluster.sync();
  } else {
    take_registers();
    multiply_tile<kFormat>(a, shared, row, padded_tokens(tokens), segments);
    cluster.sync();
    const auto units = static_cast<int>(a.w.cols / unit_columns(kFormat));
    constexpr int kShare = kManyRows / kSegments;
    const int r = segment * kShare + threadIdx.x % kShare;
    for (int t = threadIdx.x / kShare; t < tokens; t += kManyWorkers / kShare) {
      float total = 0;
      bool first = true;
      for (int s = 0; s < kSegments; ++s) {
        if (segments.begin(s, units) == segments.begin(s + 1, units)) continue;
        const float* sums = cluster.map_shared_rank(shared.results(), s);
        const float sum = sums[t * Shared::kStride + r];
        total = first ? sum : add(total, sum);
        first = false;
      }
      if (row + r < a.w.rows) a.put(token + t, row + r, total);
    }
    cluster.sync();  // others may still read this block's sums
  }
}

template <WeightFormat kFormat>
void many(const Product& a, cudaStream_t stream) {
  constexpr int kBytes = ManyShared<false>::bytes();
  constexpr int kSegmentedBytes = ManyShared<true>::bytes();
  static const int multiprocessors = [] {
    const auto allow = [](auto* kernel, int bytes) {
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    };
    allow(many_kernel<kFormat, false>, kBytes);
    allow(many_kernel<kFormat, true>, kSegmentedBytes);
    allow(split_kernel<kFormat, 4>, kBytes);
    allow(split_kernel<kFormat, 8>, kBytes);
    int value = 0;
    cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0);
    return value;
  }();
  const unsigned token_tiles = blocks_for(a.tokens, kTileTokens);
  const unsigned row_tiles = blocks_for(a.w.rows, kManyRows);
  const dim3 grid(token_tiles, row_tiles);
  if (a.segments == 1) {
    many_kernel<kFormat, false><<<grid, kManyThreads, kBytes, stream>>>(a);
  } else if (a.segments == 2 ||
             token_tiles * row_tiles * 2 > static_cast<unsigned>(multiprocessors)) {
    many_kernel<kFormat, true><<<grid, kManyThreads, kSegmentedBytes, stream>>>(a);
  } else {
    const dim3 split(a.segments, row_tiles, token_tiles);
    if (a.segments == 8) {
      split_kernel<kFormat, 8><<<split, kManyThreads, kBytes, stream>>>(a);
    } else {
      split_kernel<kFormat, 4><<<split, kManyThreads, kBytes, stream>>>(a);
    }
  }
}

}  // namespace

template <WeightFormat kFormat>
void linear_many(Launch& l, const LinearArgs& a) {
  const int64_t rows = (a.x.count + kTileTokens - 1) / kTileTokens * kTileTokens;
  const auto* x = store_activations<kFormat, Layout::kTiles>(l, a, rows);
  if (x != nullptr) many<kFormat>(product_of(a, x), l.stream);
}
template void linear_many<WeightFormat::kFp8Block>(Launch&, const LinearArgs&);
template void linear_many<WeightFormat::kBf16>(Launch&, const LinearArgs&);

}  // namespace tidemill::cuda
