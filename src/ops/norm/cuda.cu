#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"

namespace tidemill::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = kThreads / kLanes;  // of a block

__global__ void rms_norm_kernel(RmsNormArgs a) {
  const int64_t t = int64_t{blockIdx.x} * kRows + lane_group();
  if (t >= a.x.count) return;
  const float* x = a.x.f32(t);
  const float r = inverse_rms(x, a.weight.size, a.eps);
  for (int64_t k = lane(); k < a.weight.size; k += kLanes) {
    a.y.f32(t)[k] = round_bf16(mul(bf16_to_float(a.weight.data[k]), mul(x[k], r)));
  }
}

}  // namespace

void rms_norm(Launch& l, const RmsNormArgs& a) {
  if (a.x.count == 0) return;
  rms_norm_kernel<<<blocks_for(a.x.count, kRows), kThreads, 0, l.stream>>>(a);
}

}  // namespace tidemill::cuda
