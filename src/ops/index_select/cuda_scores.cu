// Scores on tensor cores. Keys are the rows of the products and heads their columns, which lie in
// shared memory: of one token, or of four at once that see the same cache. The sum over a key's
// heads, in ascending order, is one thread's at a time: the four that hold its columns trade parts,
// or hand the sum on.
//
// Products of 16 and the sum so far are added at once, in the same order for every shape of batch.
#include <algorithm>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_core.cuh"
#include "ops/index_select/cuda_index.h"
#include "ops/index_select/cuda_index_keys.cuh"

namespace tidemill::cuda {
namespace {

constexpr int kHeads = kIndexHeads;
constexpr int kDim = kIndexDim;
constexpr int kTokens = 8;  // of a block of threads
constexpr int kGroup = 4;   // of a product
constexpr int kThreads = 32 * kKeyWarps;

struct alignas(1024) Shared {
  uint8_t columns[2][kTokens * kHeads * 128];  // of 64 elements each, as wgmma reads them
  KeyStage stage;
  uint4 weight[kTokens][4];  // two heads a word
};

// Where a token's heads lie. Thread c of four holds columns 8 j + 2 c and the next of each product.
// A single token's heads lie in order. Of four tokens, columns 32 p .. of thread c are heads 8 p ..
// of token c - p mod 4: the threads add a quarter of the heads of different tokens, hand the sums
// on to the next thread and go on with the next quarter.
struct Place {
  int quarter, thread, word;  // of the pair of heads in `weight`, less the group's rows

  __device__ Place(bool alone, int token, int pair) {
    quarter = alone ? 0 : pair / 4;
    thread = alone ? pair % 4 : (token + quarter) % kGroup;
    word = alone ? pair / 4 : pair % 4;
  }
  __device__ int column() const { return 32 * quarter + 8 * word + 2 * thread; }
};

__device__ void load_queries(const IndexSelectArgs& a, int64_t first, int tokens, Shared& to) {
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (int i = threadIdx.x / 32; i < tokens * kHeads; i += kKeyWarps) {
    const int token = i / kHeads;
    const int head = i % kHeads;
    const float* q = a.q.f32(first + token) + head * kDim + 4 * lane;
    const float4 four = *reinterpret_cast<const float4*>(q);
    const uint32_t pairs[2] = {bf16_pair(four.x, four.y), bf16_pair(four.z, four.w)};
    const int row = token / kGroup * (kGroup * kHeads) +
                    Place(tokens == 1, token, head / 2).column() + head % 2;
    for (int k = 0; k < 4; ++k) {
      const int column = column_of(4 * lane + k);
      const int piece = column % 64 / 8 ^ row % 8;
      *reinterpret_cast<uint16_t*>(
          &to.columns[column / 64][row * 128 + piece * 16 + column % 8 * 2]) =
          static_cast<uint16_t>(pairs[k / 2] >> k % 2 * 16);
    }
  }
  for (int i = threadIdx.x; i < tokens * kHeads / 2; i += kThreads) {
    const int token = i / (kHeads / 2);
    const int pair = i % (kHeads / 2);
    const float* w = a.weight.f32(first + token) + 2 * pair;
    const Place at(tokens == 1, token, pair);
    uint4& four = to.weight[token / kGroup * kGroup + at.quarter][at.thread];
    reinterpret_cast<uint32_t*>(&four)[at.word] = bf16_pair(w[0], w[1]);
  }
}

// d = keys * queries of a group, as many as d has columns for. Runs until finish().
template <int n>
__device__ void start(float (&d)[n], const uint32_t (&a)[kKeySteps][4], const Shared& m,
                      int group) {
  const uint64_t low = swizzled_tile(m.columns[0] + group * kGroup * kHeads * 128);
  const uint64_t high = swizzled_tile(m.columns[1] + group * kGroup * kHeads * 128);
  wgmma_fence();
  wgmma_first(d, a[0], low);
#pragma unroll
  for (int i = 1; i < kKeySteps; ++i) wgmma(d, a[i], (i < 4 ? low : high) + 2 * (i % 4));
  wgmma_commit();
}
template <int kLater, int n>
__device__ void finish(float (&d)[n]) {
  wgmma_wait<kLater>();
#pragma unroll
  for (float& value : d) asm volatile("" : "+f"(value)::"memory");  // nothing is read before
}

// Of two heads: bf16(max(d, 0)) * weight, rounded.
__device__ uint32_t weighted(float low, float high, uint32_t weight) {
  uint32_t pair;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return multiply_pair(pair, weight);
}
__device__ float add_pair(float total, uint32_t pair) {
  total = add(total, __uint_as_float(pair << 16));
  return add(total, __uint_as_float(pair & 0xFFFF0000u));
}

__device__ uint16_t key_of(float total, uint32_t largest_scale) {
  const float score = round_bf16(mul(total, e8m0_to_float(largest_scale)));
  const uint32_t bits = __float_as_uint(score == 0 ? 0.0f : score) >> 16;
  if (bits == 0xFF80u) return 0;
  return static_cast<uint16_t>((bits & 0x8000u) != 0 ? 0xFFFFu - bits : bits | 0x8000u);
}

// part[r][j]: of row l / 4 + 8 r, heads 8 j + 2 c and the next.
__device__ void weigh(const float (&d)[kHeads / 2], const uint4& weight, uint32_t (&part)[2][4]) {
  const uint32_t w[4] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    part[0][j] = weighted(d[4 * j], d[4 * j + 1], w[j]);
    part[1][j] = weighted(d[4 * j + 2], d[4 * j + 3], w[j]);
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

// Four threads have parts of four sums, of two rows of two tiles: thread c adds those of sum c.
__device__ float add_heads(uint32_t (&part)[2][2][4]) {
  float total = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    trade(part[0][0][j], part[0][1][j], 1);
    trade(part[1][0][j], part[1][1][j], 1);
    trade(part[0][0][j], part[1][0][j], 2);
    trade(part[0][1][j], part[1][1][j], 2);
    for (int c = 0; c < 4; ++c) total = add_pair(total, part[c / 2][c % 2][j]);
  }
  return total;
}

// One token: the products of one tile run while the other is widened.
__device__ void score_one(KeyStream& keys, const Shared& m, int end, uint16_t* out) {
  const int lane = threadIdx.x % 32;
  const int c = lane % 4;
  const uint4 weight = m.weight[0][c];
  while (keys.more()) {
    const int mine = keys.first() + 8 * c + lane / 4;
    keys.wait();
    const KeyCodes codes[2] = {keys.read(0), keys.read(1)};
    keys.next();
    uint32_t a[2][kKeySteps][4];
    float d[2][kHeads / 2];
    const uint2 first = widen(codes[0], a[0]);
    start(d[0], a[0], m, 0);
    const uint2 second = widen(codes[1], a[1]);
    start(d[1], a[1], m, 0);
    uint32_t part[2][2][4];
    finish<1>(d[0]);
    weigh(d[0], weight, part[0]);
    finish<0>(d[1]);
    weigh(d[1], weight, part[1]);
    const uint2 scales = c / 2 == 0 ? first : second;
    const uint16_t key = key_of(add_heads(part), c % 2 == 0 ? scales.x : scales.y);
    if (mine < end) out[mine] = key;
  }
}

// Four tokens: each thread begins the sums of one, and ends those of the next.
__device__ void score_group(const uint32_t (&a)[kKeySteps][4], const Shared& m, int group,
                            float (&total)[2]) {
  const int c = threadIdx.x % 4;
  float d[kGroup * kHeads / 2];
  start(d, a, m, group);
  finish<0>(d);
  total[0] = total[1] = 0;
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const uint4 weight = m.weight[group * kGroup + p][c];
    const uint32_t w[4] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (p > 0) total[r] = __shfl_sync(0xFFFFFFFFu, total[r], (c + 3) % 4, 4);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* pair = d + 16 * p + 4 * j + 2 * r;
        total[r] = add_pair(total[r], weighted(pair[0], pair[1], w[j]));
      }
    }
  }
}

// Behind the last token of a group lies nothing, or what was there before: not stored.
__device__ void score_run(KeyStream& keys, const Shared& m, int tokens, int end, uint16_t* out,
                          int64_t stride) {
  const int lane = threadIdx.x % 32;
  const int token = (lane % 4 + 1) % kGroup;
  while (keys.more()) {
    const int first = keys.first() + lane / 4;
    keys.wait();
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      uint32_t a[kKeySteps][4];
      const uint2 scales = widen(keys.read(half), a);
      if (half == 1) keys.next();
      const int mine = first + 16 * half;
#pragma unroll
      for (int group = 0; group < kTokens / kGroup; ++group) {
        if (group * kGroup >= tokens) break;
        float total[2];
        score_group(a, m, group, total);
        const uint16_t key[2] = {key_of(total[0], scales.x), key_of(total[1], scales.y)};
        uint16_t* to = out + (group * kGroup + token) * stride + mine;
        const bool there = group * kGroup + token < tokens;
        if (there && mine < end) to[0] = key[0];
        if (there && mine + 8 < end) to[8] = key[1];
        __syncwarp();
      }
    }
  }
}

// A block of threads has a range of the entries that a token sees, and the tokens behind it that
// see the same cache, up to the next multiple of kTokens.
__global__ void __launch_bounds__(kThreads, 2)
    scores_kernel(const __grid_constant__ ScoreRows s, int64_t range) {
  extern __shared__ uint8_t shared[];
  auto& m = *reinterpret_cast<Shared*>(
      shared + (-static_cast<uint32_t>(__cvta_generic_to_shared(shared)) & 1023u));
  const IndexSelectArgs& a = s.args;
  const int64_t row = blockIdx.y;
  const int64_t t = s.first + row;
  const int32_t sequence = a.sequence[t];
  int tokens = 1;
  auto visible = static_cast<int>(a.visible[t]);
  int count = visible;
  if (s.gathered) {
    count =
        min((visible + kPoolBlock - 1) / kPoolBlock, static_cast<int>(a.pool_topk)) * kPoolBlock;
  } else {
    if (row % kTokens != 0 && a.sequence[t - 1] == sequence) return;  // another block's
    const auto most = static_cast<int>(min(kTokens - row % kTokens, s.count - row));
    while (tokens < most && a.sequence[t + tokens] == sequence) {
      visible = max(visible, static_cast<int>(a.visible[t + tokens]));
      ++tokens;
    }
    count = visible;
  }
  const int64_t begin = blockIdx.x * range;
  if (begin >= count) return;
  const auto end = static_cast<int>(min(begin + range, int64_t{count}));

  const KeyRun run = {.table = a.keys.table + a.keys.table_begin[sequence],
                      .pool = s.gathered ? a.pool_in + t * a.pool_topk : nullptr,
                      .visible = visible,
                      .count = count};
  m.stage.init(run);
  __syncthreads();
  KeyStream keys(m.stage, a.keys, run, static_cast<int>(begin), end);
  load_queries(a, t, tokens, m);
  fence_shared_for_wgmma();
  __syncthreads();

  uint16_t* out = s.data + row * s.stride;
  if (tokens == 1) {
    score_one(keys, m, end, out);
  } else {
    score_run(keys, m, tokens, end, out, s.stride);
  }
}

int64_t most_entries(const ScoreRows& s) {
  const int64_t visible = s.args.most_visible;
  if (!s.gathered) return visible;
  return std::min((visible + kPoolBlock - 1) / kPoolBlock, s.args.pool_topk) * kPoolBlock;
}

}  // namespace

int64_t index_range(const ScoreRows& s) {
  constexpr int64_t kBlocks = 2 * 264;     // two waves of two blocks of threads on 132 processors
  const int64_t runs = (s.count + 3) / 4;  // between those of one token and of eight
  const int64_t range = std::clamp<int64_t>(most_entries(s) * runs / kBlocks, 512, 8192);
  return (range + 255) / 256 * 256;
}

void index_scores(cudaStream_t stream, const ScoreRows& s, int64_t range) {
  const int64_t most = most_entries(s);
  if (most == 0 || s.count == 0) return;
  constexpr int kShared = sizeof(Shared) + 1024;
  static_assert(2 * kShared <= 227 * 1024 - 2 * 1024);
  cudaFuncSetAttribute(scores_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  const dim3 grid(blocks_for(most, range), static_cast<unsigned>(s.count));
  scores_kernel<<<grid, kThreads, kShared, stream>>>(s, range);
}

}  // namespace tidemill::cuda
