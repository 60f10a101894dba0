#include "ops/cuda/few_tokens.cuh"
#include "ops/linear/cuda_product.cuh"

namespace tidemill::cuda {
namespace {

// Grid (blocks, tiles of 8 * kGroups tokens). A tile of 16 rows is read by as many warps as the
// matrix has segments, and groups of warps take turns with tiles.
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

}  // namespace

template <WeightFormat kFormat>
void linear_few(Launch& l, const LinearArgs& a) {
  const auto* x = store_activations<kFormat, Layout::kRows>(l, a, a.x.count);
  if (x == nullptr) return;
  const Product product = product_of(a, x);
  if (product.tokens <= kGroupTokens) {
    few<kFormat, 1>(product, l.stream);
  } else if (product.tokens <= 2 * kGroupTokens) {
    few<kFormat, 2>(product, l.stream);
  } else {
    few<kFormat, 4>(product, l.stream);
  }
}
template void linear_few<WeightFormat::kFp8Block>(Launch&, const LinearArgs&);
template void linear_few<WeightFormat::kBf16>(Launch&, const LinearArgs&);

}  // namespace tidemill::cuda
