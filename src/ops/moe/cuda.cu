#include <algorithm>

#include "ops/cuda/early_launch.cuh"
#include "ops/cuda/few_tokens.cuh"
#include "ops/moe/cuda_experts.cuh"

namespace tidemill::cuda {
namespace {

constexpr int kMostTopk = 64;
constexpr int kCombineThreads = 256;
// With more, experts of more than kGroupTokens assignments are so many that reading their weights
// for each group costs more than the kernels for many tokens do.
constexpr int64_t kMostAverageOfFew = 6;
constexpr int64_t kMostTokens = 8192;  // of a pass: bounds the memory of inner activations

// Adds the experts of a token in ascending order of their ids, the shared one last. Grid (tokens,
// parts of the columns).
__global__ void combine_kernel(Moe a, Rows y) {
  allow_next();
  await_previous();
  __shared__ const uint16_t* row[kMostTopk + 1];
  const int64_t t = blockIdx.x;
  const auto topk = static_cast<int>(a.assignments.topk);
  const int32_t* ids = a.assignments.ids + t * topk;
  for (int i = threadIdx.x; i <= topk; i += kCombineThreads) {
    int place = i;
    if (i < topk) {
      place = 0;
      for (int k = 0; k < topk; ++k) place += ids[k] < ids[i] || (ids[k] == ids[i] && k < i);
    }
    row[place] = a.products + (i < topk ? t * topk + i : a.assignments.routed() + t) * a.hidden;
  }
  __syncthreads();
  const int64_t step = int64_t{4} * kCombineThreads * gridDim.y;
  for (int64_t d = 4 * (int64_t{blockIdx.y} * kCombineThreads + threadIdx.x); d < a.hidden;
       d += step) {
    float sum[4] = {};
#pragma unroll 4
    for (int i = 0; i <= topk; ++i) {
      const uint2 four = *reinterpret_cast<const uint2*>(row[i] + d);
      sum[0] = add(sum[0], bf16_to_float(four.x & 0xFFFFu));
      sum[1] = add(sum[1], bf16_to_float(four.x >> 16));
      sum[2] = add(sum[2], bf16_to_float(four.y & 0xFFFFu));
      sum[3] = add(sum[3], bf16_to_float(four.y >> 16));
    }
    *reinterpret_cast<float4*>(y.f32(t) + d) = {round_bf16(sum[0]), round_bf16(sum[1]),
                                                round_bf16(sum[2]), round_bf16(sum[3])};
  }
}

void pass(Launch& l, const ExpertsArgs& e, int64_t first, int64_t tokens) {
  const auto experts = static_cast<int64_t>(e.experts.size());
  // Assignments of an expert on average decide.
  const int64_t average = tokens * e.topk / experts;
  const bool many = average > kMostAverageOfFew;
  const int size = many ? kMostOfItem : kGroupTokens;
  const int64_t items = most_items(tokens, e.topk, experts, size);
  Moe a{.assignments = {.tokens = tokens,
                        .topk = e.topk,
                        .ids = e.ids + first * e.topk,
                        .weights = e.weights + first * e.topk},
        .hidden = e.x.width,
        .inter = e.shared->w1.rows,
        .limit = e.swiglu_limit,
        .x = {e.x.f32(first), tokens, e.x.width, e.x.stride}};
  const int64_t all = a.assignments.all();
  auto* lists = static_cast<Item*>(
      l.lists.take(items * int64_t{sizeof(Item)} + (all + 2) * int64_t{sizeof(int32_t)}, l.stream));
  const int64_t lines = most_lines(tokens, e.topk, items);
  const int64_t inner_rows = many ? lines : all;
  a.inner = static_cast<uint16_t*>(l.hidden.take(inner_rows * a.inter * int64_t{2}, l.stream));
  a.products = static_cast<uint16_t*>(l.products.take(all * a.hidden * int64_t{2}, l.stream));
  if (lists == nullptr || a.inner == nullptr || a.products == nullptr) return;
  a.assignments.items = lists;
  a.assignments.count = reinterpret_cast<int32_t*>(lists + items);
  a.assignments.order = a.assignments.count + 2;
  if (many) {
    experts_many(l, a, e, items, lines);
  } else {
    experts_few(l, a, e, items);
  }
  const unsigned parts = tokens > 64 ? 1 : blocks_for(a.hidden, 4 * kCombineThreads);
  launch_early(combine_kernel, dim3(static_cast<unsigned>(tokens), parts), kCombineThreads, 0,
               l.stream, a, Rows{e.y.f32(first), tokens, a.hidden, e.y.stride});
}

bool fits(const ExpertsArgs& a) {
  if (a.experts.empty() || a.experts.size() > kMostExperts || a.topk == 0 || a.topk > kMostTopk)
    return false;
  const ExpertWeights& one = a.experts.front();
  for (const ExpertWeights* w : {&one, a.shared}) {
    if (!has_fragments(w->w1) || !has_fragments(w->w3) || !has_fragments(w->w2)) return false;
  }
  for (const Matrix* w : {&one.w1, &one.w3, &one.w2}) {
    if (w->format != kRouted) return false;
  }
  for (const Matrix* w : {&a.shared->w1, &a.shared->w3, &a.shared->w2}) {
    if (w->format != kShared) return false;
  }
  const auto aligned = [](const Rows& rows) {
    return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % 4 == 0;
  };
  return aligned(a.x) && aligned(a.y);
}

}  // namespace

void experts(Launch& l, const ExpertsArgs& a) {
  if (l.plain || !fits(a)) {
    plain::experts(l, a);
    return;
  }
  for (int64_t first = 0; first < a.x.count; first += kMostTokens) {
    pass(l, a, first, std::min(kMostTokens, a.x.count - first));
  }
}

}  // namespace tidemill::cuda
