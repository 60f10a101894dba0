// Exact selection from rows of 16-bit keys. A block of threads holds a slice of a row in registers,
// finds the k-th largest key by two histograms, of the upper 12 bits and the lower 4, and keeps
// what is above it and the first of those that equal it. Of several slices, each one's k best go
// through the same again, in the same order, so ties still go to the lower number.
#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/index_select/cuda_index.h"

namespace tidemill::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kLoads = 4;  // of a thread, 8 keys each
constexpr int kSlice = kThreads * kLoads * 8;
constexpr int kHighBins = 4096;
constexpr int kLowBins = 16;
constexpr uint32_t kAll = 0xFFFFFFFFu;

struct Task {
  ScoreRows rows;
  Selected what;
  int k;
  // Of what was selected from slices before; null: selects from the rows themselves.
  const uint16_t* keys;
  const int32_t* numbers;
  int64_t stride;
  int count;
  int32_t* out;        // k numbers for each slice
  uint16_t* out_keys;  // null: the last selection, padded with -1
  int64_t out_stride;
};

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
struct Row {
  const Task& task;
  const uint16_t* keys;
  const int32_t* numbers;  // of the pool's blocks, or of what was selected before
  int visible;
  int count;  // of keys to select from

  __device__ Row(const Task& all, int row) : task(all) {
    const ScoreRows& rows = task.rows;
    const int64_t t = rows.first + row;
    visible = static_cast<int>(rows.args.visible[t]);
    keys = rows.data + row * rows.stride;
    numbers = nullptr;
    count = visible;
    if (task.keys != nullptr) {
      keys = task.keys + row * task.stride;
      numbers = task.numbers + row * task.stride;
      count = task.count;
    } else if (task.what == Selected::kInPool) {
      numbers = rows.args.pool_in + t * rows.args.pool_topk;
      count = min(blocks_of(visible), static_cast<int>(rows.args.pool_topk)) * kPoolBlock;
    } else if (task.what == Selected::kBlocks) {
      count = blocks_of(visible);
    }
  }

  // Keys n .. n + 7.
  __device__ Eight load(int n) const {
    if (n >= count) return {};
    if (task.keys != nullptr || task.what == Selected::kEntries) return {keys + n, count - n};
    if (task.what == Selected::kInPool) {
      const int block = numbers[n / kPoolBlock];
      if (block < 0) return {};
      const int64_t at = int64_t{block} * kPoolBlock;
      return {keys + (task.rows.gathered ? n : at),
              static_cast<int>(max(visible - at, int64_t{0}))};
    }
    Eight best;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (n + i >= count) continue;
      const int64_t at = int64_t{n + i} * kPoolBlock;
      const uint32_t key = n + i == count - 1 ? 0xFFFFu  // the newest block
                                              : Eight(keys + at, kPoolBlock).largest();
      best.pair[i / 2] |= key << i % 2 * 16;
    }
    return best;
  }
  __device__ int number(int n) const {
    if (task.keys != nullptr) return numbers[n];
    if (task.what == Selected::kInPool)
      return numbers[n / kPoolBlock] * kPoolBlock + n % kPoolBlock;
    return n;
  }
};

struct Shared {
  uint32_t high[kHighBins];
  uint32_t low[kLowBins];
  uint32_t warp[kWarps];
  uint32_t taken[kLoads * kWarps];  // above the threshold, and equal to it << 16
  uint32_t taken_of_all;
  int bin;   // of high, in which the k-th largest lies; -1: there are fewer
  int rest;  // its place there
};

// Counts one of each thread; -1: none. Equal ones together: scores of 0 are common.
__device__ void count(uint32_t* bins, int bin) {
  if (__all_sync(kAll, bin == __shfl_sync(kAll, bin, 0))) {
    if (threadIdx.x % 32 == 0 && bin >= 0) atomicAdd(&bins[bin], 32);
  } else if (bin >= 0) {
    atomicAdd(&bins[bin], 1);
  }
}

__device__ uint32_t sum_before(uint32_t value) {  // of the lanes below
  uint32_t sum = value;
  for (int i = 1; i < 32; i *= 2) {
    const uint32_t lower = __shfl_up_sync(kAll, sum, i);
    if (threadIdx.x % 32 >= i) sum += lower;
  }
  return sum - value;
}

struct Cut {
  uint32_t key;  // larger ones are in,
  int ties;      // and so many that equal it
};

// The k-th largest, if there are more than k.
__device__ Cut find_cut(const Eight (&keys)[kLoads], int k, Shared& m) {
#pragma unroll
  for (const Eight& eight : keys) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto key = static_cast<int>(eight.key(i));
      count(m.high, key == 0 ? -1 : key / kLowBins);
    }
  }
  __syncthreads();

  // From the largest bin down: each thread has eight.
  const int top = kHighBins - 1 - 8 * static_cast<int>(threadIdx.x);
  uint32_t sum = 0;
  for (int i = 0; i < 8; ++i) sum += m.high[top - i];
  uint32_t before = sum_before(sum);
  if (threadIdx.x % 32 == 31) m.warp[threadIdx.x / 32] = before + sum;
  __syncthreads();
  for (int i = 0; i < static_cast<int>(threadIdx.x) / 32; ++i) before += m.warp[i];
  if (before < static_cast<uint32_t>(k) && before + sum >= static_cast<uint32_t>(k)) {
    int bin = top;
    uint32_t rest = k - before;
    while (m.high[bin] < rest) rest -= m.high[bin--];
    m.bin = bin;
    m.rest = static_cast<int>(rest);
  }
  __syncthreads();
  if (m.bin < 0) return {1, k};

#pragma unroll
  for (const Eight& eight : keys) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto key = static_cast<int>(eight.key(i));
      count(m.low, key != 0 && key / kLowBins == m.bin ? key % kLowBins : -1);
    }
  }
  __syncthreads();
  int digit = kLowBins - 1;
  uint32_t rest = m.rest;
  while (digit > 0 && m.low[digit] < rest) rest -= m.low[digit--];
  return {static_cast<uint32_t>(m.bin * kLowBins + digit), static_cast<int>(rest)};
}

__global__ void __launch_bounds__(kThreads, 2) select_kernel(const __grid_constant__ Task task) {
  __shared__ Shared m;
  const Row row(task, static_cast<int>(blockIdx.y));
  const int first = static_cast<int>(blockIdx.x) * kSlice;
  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;

  const auto number_of = [&](int i) {
    return first + (i * kThreads + static_cast<int>(threadIdx.x)) * 8;
  };
  Eight keys[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) keys[i] = row.load(number_of(i));
  for (int i = threadIdx.x; i < kHighBins; i += kThreads) m.high[i] = 0;
  if (threadIdx.x < kLowBins) m.low[threadIdx.x] = 0;
  if (threadIdx.x == 0) m.bin = -1;
  __syncthreads();
  const int k = task.k;
  const Cut cut = row.count - first > k ? find_cut(keys, k, m) : Cut{1, k};

  // Where what this thread takes of each load goes: in the order of the numbers.
  uint32_t taken[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    uint32_t mine = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t key = keys[i].key(j);
      mine += key > cut.key ? 1 : key == cut.key ? 1 << 16 : 0;
    }
    taken[i] = sum_before(mine);
    if (lane == 31) m.taken[i * kWarps + warp] = taken[i] + mine;
  }
  __syncthreads();
  if (warp == 0) {
    static_assert(kLoads * kWarps == 64);
    const uint32_t low = m.taken[2 * lane];
    const uint32_t high = m.taken[2 * lane + 1];
    const uint32_t before = sum_before(low + high);
    m.taken[2 * lane] = before;
    m.taken[2 * lane + 1] = before + low;
    if (lane == 31) m.taken_of_all = before + low + high;
  }
  __syncthreads();

  int32_t* out = task.out + blockIdx.y * task.out_stride + int64_t{blockIdx.x} * k;
  uint16_t* out_keys = task.out_keys;
  if (out_keys != nullptr) out_keys += blockIdx.y * task.out_stride + int64_t{blockIdx.x} * k;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const uint32_t before = m.taken[i * kWarps + warp] + taken[i];
    int above = static_cast<int>(before & 0xFFFFu);
    int equal = static_cast<int>(before >> 16);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t key = keys[i].key(j);
      if (key < cut.key) continue;
      const int place = above + min(equal, cut.ties);
      const bool in = key > cut.key || equal < cut.ties;
      ++(key > cut.key ? above : equal);
      if (!in || place >= k) continue;
      out[place] = row.number(number_of(i) + j);
      if (out_keys != nullptr) out_keys[place] = static_cast<uint16_t>(key);
    }
  }
  const int total = static_cast<int>(m.taken_of_all & 0xFFFFu) +
                    min(static_cast<int>(m.taken_of_all >> 16), cut.ties);
  for (int i = total + static_cast<int>(threadIdx.x); i < k; i += kThreads) {
    out[i] = -1;
    if (out_keys != nullptr) out_keys[i] = 0;
  }
}

int64_t most_numbers(const ScoreRows& rows, Selected what) {
  const int64_t visible = rows.args.most_visible;
  const int64_t blocks = (visible + kPoolBlock - 1) / kPoolBlock;
  if (what == Selected::kEntries) return visible;
  if (what == Selected::kBlocks) return blocks;
  return std::min(blocks, rows.args.pool_topk) * kPoolBlock;
}
int64_t slices_of(int64_t numbers) { return std::max<int64_t>((numbers + kSlice - 1) / kSlice, 1); }

// Of what is selected from the slices of one row.
int64_t stride_of(int64_t slices, int64_t k) { return (slices * k + 7) / 8 * 8; }

}  // namespace

int64_t index_best_scratch(const ScoreRows& rows, Selected what, int64_t k) {
  const int64_t slices = slices_of(most_numbers(rows, what));
  if (slices == 1) return 0;
  constexpr int64_t kBoth = sizeof(int32_t) + sizeof(uint16_t);
  return 2 * rows.count * stride_of(slices, k) * kBoth;  // one to read from, one to write to
}

void index_best(cudaStream_t stream, const ScoreRows& rows, Selected what, int64_t k, int32_t* out,
                void* scratch) {
  if (rows.count == 0 || k == 0) return;
  int64_t slices = slices_of(most_numbers(rows, what));
  const int64_t most = rows.count * stride_of(slices, k);
  auto* numbers = static_cast<int32_t*>(scratch);
  auto* keys = reinterpret_cast<uint16_t*>(numbers + 2 * most);
  Task task = {.rows = rows, .what = what, .k = static_cast<int>(k)};
  for (int64_t half = 0;; half = most - half) {
    const bool last = slices == 1;
    task.out = last ? out : numbers + half;
    task.out_keys = last ? nullptr : keys + half;
    task.out_stride = last ? k : stride_of(slices, k);
    const dim3 grid(static_cast<unsigned>(slices), static_cast<unsigned>(rows.count));
    select_kernel<<<grid, kThreads, 0, stream>>>(task);
    if (last) return;
    task.keys = task.out_keys;
    task.numbers = task.out;
    task.stride = task.out_stride;
    task.count = static_cast<int>(slices * k);
    slices = slices_of(slices * k);
  }
}

}  // namespace tidemill::cuda
