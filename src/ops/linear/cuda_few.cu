#include "ops/cuda/few_tokens.cuh"
#include "ops/linear/cuda_product.cuh"

namespace tidemill::cuda {
namespace {

// A single token's activations need no kernel of their own where a row is short: each block makes
// that which it multiplies, in shared memory.
constexpr int kMostOwnBytes = 8 << 10;

template <WeightFormat kFormat>
__device__ void make_row(const Rows& x, int64_t column, int columns, bool quantise, uint16_t* to) {
  const int last = columns / 8 - 1;
  for (int i = static_cast<int>(threadIdx.x); i / 32 * 32 <= last; i += kFewThreads) {
    const int n = min(i, last);  // whole warps go on
    float values[8];
    load_eight(x, 0, column + n * 8, values);
    if (quantise) quantise_eight(values);
    put_eight<kFormat, Layout::kRows>(values, to, 0, columns, n * 8);
  }
  __syncthreads();
}

// Grid (blocks, tiles of kGroupTokens tokens). A tile of 16 rows is read by as many warps as the
// matrix has segments, and groups of warps take turns with tiles.
template <WeightFormat kFormat, bool kSegmented, bool kOwn, int kDepth>
__global__ void __launch_bounds__(kFewThreads, few_blocks(kDepth)) few_kernel(Product a) {
  extern __shared__ uint8_t memory[];
  allow_next();
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
  using Stream = FewStream<kFormat, kDepth>;
  Stream stream(memory + threadIdx.x / 32 * Stream::kBytes, jobs, begin, end, rows_of);
  await_previous();
  constexpr int kStreams = kFewWarps * Stream::kBytes;
  uint16_t* own = nullptr;
  if constexpr (kOwn) {
    own = reinterpret_cast<uint16_t*>(memory + kStreams + (kSegmented ? FewSums::kBytes : 0));
    const int64_t row = int64_t{blockIdx.x} * groups * kFewRows;
    make_row<kFormat>(a.in, row / a.group_rows * a.w.cols, static_cast<int>(a.w.cols), a.quantise,
                      own);
  }
  const int64_t token = int64_t{blockIdx.y} * kGroupTokens;
  const auto tokens = static_cast<int>(min(int64_t{kGroupTokens}, a.tokens - token));
  const FewSums sums{
      reinterpret_cast<float*>(memory + kStreams) + group * segments * FewSums::kSegmentFloats,
      segments, units};
  // Warps of a block go together, also where there is no tile left for some.
  const int turns =
      kSegmented ? (tiles - static_cast<int>(blockIdx.x) * groups + stride - 1) / stride : jobs;
  for (int job = 0; job < turns; ++job) {
    const int64_t row = row_of(job);
    float acc[4] = {};
    if (job < jobs) {
      TokenRows<kFormat> rows;
      if constexpr (kOwn) {
        rows.set(own, begin);
      } else {
        const int t = min(lane / 4, tokens - 1);
        rows.set(a.x + (token + t) * a.width + row / a.group_rows * a.w.cols, begin);
      }
      add_job(stream, rows_of, rows, end - begin, acc);
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
      for (int i = 0; i < 4; ++i) {
        const int t = token_of_sum(i);
        if (t < tokens) a.put(token + t, row + row_of_sum(i), acc[i]);
      }
    }
  }
}

// False: not all tiles have room at once.
template <WeightFormat kFormat, bool kSegmented, int kDepth>
bool few(Launch& l, const LinearArgs& args, Product& a) {
  constexpr int kBytes =
      kFewWarps * FewStream<kFormat, kDepth>::kBytes + (kSegmented ? FewSums::kBytes : 0);
  static const int blocks = [] {
    constexpr auto own_kernel = few_kernel<kFormat, kSegmented, true, kDepth>;
    blocks_at_once(reinterpret_cast<const void*>(own_kernel), kFewThreads, kBytes + kMostOwnBytes);
    constexpr auto kernel = few_kernel<kFormat, kSegmented, false, kDepth>;
    return blocks_at_once(reinterpret_cast<const void*>(kernel), kFewThreads, kBytes);
  }();
  const int64_t of_block = kFewWarps / a.segments;  // tiles at once
  const int64_t tiles = blocks_for(a.w.rows / kFewRows, of_block);
  // Blocks of the same number of tiles, as far as possible.
  const int64_t turns = (tiles + blocks - 1) / blocks;
  if (kDepth == kDeep && turns > 1) return false;
  const dim3 grid(blocks_for(tiles, turns), blocks_for(a.tokens, kGroupTokens));
  const bool one_group =
      args.groups == 1 || (turns == 1 && a.group_rows / kFewRows % of_block == 0);
  const int64_t own_bytes = a.w.cols * int64_t{sizeof(uint16_t)};
  if (a.tokens == 1 && one_group && own_bytes <= kMostOwnBytes) {
    launch_early(few_kernel<kFormat, kSegmented, true, kDepth>, grid, kFewThreads,
                 kBytes + static_cast<int>(own_bytes), l.stream, a);
    return true;
  }
  a.x = store_activations<kFormat, Layout::kRows>(l, args, a.tokens);
  if (a.x != nullptr) {
    launch_early(few_kernel<kFormat, kSegmented, false, kDepth>, grid, kFewThreads, kBytes,
                 l.stream, a);
  }
  return true;
}

template <WeightFormat kFormat, bool kSegmented>
void few(Launch& l, const LinearArgs& args, Product& a) {
  if (few<kFormat, kSegmented, kDeep>(l, args, a)) return;
  few<kFormat, kSegmented, kFewDepth>(l, args, a);
}

}  // namespace

template <WeightFormat kFormat>
void linear_few(Launch& l, const LinearArgs& a) {
  Product product = product_of(a, nullptr);
  product.segments > 1 ? few<kFormat, true>(l, a, product) : few<kFormat, false>(l, a, product);
}
template void linear_few<WeightFormat::kFp8Block>(Launch&, const LinearArgs&);
template void linear_few<WeightFormat::kBf16>(Launch&, const LinearArgs&);

}  // namespace tidemill::cuda
