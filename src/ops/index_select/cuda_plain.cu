#include <algorithm>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"

namespace tidemill::cuda::plain {
namespace {

constexpr int kThreads = 256;
constexpr float kMinusInfinity = -__builtin_huge_valf();

// Scores of tokens first .., one row of `stride` each; -inf behind the visible ones.
__global__ void scores_kernel(IndexSelectArgs a, int64_t first, float* scores, int64_t stride) {
  const int64_t t = first + blockIdx.y;
  const int64_t j = int64_t{blockIdx.x} * (kThreads / kLanes) + lane_group();
  if (j >= stride) return;
  float* score = scores + blockIdx.y * stride + j;
  if (j >= a.visible[t]) {
    if (lane() == 0) *score = kMinusInfinity;
    return;
  }
  const int64_t dim = a.keys.format.width;
  const std::byte* key = a.keys.row(a.sequence[t], j);
  float total = 0;
  for (int64_t h = 0; h < a.heads; ++h) {
    const float* q = a.q.f32(t) + h * dim;
    const float d = round_bf16(dot(
        dim, [&](int64_t k) { return q[k]; },
        [&](int64_t k) { return row_value(a.keys.format, key, k); }));
    total = add(total, round_bf16(mul(larger(d, 0.0f), a.weight.f32(t)[h])));
  }
  if (lane() == 0) *score = round_bf16(total);
}

// Best score of each block of entries; the newest block is always in.
__global__ void block_best_kernel(IndexSelectArgs a, int64_t first, const float* scores,
                                  int64_t stride, float* best, int64_t best_stride) {
  const int64_t t = first + blockIdx.y;
  const int64_t b = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (b >= best_stride) return;
  const int64_t visible = a.visible[t];
  const int64_t begin = b * a.pool_block;
  const int64_t end = min(begin + a.pool_block, visible);
  float value = kMinusInfinity;
  for (int64_t j = begin; j < end; ++j) value = fmaxf(value, scores[blockIdx.y * stride + j]);
  if (begin < visible && end == visible) value = -kMinusInfinity;
  best[blockIdx.y * best_stride + b] = value;
}

// Marks what lies in no block of the pool with -inf: the ascending list is searched.
__global__ void keep_pool_kernel(IndexSelectArgs a, int64_t first, float* scores, int64_t stride) {
  const int64_t t = first + blockIdx.y;
  const int64_t j = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (j >= a.visible[t]) return;
  const int32_t* pool = a.pool_in + t * a.pool_topk;
  const auto block = static_cast<int32_t>(j / a.pool_block);
  int64_t low = 0;
  int64_t high = a.pool_topk;  // entries of -1 are at the end: larger than all
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (pool[middle] >= 0 && pool[middle] < block) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == a.pool_topk || pool[low] != block) {
    scores[blockIdx.y * stride + j] = kMinusInfinity;
  }
}

// Order of bf16 values as 16 bits; the two zeros are equal, -inf is 0.
__device__ uint32_t sort_key(float score) {
  if (score == kMinusInfinity) return 0;
  const uint32_t bits = __float_as_uint(score == 0 ? 0.0f : score) >> 16;
  return (bits & 0x8000u) != 0 ? 0xFFFFu - bits : bits | 0x8000u;
}

// Counts the keys whose bits above `shift + 8` equal `prefix`, by the eight bits below these, and
// returns the digit in which the k-th largest of them lies; k becomes its place inside.
__device__ uint32_t find_digit(const float* scores, int64_t n, uint32_t prefix, int shift,
                               int64_t& k, int* counts) {
  for (int i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
    const uint32_t key = sort_key(scores[j]);
    if (key != 0 && (key >> shift >> 8) == prefix) atomicAdd(&counts[key >> shift & 255u], 1);
  }
  __syncthreads();
  uint32_t digit = 255;
  while (digit > 0 && counts[digit] < k) k -= counts[digit--];
  __syncthreads();
  return digit;
}

// The k best scores of a token that are not -inf, as ascending indices; ties: lower index first.
__global__ void select_kernel(const float* scores, int64_t stride, int64_t k, int32_t* out) {
  __shared__ int counts[256];
  __shared__ int warp_taken[kThreads / 32], warp_tied[kThreads / 32];
  scores += blockIdx.x * stride;
  out += blockIdx.x * k;

  // Those above `threshold` are in, and the first `ties` of those that equal it.
  int64_t ties = k;
  const uint32_t high = find_digit(scores, stride, 0, 8, ties, counts);
  const uint32_t low = find_digit(scores, stride, high, 0, ties, counts);
  const uint32_t threshold = max(high << 8 | low, 1u);

  const int warp = threadIdx.x / 32;
  const uint32_t before = (1u << threadIdx.x % 32) - 1;
  int64_t written = 0;
  int64_t tied = 0;
  for (int64_t begin = 0; begin < stride && written < k; begin += kThreads) {
    const int64_t j = begin + threadIdx.x;
    const uint32_t key = j < stride ? sort_key(scores[j]) : 0;
    const uint32_t equal = __ballot_sync(0xFFFFFFFFu, key == threshold);
    if (threadIdx.x % 32 == 0) warp_tied[warp] = __popc(equal);
    __syncthreads();
    int64_t tie = tied + __popc(equal & before);
    for (int i = 0; i < warp; ++i) tie += warp_tied[i];
    const bool in = key > threshold || (key == threshold && tie < ties);
    const uint32_t taken = __ballot_sync(0xFFFFFFFFu, in);
    if (threadIdx.x % 32 == 0) warp_taken[warp] = __popc(taken);
    __syncthreads();
    int64_t place = written + __popc(taken & before);
    for (int i = 0; i < warp; ++i) place += warp_taken[i];
    if (in && place < k) out[place] = static_cast<int32_t>(j);
    for (int i = 0; i < kThreads / 32; ++i) {
      written += warp_taken[i];
      tied += warp_tied[i];
    }
    __syncthreads();
  }
  for (int64_t i = written + threadIdx.x; i < k; i += blockDim.x) out[i] = -1;
}

}  // namespace

void index_select(Launch& l, const IndexSelectArgs& a) {
  if (a.q.count == 0) return;
  const int64_t stride = std::max<int64_t>(a.most_visible, 1);
  const int64_t blocks = a.pool_block > 0 ? (stride + a.pool_block - 1) / a.pool_block : 0;
  constexpr int64_t kScores = 64 << 20;  // of a pass
  const int64_t tokens =
      std::clamp<int64_t>(kScores / stride, 1, std::min<int64_t>(a.q.count, 65535));
  auto* scores = static_cast<float*>(
      l.products.take(tokens * (stride + blocks) * int64_t{sizeof(float)}, l.stream));
  if (scores == nullptr) return;
  float* best = scores + tokens * stride;
  for (int64_t first = 0; first < a.q.count; first += tokens) {
    const auto n = static_cast<unsigned>(std::min(tokens, a.q.count - first));
    scores_kernel<<<dim3(blocks_for(stride, kThreads / kLanes), n), kThreads, 0, l.stream>>>(
        a, first, scores, stride);
    if (a.pool_out != nullptr) {
      block_best_kernel<<<dim3(blocks_for(blocks, kThreads), n), kThreads, 0, l.stream>>>(
          a, first, scores, stride, best, blocks);
      select_kernel<<<n, kThreads, 0, l.stream>>>(best, blocks, a.pool_topk,
                                                  a.pool_out + first * a.pool_topk);
    }
    if (a.pool_in != nullptr) {
      keep_pool_kernel<<<dim3(blocks_for(stride, kThreads), n), kThreads, 0, l.stream>>>(
          a, first, scores, stride);
    }
    select_kernel<<<n, kThreads, 0, l.stream>>>(scores, stride, a.topk,
                                                a.selected + first * a.topk);
  }
}

}  // namespace tidemill::cuda::plain
