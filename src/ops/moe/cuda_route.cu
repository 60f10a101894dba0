#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"

namespace tidemill::cuda {
namespace {

constexpr int kThreads = 128;

__device__ float sqrt_softplus(float logit) {
  return __fsqrt_rn(logit > 20.0f ? logit : log1pf(expf(logit)));
}

// One block a token: scores by all threads, then the best one by one, each by the first warp.
__global__ void route_kernel(RouteArgs a, const float* logits, int experts) {
  __shared__ float score[kMostExperts], biased[kMostExperts];
  const int64_t t = blockIdx.x;
  const bool image = a.image != nullptr && a.image[t] != 0 && a.bias_vl.data != nullptr;
  const float* bias = image ? a.bias_vl.data : a.bias.data;
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    score[e] = sqrt_softplus(logits[t * experts + e]);
    biased[e] = add(score[e], bias[e]);
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  int32_t* ids = a.ids + t * a.topk;
  float total = 0;
  for (int64_t i = 0; i < a.topk; ++i) {
    float best = -__builtin_huge_valf();
    int id = experts;
    for (int e = threadIdx.x; e < experts; e += 32) {
      if (biased[e] > best || (biased[e] == best && e < id)) {
        best = biased[e];
        id = e;
      }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, best, offset);
      const int other_id = __shfl_xor_sync(0xFFFFFFFFu, id, offset);
      if (other > best || (other == best && other_id < id)) {
        best = other;
        id = other_id;
      }
    }
    __syncwarp();               // all have read the scores that lane 0 changes now
    id = min(id, experts - 1);  // scores that are not numbers: any expert
    total = add(total, score[id]);
    if (threadIdx.x == 0) {
      ids[i] = id;
      biased[id] = -__builtin_huge_valf();
    }
    __syncwarp();
  }
  for (int64_t i = threadIdx.x; i < a.topk; i += 32) {
    a.weights[t * a.topk + i] = mul(__fdiv_rn(score[ids[i]], add(total, 1e-20f)), a.scale);
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
  route_kernel<<<blocks_for(a.x.count, 1), kThreads, 0, l.stream>>>(a, logits,
                                                                    static_cast<int>(experts));
}

}  // namespace tidemill::cuda
