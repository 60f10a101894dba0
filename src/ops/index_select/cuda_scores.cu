// Scores on tensor cores. Keys are the rows of the products and heads their columns: a warpgroup
// widens 64 keys to bf16 in registers and multiplies them with the heads of one token, or of two at
// once that see the same cache; those lie in shared memory. The sum over a key's heads, in
// ascending order, is one thread's: the four that hold its columns trade.
//
// Each warp has 16 of the 64 keys, and copies of its next ones always on the way.
//
// Widening is exact: scales are taken relative to the largest of the row, which multiplies the
// score in the end, so that every code has its place in bf16. Products of 16 and the sum so far are
// added at once, in the same order for every shape of batch.
#include <algorithm>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_core.cuh"
#include "ops/index_select/cuda_index.h"

namespace tidemill::cuda {
namespace {

constexpr int kHeads = kIndexHeads;
constexpr int kDim = kIndexDim;
constexpr int kRowBytes = kDim / 2 + kDim / kScaleBlock;
constexpr int kTokens = 8;  // of a block of threads
constexpr int kWarpgroups = 2;
constexpr int kThreads = 128 * kWarpgroups;
constexpr int kTile = 64;  // keys of a product
constexpr int kSteps = kDim / 16;

constexpr int kWarpKeys = 16;
constexpr int kStages = 4;  // copies on the way for each warp

// Tokens that see the same cache, and which of their rows of keys are scored.
struct Run {
  const int32_t* table;  // of the sequence
  const int32_t* pool;   // rows are entries of its blocks; null: of the cache
  int token;             // first, of this block of threads'
  int last;              // behind it
  int visible;
  int count;  // rows there are
  int end;    // of those scored here
};

struct alignas(1024) Shared {
  // Queries as wgmma reads them: 64 columns of all heads, then the others.
  uint8_t columns[2][kTokens * kHeads * 128];
  uint8_t keys[kThreads / 32][kStages][kWarpKeys * kRowBytes];
  uint4 weight[kTokens][4];  // thread c of four: heads 8 j + 2 c and the next in word j
  uint64_t copied[kThreads / 32][kStages];
  Run run[kTokens];
  int runs;
};

// The four threads of a row share it: thread c has its elements 32 c .. (one scale block, 16 bytes
// of codes) of rows l / 4 and l / 4 + 8 of its warp's 16. Word v of the codes becomes the registers
// of steps 2 v and 2 v + 1; its elements p and p + 4 share one. So the products' column that meets
// element 32 c + 8 v + p + 4 e is this.
__device__ int column_of(int k) {
  const int c = k / 32;
  const int v = k % 32 / 8;
  const int p = k % 4;
  const int e = k % 8 / 4;
  return 16 * (2 * v + p / 2) + 8 * (p % 2) + 2 * c + e;
}

__device__ uint32_t bf16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ uint32_t multiply_pair(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

__device__ void load_queries(const IndexSelectArgs& a, int64_t first, int tokens, Shared& to) {
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (int row = threadIdx.x / 32; row < tokens * kHeads; row += kThreads / 32) {
    const float* q = a.q.f32(first + row / kHeads) + row % kHeads * kDim + 4 * lane;
    const float4 four = *reinterpret_cast<const float4*>(q);
    const uint32_t pairs[2] = {bf16_pair(four.x, four.y), bf16_pair(four.z, four.w)};
    for (int i = 0; i < 4; ++i) {
      const int column = column_of(4 * lane + i);
      const int piece = column % 64 / 8 ^ row % 8;
      *reinterpret_cast<uint16_t*>(
          &to.columns[column / 64][row * 128 + piece * 16 + column % 8 * 2]) =
          static_cast<uint16_t>(pairs[i / 2] >> i % 2 * 16);
    }
  }
  for (int i = threadIdx.x; i < tokens * kHeads / 2; i += kThreads) {
    const int token = i / (kHeads / 2);
    const int pair = i % (kHeads / 2);
    const float* w = a.weight.f32(first + token) + 2 * pair;
    reinterpret_cast<uint32_t*>(&to.weight[token][pair % 4])[pair / 4] = bf16_pair(w[0], w[1]);
  }
}

// The next `rows` rows of a run from row i on, somewhere in the cache; behind the end: any.
struct Piece {
  const std::byte* from;
  uint32_t bytes;

  __device__ Piece(const PagedRows& pages, const Run& run, int i, int rows) {
    i = min(i, run.count - 1) & -rows;
    if (run.pool != nullptr) i = max(run.pool[i / kPoolBlock], 0) * kPoolBlock;
    i = min(i, (run.visible - 1) & -rows);
    const auto page_rows = static_cast<uint32_t>(pages.rows_per_block);
    const int shift = 31 - __clz(page_rows);
    from = pages.base + pages.offset + int64_t{run.table[i >> shift]} * pages.block_bytes +
           (i & (page_rows - 1)) * kRowBytes;
    bytes = min(rows, (run.visible - i + 3) / 4 * 4) * kRowBytes;  // 4 rows: a multiple of 16
  }
};

// A thread's part of a warp's 16 keys as they lie in the cache.
struct Codes {
  uint32_t codes[2][4];
  uint32_t scales[2];  // of the whole row
};

// What a warp reads, tile by tile and run by run: every second tile of 64 keys.
class KeyStream {
 public:
  __device__ KeyStream(Shared& shared, const PagedRows& pages, int begin)
      : m_(shared), pages_(pages), begin_(begin + warpgroup() * kTile), at_(begin_) {
    for (int i = 0; i < kStages; ++i) start_next();
  }
  static __device__ int warpgroup() { return threadIdx.x / 128; }
  __device__ int begin() const { return begin_; }

  __device__ Codes read() {
    const int stage = taken_ % kStages;
    copies_wait(&m_.copied[warp()][stage], taken_ / kStages & 1);
    ++taken_;
    const auto* keys = reinterpret_cast<const uint32_t*>(m_.keys[warp()][stage]);
    Codes out;
    for (int r = 0; r < 2; ++r) {
      const uint32_t* row = keys + (threadIdx.x % 32 / 4 + 8 * r) * (kRowBytes / 4);
      for (int v = 0; v < 4; ++v) out.codes[r][v] = row[threadIdx.x % 4 * 4 + v];
      out.scales[r] = row[kDim / 8];
    }
    return out;
  }
  // After the last use of what was read.
  __device__ void release() {
    __syncwarp();
    start_next();
  }

 private:
  static __device__ int warp() { return threadIdx.x / 32; }

  __device__ void start_next() {
    while (run_ < m_.runs && at_ >= m_.run[run_].end) {
      ++run_;
      at_ = begin_;
    }
    if (run_ == m_.runs) return;
    if (threadIdx.x % 32 == 0) {
      const int stage = started_ % kStages;
      const Run& run = m_.run[run_];
      const int first = at_ + warp() % 4 * kWarpKeys;
      uint8_t* to = m_.keys[warp()][stage];
      uint64_t* copied = &m_.copied[warp()][stage];
      if (run.pool == nullptr) {
        const Piece all(pages_, run, first, kWarpKeys);
        copies_expect(copied, all.bytes);
        copy_start(to, all.from, all.bytes, copied);
      } else {
        const Piece low(pages_, run, first, kPoolBlock);
        const Piece high(pages_, run, first + kPoolBlock, kPoolBlock);
        copies_expect(copied, low.bytes + high.bytes);
        copy_start(to, low.from, low.bytes, copied);
        copy_start(to + kPoolBlock * kRowBytes, high.from, high.bytes, copied);
      }
    }
    ++started_;
    at_ += kWarpgroups * kTile;
  }

  Shared& m_;
  const PagedRows& pages_;
  const int begin_;
  int run_ = 0;  // of the next copy
  int at_;
  uint32_t started_ = 0;
  uint32_t taken_ = 0;
};

// E2M1 codes, moved to where bf16 has its lowest exponent bits and its highest bit of the fraction,
// are their values times 2^-126, subnormal ones too. Returns the largest scales of both rows.
__device__ uint2 widen(const Codes& in, uint32_t (&a)[kSteps][4]) {
  constexpr uint32_t kMagnitude = 0x01C001C0u;
  constexpr uint32_t kSign = 0x80008000u;
  uint32_t largest[2];
  for (int r = 0; r < 2; ++r) {
    const uint32_t s = in.scales[r];
    largest[r] = max(max(s & 255u, s >> 8 & 255u), max(s >> 16 & 255u, s >> 24));
    const int below = static_cast<int>(largest[r] - (s >> threadIdx.x % 4 * 8 & 255u));
    const uint32_t factor = static_cast<uint32_t>(max(253 - below, 0)) * 0x00800080u;
    for (int v = 0; v < 4; ++v) {
      const uint32_t w = in.codes[r][v];
      const uint32_t high = w >> 6;
      a[2 * v][r] = multiply_pair(w << 6 & kMagnitude, factor) | (w << 12 & kSign);
      a[2 * v][2 + r] = multiply_pair(w << 2 & kMagnitude, factor) | (w << 8 & kSign);
      a[2 * v + 1][r] = multiply_pair(high << 4 & kMagnitude, factor) | (w << 4 & kSign);
      a[2 * v + 1][2 + r] = multiply_pair(high & kMagnitude, factor) | (w & kSign);
    }
  }
  return {largest[0], largest[1]};
}

// d = keys * queries of the tokens from this one on, as many as d has columns for. Runs until
// finish().
template <int n>
__device__ void start(float (&d)[n], const uint32_t (&a)[kSteps][4], const Shared& q, int token) {
  const uint64_t low = swizzled_tile(q.columns[0] + token * kHeads * 128);
  const uint64_t high = swizzled_tile(q.columns[1] + token * kHeads * 128);
  wgmma_fence();
  wgmma_first(d, a[0], low);
#pragma unroll
  for (int i = 1; i < kSteps; ++i) wgmma(d, a[i], (i < 4 ? low : high) + 2 * (i % 4));
  wgmma_commit();
}
template <int n>
__device__ void finish(float (&d)[n]) {
  wgmma_wait<0>();
  for (float& value : d) asm volatile("" : "+f"(value)::"memory");  // nothing is read before
}

// Of two heads: bf16(max(d, 0)) * weight, rounded.
__device__ uint32_t weighted(float low, float high, uint32_t weight) {
  uint32_t pair;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return multiply_pair(pair, weight);
}
// part[r][j]: of row l / 4 + 8 r, heads 8 j + 2 c and the next.
template <int n>
__device__ void weigh(const float (&d)[n], int token, const uint4& weight, uint32_t (&part0)[4],
                      uint32_t (&part1)[4]) {
  const uint32_t w[4] = {weight.x, weight.y, weight.z, weight.w};
  for (int j = 0; j < 4; ++j) {
    const float* four = d + 16 * token + 4 * j;
    part0[j] = weighted(four[0], four[1], w[j]);
    part1[j] = weighted(four[2], four[3], w[j]);
  }
}

// Trades between threads of which bit `mask` differs: a is then what both had of the one's, b of
// the other's.
__device__ void trade(uint32_t& a, uint32_t& b, int mask) {
  const bool upper = (threadIdx.x & mask) != 0;
  const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, upper ? a : b, mask);
  if (upper) {
    a = got;
  } else {
    b = got;
  }
}

// Four threads have parts of four sums: thread c adds those of sum c, heads ascending.
__device__ float add_heads(uint32_t (&part)[4][4]) {
  float total = 0;
  for (int j = 0; j < 4; ++j) {
    trade(part[0][j], part[1][j], 1);
    trade(part[2][j], part[3][j], 1);
    trade(part[0][j], part[2][j], 2);
    trade(part[1][j], part[3][j], 2);
    for (int c = 0; c < 4; ++c) {
      total = add(total, __uint_as_float(part[c][j] << 16));
      total = add(total, __uint_as_float(part[c][j] & 0xFFFF0000u));
    }
  }
  return total;
}

__device__ uint16_t order_key(float score) {
  const uint32_t bits = __float_as_uint(score == 0 ? 0.0f : score) >> 16;
  if (bits == 0xFF80u) return 0;
  return static_cast<uint16_t>((bits & 0x8000u) != 0 ? 0xFFFFu - bits : bits | 0x8000u);
}
__device__ uint16_t key_of(float total, uint32_t largest_scale) {
  return order_key(round_bf16(mul(total, e8m0_to_float(largest_scale))));
}

// One token, two tiles at once: four sums for four threads.
__device__ void score_one(KeyStream& keys, const Shared& m, const Run& run, uint16_t* out) {
  constexpr int kStep = kWarpgroups * kTile;
  const int c = threadIdx.x % 4;
  const int row = threadIdx.x / 32 % 4 * kWarpKeys + threadIdx.x % 32 / 4 + c % 2 * 8;
  for (int at = keys.begin(); at < run.end; at += 2 * kStep) {
    uint32_t part[4][4] = {};
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (at + i * kStep >= run.end) break;
      uint32_t a[kSteps][4];
      float d[kHeads / 2];
      const uint2 scales = widen(keys.read(), a);
      keys.release();
      if (c / 2 == i) largest = c % 2 == 0 ? scales.x : scales.y;
      start(d, a, m, run.token);
      finish(d);
      weigh(d, 0, m.weight[run.token][c], part[2 * i], part[2 * i + 1]);
    }
    const uint16_t key = key_of(add_heads(part), largest);
    const int mine = at + c / 2 * kStep + row;
    if (mine < run.end) out[mine] = key;
  }
}

// Several of one sequence, two at once: again four sums for four threads.
__device__ void score_run(KeyStream& keys, const Shared& m, const Run& run, uint16_t* out,
                          int64_t stride) {
  const int c = threadIdx.x % 4;
  const int row = threadIdx.x / 32 % 4 * kWarpKeys + threadIdx.x % 32 / 4 + c % 2 * 8;
  for (int at = keys.begin(); at < run.end; at += kWarpgroups * kTile) {
    uint32_t a[kSteps][4];
    const uint2 scales = widen(keys.read(), a);
    keys.release();
    const uint32_t largest = c % 2 == 0 ? scales.x : scales.y;
    for (int token = run.token; token < run.last; token += 2) {
      float d[kHeads];
      uint32_t part[4][4];
      start(d, a, m, token);
      finish(d);
      // Behind the last token of an odd number lie another's heads, or none: not stored.
      weigh(d, 0, m.weight[token][c], part[0], part[1]);
      weigh(d, 1, m.weight[min(token + 1, kTokens - 1)][c], part[2], part[3]);
      const uint16_t key = key_of(add_heads(part), largest);
      const int mine = token + c / 2;
      if (at + row < run.end && mine < run.last) out[mine * stride + at + row] = key;
    }
  }
}

__device__ int entries(const ScoreRows& s, int64_t t) {
  const auto visible = static_cast<int>(s.args.visible[t]);
  if (!s.gathered) return visible;
  return min((visible + kPoolBlock - 1) / kPoolBlock, static_cast<int>(s.args.pool_topk)) *
         kPoolBlock;
}

// Runs of a block of threads' tokens, by its first warp: the lane of a run's first token writes it.
__device__ void find_runs(const ScoreRows& s, int64_t first, int tokens, int64_t range_end,
                          Shared& m) {
  const IndexSelectArgs& a = s.args;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t t = first + min(lane, tokens - 1);
  const int32_t sequence = a.sequence[t];
  const auto visible = static_cast<int>(a.visible[t]);
  const int32_t before = __shfl_up_sync(0xFFFFFFFFu, sequence, 1);
  const bool starts = lane < tokens && (lane == 0 || s.gathered || sequence != before);
  const uint32_t all = __ballot_sync(0xFFFFFFFFu, starts);
  const uint32_t later = all & ~((2u << lane) - 1);
  const int last = later != 0 ? __ffs(static_cast<int>(later)) - 1 : tokens;
  int most = visible;
  for (int i = 1; i < kTokens; ++i) {
    const int other = __shfl_down_sync(0xFFFFFFFFu, visible, i);
    if (lane + i < last) most = max(most, other);
  }
  if (lane == 0) m.runs = __popc(all);
  if (!starts) return;
  const int count = s.gathered ? entries(s, t) : most;
  m.run[__popc(all & ((1u << lane) - 1))] = {
      .table = a.keys.table + a.keys.table_begin[sequence],
      .pool = s.gathered ? a.pool_in + t * a.pool_topk : nullptr,
      .token = lane,
      .last = last,
      .visible = most,
      .count = count,
      .end = static_cast<int>(min(range_end, int64_t{count}))};
}

__global__ void __launch_bounds__(kThreads, 2)
    scores_kernel(const __grid_constant__ ScoreRows s, int64_t range) {
  extern __shared__ uint8_t shared[];
  auto& m = *reinterpret_cast<Shared*>(shared + (-shared_address(shared) & 1023u));
  const int64_t row = int64_t{blockIdx.y} * kTokens;
  const int tokens = static_cast<int>(min(s.count - row, int64_t{kTokens}));
  const int64_t first = s.first + row;
  const int64_t begin = blockIdx.x * range;
  int most = 0;
  for (int i = 0; i < tokens; ++i) most = max(most, entries(s, first + i));
  if (begin >= most) return;

  if (threadIdx.x < 32) find_runs(s, first, tokens, begin + range, m);
  if (threadIdx.x % 32 < kStages) copies_init(&m.copied[threadIdx.x / 32][threadIdx.x % 32]);
  __syncthreads();
  KeyStream keys(m, s.args.keys, static_cast<int>(begin));
  load_queries(s.args, first, tokens, m);
  fence_shared_for_wgmma();
  __syncthreads();

  for (int i = 0; i < m.runs; ++i) {
    const Run& run = m.run[i];
    uint16_t* out = s.data + row * s.stride;
    if (run.last - run.token == 1) {
      score_one(keys, m, run, out + run.token * s.stride);
    } else {
      score_run(keys, m, run, out, s.stride);
    }
  }
}

int64_t most_entries(const ScoreRows& s) {
  const int64_t visible = s.args.most_visible;
  if (!s.gathered) return visible;
  return std::min((visible + kPoolBlock - 1) / kPoolBlock, s.args.pool_topk) * kPoolBlock;
}

}  // namespace

int64_t index_range(const ScoreRows& s) {
  constexpr int64_t kBlocks = 2 * 264;  // two waves of two blocks of threads on 132 processors
  const int64_t tiles = (s.count + kTokens - 1) / kTokens;
  const int64_t range = std::clamp<int64_t>(most_entries(s) * tiles / kBlocks, 512, 8192);
  return (range + 255) / 256 * 256;
}

void index_scores(cudaStream_t stream, const ScoreRows& s, int64_t range) {
  const int64_t most = most_entries(s);
  if (most == 0 || s.count == 0) return;
  constexpr int kShared = sizeof(Shared) + 1024;
  cudaFuncSetAttribute(scores_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  const dim3 grid(blocks_for(most, range), blocks_for(s.count, kTokens));
  scores_kernel<<<grid, kThreads, kShared, stream>>>(s, range);
}

}  // namespace tidemill::cuda
