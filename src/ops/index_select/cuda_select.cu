// Exact selection from rows of 16-bit keys. A cluster of blocks of threads shares a row, in slices.
// Each counts its keys by their upper 12 bits and then, of those in which the k-th largest lies, by
// the lower 4; all read the counts of all. So each knows which keys are in and how many lie in the
// slices before its own, and writes what is above the k-th and the first of those that equal it.
#include <cooperative_groups.h>

#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/index_select/cuda_index.h"

namespace tidemill::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kStep = kThreads * 8;  // keys of a block of threads at once
constexpr int kMostBlocks = 8;       // of a cluster
constexpr int kHighBins = 4096;
constexpr int kGroups = 64;  // of as many high bins
constexpr int kLowBins = 16;
constexpr int kCached = 3 * kStep;
constexpr uint32_t kAll = 0xFFFFFFFFu;
static_assert(kGroups * kGroups == kHighBins && kGroups * kMostBlocks == kThreads);

struct Eight {
  uint32_t pair[4] = {};

  Eight() = default;
  // The first `valid` of them; the others become 0.
  __device__ Eight(const uint16_t* keys, int valid) {
    if (valid <= 0) return;
    const uint4 all = *reinterpret_cast<const uint4*>(keys);
    const uint32_t words[4] = {all.x, all.y, all.z, all.w};
    for (int i = 0; i < 4; ++i) {
      pair[i] = valid >= 2 * i + 2 ? words[i] : valid == 2 * i + 1 ? words[i] & 0xFFFFu : 0;
    }
  }
  __device__ uint32_t key(int i) const { return pair[i / 2] >> i % 2 * 16 & 0xFFFFu; }
  __device__ uint32_t largest() const {
    uint32_t result = 0;
    for (int i = 0; i < 8; ++i) result = max(result, key(i));
    return result;
  }
};

__device__ int blocks_of(int visible) { return (visible + kPoolBlock - 1) / kPoolBlock; }

// What a row's keys are of.
template <Selected what>
struct Row {
  const ScoreRows& rows;
  const uint16_t* keys;
  const int32_t* pool;  // its blocks
  int visible;
  int count;  // of keys to select from

  __device__ Row(const ScoreRows& all, int row) : rows(all) {
    const int64_t t = rows.first + row;
    visible = static_cast<int>(rows.args.visible[t]);
    keys = rows.data + row * rows.stride;
    pool = nullptr;
    count = visible;
    if (what == Selected::kInPool) {
      pool = rows.args.pool_in + t * rows.args.pool_topk;
      count = min(blocks_of(visible), static_cast<int>(rows.args.pool_topk)) * kPoolBlock;
    } else if (what == Selected::kBlocks) {
      count = blocks_of(visible);
    }
  }

  // Keys n .. n + 7.
  __device__ Eight load(int n) const {
    if (n >= count) return {};
    if constexpr (what == Selected::kEntries) return {keys + n, count - n};
    if constexpr (what == Selected::kInPool) {
      const int block = pool[n / kPoolBlock];
      if (block < 0) return {};
      const int64_t at = int64_t{block} * kPoolBlock;
      return {keys + (rows.gathered ? n : at), static_cast<int>(max(visible - at, int64_t{0}))};
    }
    Eight best;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (what != Selected::kBlocks || n + i >= count) continue;
      const int64_t at = int64_t{n + i} * kPoolBlock;
      const uint32_t key = n + i == count - 1 ? 0xFFFFu  // the newest block
                                              : Eight(keys + at, kPoolBlock).largest();
      best.pair[i / 2] |= key << i % 2 * 16;
    }
    return best;
  }
  __device__ int number(int n) const {
    return what == Selected::kInPool ? pool[n / kPoolBlock] * kPoolBlock + n % kPoolBlock : n;
  }
};

struct Shared {
  uint32_t high[kHighBins];
  uint32_t group[kGroups];
  uint32_t low[kLowBins];
  uint4 cached[kCached / 8];
  // Counts of all blocks of threads of the cluster, as many bins each.
  uint32_t groups[kMostBlocks * kGroups];
  uint32_t highs[kMostBlocks * kGroups];
  uint32_t lows[kMostBlocks * kLowBins];
  uint32_t above[kMostBlocks];
  uint32_t equal[kMostBlocks];
  uint32_t warp[2][kWarps];
};

__device__ uint32_t sum_before(uint32_t value) {  // of the lanes below
  uint32_t sum = value;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const uint32_t lower = __shfl_up_sync(kAll, sum, i);
    if (threadIdx.x % 32 >= i) sum += lower;
  }
  return sum - value;
}

// The bin of n (a power of two, 64 at most), from the last one down, in which the rest-th lies, all
// blocks' counts together; rest becomes its place there. -1: there are fewer. For whole warps.
__device__ int find_bin(const uint32_t* counts, int n, int blocks, uint32_t& rest) {
  const int lane = threadIdx.x % 32;
  const int bin = n - 1 - 2 * lane;
  uint32_t sum[2] = {};
  if (bin > 0) {
    for (int b = 0; b < blocks; ++b) {
      sum[0] += counts[b * n + bin];
      sum[1] += counts[b * n + bin - 1];
    }
  }
  const uint32_t before = sum_before(sum[0] + sum[1]);
  const bool here = before < rest && before + sum[0] + sum[1] >= rest;
  const uint32_t found = __ballot_sync(kAll, here);
  if (found == 0) return -1;
  const bool second = before + sum[0] < rest;
  const int source = __ffs(static_cast<int>(found)) - 1;
  rest = __shfl_sync(kAll, rest - before - (second ? sum[0] : 0), source);
  return __shfl_sync(kAll, second ? bin - 1 : bin, source);
}

// Counts above bin `bin` of a block's; for whole warps.
__device__ uint32_t sum_above(const uint32_t* counts, int n, int bin) {
  uint32_t sum = 0;
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < n; i += 32) sum += i > bin ? counts[i] : 0;
  return __reduce_add_sync(kAll, sum);
}

template <Selected what>
__global__ void __launch_bounds__(kThreads, 3)
    select_kernel(const __grid_constant__ ScoreRows rows, int k, int32_t* out) {
  __shared__ Shared m;
  const auto cluster = cooperative_groups::this_cluster();
  const auto blocks = static_cast<int>(gridDim.x);
  const auto block = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const Row<what> row(rows, static_cast<int>(blockIdx.y));
  const int slice = (row.count + 8 * blocks - 1) / (8 * blocks) * 8;
  const int begin = block * slice;
  const int end = min(begin + slice, row.count);
  // Keys of the slice, after the first time.
  const auto again = [&](int n) {
    if (n >= end) return Eight();
    if (n - begin >= kCached) return row.load(n);
    const uint4 all = m.cached[(n - begin) / 8];
    Eight eight;
    eight.pair[0] = all.x, eight.pair[1] = all.y, eight.pair[2] = all.z, eight.pair[3] = all.w;
    return eight;
  };

  for (int i = thread; i < kHighBins; i += kThreads) m.high[i] = 0;
  if (thread < kLowBins) m.low[thread] = 0;
  __syncthreads();
#pragma unroll 2
  for (int n = begin + 8 * thread; n < end; n += kStep) {
    const Eight eight = row.load(n);
    if (n - begin < kCached) {
      m.cached[(n - begin) / 8] = {eight.pair[0], eight.pair[1], eight.pair[2], eight.pair[3]};
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t key = eight.key(i);
      if (key != 0) atomicAdd(&m.high[key / kLowBins], 1);
    }
  }
  __syncthreads();
  {
    const auto* bins = reinterpret_cast<const uint4*>(m.high) + 2 * thread;
    uint32_t sum = bins[0].x + bins[0].y + bins[0].z + bins[0].w;
    sum += bins[1].x + bins[1].y + bins[1].z + bins[1].w;
    for (int i = 1; i < 8; i *= 2) sum += __shfl_xor_sync(kAll, sum, i);
    if (thread % 8 == 0) m.group[thread / 8] = sum;
  }
  cluster.sync();

  // Where the k-th largest lies: its group of bins, its bin, its digit.
  const int from = thread / kGroups;
  if (from < blocks) m.groups[thread] = cluster.map_shared_rank(m.group, from)[thread % kGroups];
  __syncthreads();
  auto rest = static_cast<uint32_t>(k);
  const int group = find_bin(m.groups, kGroups, blocks, rest);
  uint32_t cut = 0;  // larger keys are in; those that are not 0, if there are fewer than k
  int bin = -1;
  int digit = -1;
  if (group >= 0) {
    if (from < blocks) {
      m.highs[thread] = cluster.map_shared_rank(m.high, from)[group * kGroups + thread % kGroups];
    }
    __syncthreads();
    bin = find_bin(m.highs, kGroups, blocks, rest);
    const auto high = static_cast<uint32_t>(group * kGroups + bin);
    for (int n = begin + 8 * thread; n < end; n += kStep) {
      const Eight eight = again(n);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t key = eight.key(i);
        if (key / kLowBins == high && key != 0) atomicAdd(&m.low[key % kLowBins], 1);
      }
    }
    cluster.sync();
    if (thread < blocks * kLowBins) {
      m.lows[thread] = cluster.map_shared_rank(m.low, thread / kLowBins)[thread % kLowBins];
    }
    __syncthreads();
    digit = find_bin(m.lows, kLowBins, blocks, rest);
    cut = high * kLowBins + static_cast<uint32_t>(digit);
  }
  const uint32_t ties = group >= 0 ? rest : 0;  // so many that equal `cut` are in too
  if (warp < blocks) {
    uint32_t above = sum_above(m.groups + warp * kGroups, kGroups, group);
    uint32_t equal = 0;
    if (group >= 0) {
      above += sum_above(m.highs + warp * kGroups, kGroups, bin);
      above += sum_above(m.lows + warp * kLowBins, kLowBins, digit);
      equal = m.lows[warp * kLowBins + digit];
    }
    m.above[warp] = above;
    m.equal[warp] = equal;
  }
  __syncthreads();
  // Nothing is read from others any more; what they read from here stays until the end.
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  uint32_t above = 0;
  uint32_t equal = 0;
  for (int b = 0; b < block; ++b) {
    above += m.above[b];
    equal += m.equal[b];
  }

  out += blockIdx.y * int64_t{k};
#pragma unroll 1
  for (int first = begin, step = 0; first < end; first += kStep, ++step) {
    const int n = first + 8 * thread;
    const Eight eight = again(n);
    uint32_t mine = 0;  // above, and equal << 16
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t key = eight.key(i);
      mine += key > cut ? 1u : key == cut ? 1u << 16 : 0;
    }
    uint32_t before = sum_before(mine);
    if (thread % 32 == 31) m.warp[step % 2][warp] = before + mine;
    __syncthreads();
    uint32_t all = 0;
    for (int i = 0; i < kWarps; ++i) {
      const uint32_t sum = m.warp[step % 2][i];
      before += i < warp ? sum : 0;
      all += sum;
    }
    if (mine != 0) {
      uint32_t my_above = above + (before & 0xFFFFu);
      uint32_t my_equal = equal + (before >> 16);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t key = eight.key(i);
        if (key > cut || (key == cut && my_equal < ties)) {
          out[my_above + min(my_equal, ties)] = row.number(n + i);
        }
        my_above += key > cut ? 1 : 0;
        my_equal += key == cut ? 1 : 0;
      }
    }
    above += all & 0xFFFFu;
    equal += all >> 16;
  }
  if (block == blocks - 1) {
    for (int i = static_cast<int>(above + min(equal, ties)) + thread; i < k; i += kThreads) {
      out[i] = -1;
    }
  }
  __syncwarp();
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

int64_t most_numbers(const ScoreRows& rows, Selected what) {
  const int64_t visible = rows.args.most_visible;
  const int64_t blocks = (visible + kPoolBlock - 1) / kPoolBlock;
  if (what == Selected::kEntries) return visible;
  if (what == Selected::kBlocks) return blocks;
  return std::min(blocks, rows.args.pool_topk) * kPoolBlock;
}

}  // namespace

int index_best_blocks(const ScoreRows& rows, Selected what) {
  const int64_t slice = rows.count < 64 ? kStep : 2 * kStep;
  int blocks = 1;
  while (blocks < kMostBlocks && blocks * slice < most_numbers(rows, what)) blocks *= 2;
  return blocks;
}

void index_best(cudaStream_t stream, const ScoreRows& rows, Selected what, int64_t k, int32_t* out,
                int blocks) {
  if (rows.count == 0 || k == 0) return;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rows.count));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  const auto kernel = what == Selected::kEntries  ? select_kernel<Selected::kEntries>
                      : what == Selected::kInPool ? select_kernel<Selected::kInPool>
                                                  : select_kernel<Selected::kBlocks>;
  cudaLaunchKernelEx(&config, kernel, rows, static_cast<int>(k), out);
}

}  // namespace tidemill::cuda
