#include <cooperative_groups.h>

#include <algorithm>

#include "ops/cuda/few_tokens.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/many_tokens.cuh"

namespace tidemill::cuda {
namespace {

struct Product {
  Matrix w;
  const uint16_t* x;  // [tokens, width] as the kernel reads it
  int64_t width;      // groups * w.cols
  int64_t group_rows;
  int64_t tokens;
  int segments;
  Rows y;
  bool f32_output;
  bool accumulate;
  float scale;

  __device__ void put(int64_t t, int64_t row, float sum) const {
    float& out = y.f32(t)[row];
    out = accumulate ? add(out, sum) : f32_output ? sum : round_bf16(mul(round_bf16(sum), scale));
  }
};

// ---- few tokens; grid (blocks, tiles of 8 * kGroups tokens)

// With so many at most: clusters of blocks take longer to add up their segments. Where rows have
// one segment, many_tokens.cuh is as fast from nine tokens on.
constexpr int kMostFew = 32;

// A tile of 16 rows is read by as many warps as the matrix has segments, and groups of warps take
// turns with tiles.
template <WeightFormat kFormat, int kGroups, bool kSegmented>
__global__ void __launch_bounds__(kFewThreads, kGroups == 1 ? 3 : 2) few_kernel(Product a) {
  extern __shared__ uint8_t memory[];
  constexpr int kChunks = unit_columns(kFormat) / chunk_columns(kFormat);
  const int lane = threadIdx.x % 32;
  const int segments = kSegmented ? a.segments : 1;
  const int segment = threadIdx.x / 32 % segments;
  const int group = threadIdx.x / 32 / segments;
  const int groups = kFewWarps / segments;  // of a block
  const auto units = static_cast<int>(a.w.cols / unit_columns(kFormat));
  const int begin = segment_begin(segment, units, segments) * kChunks;
  const int end = segment_begin(segment + 1, units, segments) * kChunks;
  const auto tiles = static_cast<int>(a.w.rows / kFewRows);
  const auto stride = static_cast<int>(gridDim.x) * groups;
  const int first = static_cast<int>(blockIdx.x) * groups + group;
  const int jobs = first < tiles ? (tiles - first + stride - 1) / stride : 0;
  const auto row_of = [&](int job) { return int64_t{first + job * stride} * kFewRows; };
  const auto rows_of = [&](int job) -> RowPair<kFormat> {
    const int64_t row = row_of(job);
    return {{a.w.data, a.w.scales, row}, {a.w.data, a.w.scales, row + 8}, a.w.cols};
  };
  FewStream<kFormat> stream(memory + threadIdx.x / 32 * FewStream<kFormat>::kBytes, jobs, begin,
                            end, rows_of);
  constexpr int kTokens = kGroups * kGroupTokens;
  const int64_t token = int64_t{blockIdx.y} * kTokens;
  const auto tokens = static_cast<int>(min(int64_t{kTokens}, a.tokens - token));
  using Sums = FewSums<kGroups>;
  const Sums sums{reinterpret_cast<float*>(memory + kFewWarps * FewStream<kFormat>::kBytes) +
                      group * segments * Sums::kSegmentFloats,
                  segments, units};
  // Warps of a block go together, also where there is no tile left for some.
  const int turns =
      kSegmented ? (tiles - static_cast<int>(blockIdx.x) * groups + stride - 1) / stride : jobs;
  for (int job = 0; job < turns; ++job) {
    const int64_t row = row_of(job);
    float acc[kGroups][4] = {};
    if (job < jobs) {
      TokenRows<kGroups> rows;
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        const int t = min(n * kGroupTokens + lane / 4, tokens - 1);
        rows.row[n] = a.x + (token + t) * a.width + row / a.group_rows * a.w.cols;
      }
      add_job(stream, rows_of, rows, begin, end, acc);
    }
    if constexpr (kSegmented) {
      sums.put(segment, acc);
      __syncthreads();
      for (int i = segment * 32 + lane; job < jobs && i < kFewRows * tokens; i += segments * 32) {
        a.put(token + i / kFewRows, row + i % kFewRows, sums.total(i % kFewRows, i / kFewRows));
      }
      __syncthreads();
    } else {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int t = n * kGroupTokens + token_of_sum(i);
          if (t < tokens) a.put(token + t, row + row_of_sum(i), acc[n][i]);
        }
      }
    }
  }
}

// ---- many tokens; grid (tiles of tokens, tiles of rows)

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

// ---- host

template <WeightFormat kFormat, Layout kLayout>
void store_activations(const Rows& x, bool quantise, uint16_t* out, cudaStream_t stream) {
  const int64_t n = x.count * (x.width / 8);
  store_activations_kernel<kFormat, kLayout>
      <<<blocks_for(n, 256), 256, 0, stream>>>(x, quantise, out);
}

template <WeightFormat kFormat, int kGroups, bool kSegmented>
void few(const Product& a, cudaStream_t stream) {
  constexpr int kBytes =
      kFewWarps * FewStream<kFormat>::kBytes + (kSegmented ? FewSums<kGroups>::kBytes : 0);
  const auto kernel = few_kernel<kFormat, kGroups, kSegmented>;
  static const int blocks =
      blocks_at_once(reinterpret_cast<const void*>(kernel), kFewThreads, kBytes);
  const int64_t tiles = blocks_for(a.w.rows / kFewRows, kFewWarps / a.segments);  // of a block
  // Blocks of the same number of tiles, as far as possible.
  const int64_t turns = (tiles + blocks - 1) / blocks;
  const dim3 grid(blocks_for(tiles, turns), blocks_for(a.tokens, kGroups * kGroupTokens));
  kernel<<<grid, kFewThreads, kBytes, stream>>>(a);
}

template <WeightFormat kFormat, int kGroups>
void few(const Product& a, cudaStream_t stream) {
  a.segments > 1 ? few<kFormat, kGroups, true>(a, stream) : few<kFormat, kGroups, false>(a, stream);
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

template <WeightFormat kFormat>
void run(Launch& l, const LinearArgs& a) {
  const int64_t tokens = a.x.count;
  const int64_t group_rows = a.w->rows / a.groups;
  const int segments = segments_of(a.w->rows);
  const bool in_tiles = tokens > (segments > 1 ? kMostFew : kGroupTokens) &&
                        (a.groups == 1 || group_rows % kManyRows == 0);
  const int64_t rows = in_tiles ? (tokens + kTileTokens - 1) / kTileTokens * kTileTokens : tokens;
  auto* x = static_cast<uint16_t*>(
      l.quantised.take(rows * a.x.width * int64_t{sizeof(uint16_t)}, l.stream));
  if (x == nullptr) return;
  const Product product{.w = *a.w,
                        .x = x,
                        .width = a.x.width,
                        .group_rows = group_rows,
                        .tokens = tokens,
                        .segments = segments,
                        .y = a.y,
                        .f32_output = a.f32_output,
                        .accumulate = a.accumulate,
                        .scale = a.scale};
  if (in_tiles) {
    store_activations<kFormat, Layout::kTiles>(a.x, a.quantise_input, x, l.stream);
    many<kFormat>(product, l.stream);
    return;
  }
  store_activations<kFormat, Layout::kRows>(a.x, a.quantise_input, x, l.stream);
  if (tokens <= kGroupTokens) {
    few<kFormat, 1>(product, l.stream);
  } else if (tokens <= 2 * kGroupTokens) {
    few<kFormat, 2>(product, l.stream);
  } else {
    few<kFormat, 4>(product, l.stream);
  }
}

bool aligned(const Rows& x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 4 == 0;
}

}  // namespace

void linear(Launch& l, const LinearArgs& a) {
  if (l.plain || !has_fragments(*a.w) || a.w->rows / a.groups % kFewRows != 0 || !aligned(a.x)) {
    plain::linear(l, a);
  } else if (a.x.count == 0) {
    return;
  } else if (a.w->format == WeightFormat::kBf16) {
    run<WeightFormat::kBf16>(l, a);
  } else if (a.w->format == WeightFormat::kFp8Block) {
    run<WeightFormat::kFp8Block>(l, a);
  } else {
    run<WeightFormat::kFp4Row>(l, a);
  }
}

}  // namespace tidemill::cuda
