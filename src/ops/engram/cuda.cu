#include <cmath>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"

namespace tidemill::cuda {
namespace {

// Half a warp per token and stream; the value is added by the same threads.
__global__ void engram_gate_kernel(EngramGateArgs a, Matrix q_weight, Matrix k_weight, float root) {
  const int64_t i = int64_t{blockIdx.x} * (blockDim.x / kLanes) + lane_group();
  if (i >= a.h.count * a.streams) return;
  const int64_t t = i / a.streams;
  const int64_t s = i % a.streams;
  const int64_t width = q_weight.cols;
  float* h = a.h.f32(t) + s * width;
  const float* key = a.kvv.f32(t) + s * width;
  const float* value = a.kvv.f32(t) + a.streams * width;
  const auto weighted = [&](int64_t d) {
    return mul(h[d], mul(weight(q_weight, s, d), weight(k_weight, s, d)));
  };
  const float rs = mul(inverse_rms(h, width, a.eps), inverse_rms(key, width, a.eps));
  const float d0 = mul(mul(dot(width, weighted, [&](int64_t d) { return key[d]; }), rs), root);
  float gate = canonical_sigmoid(copysignf(__fsqrt_rn(larger(fabsf(d0), 1e-6f)), d0));
  if (a.image != nullptr && a.image[t] != 0) gate = 0;
  if (lane() == 0) a.gate.f32(t)[s] = gate;
  for (int64_t d = lane(); d < width; d += kLanes)
    h[d] = round_bf16(add(h[d], mul(gate, value[d])));
}

}  // namespace

void engram_gate(Launch& l, const EngramGateArgs& a) {
  const int64_t n = a.h.count * a.streams;
  if (n == 0) return;
  const float root = 1.0f / std::sqrt(static_cast<float>(a.q_weight->cols));
  engram_gate_kernel<<<blocks_for(n, 8), 128, 0, l.stream>>>(a, *a.q_weight, *a.k_weight, root);
}

}  // namespace tidemill::cuda
