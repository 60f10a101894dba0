#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/early_launch.cuh"
#include "ops/cuda/launch.h"

namespace tidemill::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTokens = kThreads / 32;  // of a block

__device__ float sqrt_softplus(float logit) {
  return __fsqrt_rn(logit > 20.0f ? logit : log1pf(expf(logit)));
}

// Ordered as the numbers are. No number is 0, which stands for nothing.
__device__ uint32_t ordered(float value) {
  const uint32_t bits = __float_as_uint(value);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// One warp a token: lane l has the experts l, l + 32, ...
template <int kOfLane>
__global__ void __launch_bounds__(kThreads)
    route_kernel(RouteArgs a, const float* logits, int experts) {
  allow_next();
  await_previous();
  const int64_t t = int64_t{blockIdx.x} * kTokens + threadIdx.x / 32;
  if (t >= a.x.count) return;
  const int first = static_cast<int>(threadIdx.x) % 32;
  const bool image = a.image != nullptr && a.image[t] != 0 && a.bias_vl.data != nullptr;
  const float* const bias = image ? a.bias_vl.data : a.bias.data;
  float score[kOfLane];
  uint32_t rank[kOfLane];  // of the biased score, 0 once it is chosen
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int e = first + 32 * i;
    score[i] = e < experts ? sqrt_softplus(logits[t * experts + e]) : 0.0f;
    rank[i] = e < experts ? ordered(add(score[i], bias[e])) : 0u;
  }
  float total = 0;
  for (int64_t n = 0; n < a.topk; ++n) {
    uint32_t best = 0;
    int id = experts;
    float own = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (rank[i] > best) {
        best = rank[i];
        id = first + 32 * i;
        own = score[i];
      }
    }
    const uint32_t best_of_all = __reduce_max_sync(0xFFFFFFFFu, best);
    const auto lowest =
        __reduce_min_sync(0xFFFFFFFFu, static_cast<unsigned>(best == best_of_all ? id : experts));
    const int chosen = min(static_cast<int>(lowest), experts - 1);
    const float value = __shfl_sync(0xFFFFFFFFu, own, chosen % 32);
    total = add(total, value);
    if (first == n % 32) {  // comes back to them below
      a.ids[t * a.topk + n] = chosen;
      a.weights[t * a.topk + n] = value;
    }
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (chosen == first + 32 * i) rank[i] = 0;
    }
  }
  for (int64_t n = first; n < a.topk; n += 32) {
    float& weight = a.weights[t * a.topk + n];
    weight = mul(__fdiv_rn(weight, add(total, 1e-20f)), a.scale);
  }
}

}  // namespace

void route(Launch& l, const RouteArgs& a) {
  if (a.x.count == 0) return;
  const int64_t experts = a.gate->rows;
  auto* logits =
      static_cast<float*>(l.products.take(a.x.count * experts * int64_t{sizeof(float)}, l.stream));
  if (logits == nullptr) return;
  linear(l,
         {.w = a.gate, .x = a.x, .y = {logits, a.x.count, experts, experts}, .f32_output = true});
  const auto kernel = experts <= 128   ? route_kernel<4>
                      : experts <= 384 ? route_kernel<12>
                                       : route_kernel<kMostExperts / 32>;
  launch_early(kernel, blocks_for(a.x.count, kTokens), kThreads, 0, l.stream, a, logits,
               static_cast<int>(experts));
}

}  // namespace tidemill::cuda
