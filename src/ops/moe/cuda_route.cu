#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/early_launch.cuh"
#include "ops/cuda/launch.h"

namespace tidemill::cuda {
namespace {

__device__ float sqrt_softplus(float logit) {
  return __fsqrt_rn(logit > 20.0f ? logit : log1pf(expf(logit)));
}

// Ordered as the numbers are. No number is 0, which stands for nothing.
__device__ uint32_t ordered(float value) {
  const uint32_t bits = __float_as_uint(value);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// A block a token and a thread an expert. Then the first warp chooses: lane l has the experts l,
// l + 32, ...
template <int kOfLane>
__global__ void __launch_bounds__(32 * kOfLane)
    route_kernel(RouteArgs a, const float* logits, int experts) {
  __shared__ float scores[32 * kOfLane];
  __shared__ uint32_t ranks[32 * kOfLane];  // of biased scores, 0 for none
  allow_next();
  await_previous();
  const int64_t t = blockIdx.x;
  const auto expert = static_cast<int>(threadIdx.x);
  const bool image = a.image != nullptr && a.image[t] != 0 && a.bias_vl.data != nullptr;
  const float* const bias = image ? a.bias_vl.data : a.bias.data;
  const float own_score = expert < experts ? sqrt_softplus(logits[t * experts + expert]) : 0.0f;
  scores[expert] = own_score;
  ranks[expert] = expert < experts ? ordered(add(own_score, bias[expert])) : 0u;
  __syncthreads();
  if (expert >= 32) return;
  const int lane = expert;
  float score[kOfLane];
  uint32_t rank[kOfLane];  // 0 once it is chosen
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    score[i] = scores[lane + 32 * i];
    rank[i] = ranks[lane + 32 * i];
  }
  float total = 0;
#pragma unroll 1
  for (int64_t n = 0; n < a.topk; ++n) {
    uint32_t best = 0;
    int id = experts;
    float own = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (rank[i] > best) {
        best = rank[i];
        id = lane + 32 * i;
        own = score[i];
      }
    }
    const uint32_t best_of_all = __reduce_max_sync(0xFFFFFFFFu, best);
    const auto lowest =
        __reduce_min_sync(0xFFFFFFFFu, static_cast<unsigned>(best == best_of_all ? id : experts));
    const int chosen = min(static_cast<int>(lowest), experts - 1);
    const float value = __shfl_sync(0xFFFFFFFFu, own, chosen % 32);
    total = add(total, value);
    if (lane == n % 32) {  // comes back to them below
      a.ids[t * a.topk + n] = chosen;
      a.weights[t * a.topk + n] = value;
    }
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (chosen == lane + 32 * i) rank[i] = 0;
    }
  }
  for (int64_t n = lane; n < a.topk; n += 32) {
    float& weight = a.weights[t * a.topk + n];
    weight = mul(__fdiv_rn(weight, add(total, 1e-20f)), a.scale);
  }
}

template <int kOfLane>
void choose(Launch& l, const RouteArgs& a, const float* logits, int64_t experts) {
  launch_early(route_kernel<kOfLane>, static_cast<unsigned>(a.x.count), 32 * kOfLane, 0, l.stream,
               a, logits, static_cast<int>(experts));
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
  if (experts <= 128) {
    choose<4>(l, a, logits, experts);
  } else if (experts <= 384) {
    choose<12>(l, a, logits, experts);
  } else {
    choose<kMostExperts / 32>(l, a, logits, experts);
  }
}

}  // namespace tidemill::cuda
