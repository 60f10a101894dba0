#include <algorithm>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"

namespace tidemill::cuda::plain {
namespace {

constexpr int kThreads = 128;
constexpr int kGroups = kThreads / kLanes;

struct Experts {
  const ExpertWeights* routed;
  ExpertWeights shared;
  const int32_t* ids;
  const float* weights;
  int64_t topk;
  float limit;

  // Assignment i: token i / (topk + 1); the last one of a token is the shared expert's.
  __device__ const ExpertWeights& of(int64_t i) const {
    const int64_t slot = i % (topk + 1);
    return slot == topk ? shared : routed[ids[i / (topk + 1) * topk + slot]];
  }
  __device__ float weight(int64_t i) const {
    const int64_t slot = i % (topk + 1);
    return slot == topk ? 1.0f : weights[i / (topk + 1) * topk + slot];
  }
};

// A channel of an assignment, by half a warp: both products and SwiGLU.
__global__ void gate_up_kernel(Experts a, const float* x, int64_t width, int64_t inter,
                               float* out) {
  const int64_t channel = int64_t{blockIdx.x} * kGroups + lane_group();
  const int64_t i = blockIdx.y;
  if (channel >= inter) return;
  const ExpertWeights& w = a.of(i);
  const float* token = x + i / (a.topk + 1) * width;
  float g = round_bf16(product(w.w1, channel, token));
  float u = round_bf16(product(w.w3, channel, token));
  g = smaller(g, a.limit);
  u = clamped(u, a.limit);
  const float silu = mul(g, canonical_sigmoid(g));
  if (lane() == 0) out[i * inter + channel] = round_bf16(mul(a.weight(i), mul(silu, u)));
}

__global__ void down_kernel(Experts a, const float* hidden, int64_t inter, int64_t width,
                            float* out) {
  const int64_t row = int64_t{blockIdx.x} * kGroups + lane_group();
  const int64_t i = blockIdx.y;
  if (row >= width) return;
  const float y = round_bf16(product(a.of(i).w2, row, hidden + i * inter));
  if (lane() == 0) out[i * width + row] = y;
}

// Adds the experts of a token in ascending order of their ids, the shared one last.
__global__ void combine_kernel(Experts a, const float* products, Rows y) {
  const int64_t t = blockIdx.y;
  const int64_t d = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (d >= y.width) return;
  const int32_t* ids = a.ids + t * a.topk;
  const float* from = products + t * (a.topk + 1) * y.width + d;
  float total = 0;
  int32_t last = -1;
  for (int64_t n = 0; n < a.topk; ++n) {
    int64_t next = -1;
    for (int64_t i = 0; i < a.topk; ++i) {
      if (ids[i] > last && (next < 0 || ids[i] < ids[next])) next = i;
    }
    if (next < 0) break;
    last = ids[next];
    total = add(total, from[next * y.width]);
  }
  y.f32(t)[d] = round_bf16(add(total, from[a.topk * y.width]));
}

}  // namespace

void experts(Launch& l, const ExpertsArgs& a) {
  if (a.x.count == 0) return;
  const int64_t inter = a.shared->w1.rows;
  const int64_t width = a.y.width;
  const int64_t slots = a.topk + 1;
  const int64_t pass = 65535 / slots;  // tokens: so many rows has a grid
  const int64_t most = std::min(pass, a.x.count) * slots;
  auto* hidden =
      static_cast<float*>(l.hidden.take(most * inter * int64_t{sizeof(float)}, l.stream));
  auto* products =
      static_cast<float*>(l.products.take(most * width * int64_t{sizeof(float)}, l.stream));
  if (hidden == nullptr || products == nullptr) return;
  for (int64_t first = 0; first < a.x.count; first += pass) {
    const int64_t tokens = std::min(pass, a.x.count - first);
    const Experts experts{.routed = a.table,
                          .shared = *a.shared,
                          .ids = a.ids + first * a.topk,
                          .weights = a.weights + first * a.topk,
                          .topk = a.topk,
                          .limit = a.swiglu_limit};
    const Rows part{a.x.f32(first), tokens, a.x.width, a.x.stride};
    const float* x = prepared(l, part, true);
    if (x == nullptr) return;
    const auto n = static_cast<unsigned>(tokens * slots);
    gate_up_kernel<<<dim3(blocks_for(inter, kGroups), n), kThreads, 0, l.stream>>>(
        experts, x, a.x.width, inter, hidden);
    const float* inner = prepared(l, {hidden, tokens * slots, inter, inter}, true);
    if (inner == nullptr) return;
    down_kernel<<<dim3(blocks_for(width, kGroups), n), kThreads, 0, l.stream>>>(
        experts, inner, inter, width, products);
    combine_kernel<<<dim3(blocks_for(width, kThreads), static_cast<unsigned>(tokens)), kThreads, 0,
                     l.stream>>>(experts, products,
                                 Rows{a.y.f32(first), tokens, width, a.y.stride});
  }
}

}  // namespace tidemill::cuda::plain
