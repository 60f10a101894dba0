#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"

namespace tidemill::cuda {
namespace {

__global__ void rope_table_kernel(RopeTableArgs a) {
  const int64_t half = a.table.width / 2;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= a.table.count * half) return;
  float* row = a.table.f32(i / half) + i % half;
  // In double, rounded once: the correctly rounded value in all but a few of 10^8 cases.
  const double angle = mul(static_cast<float>(a.position[i / half]), a.frequencies[i % half]);
  row[0] = static_cast<float>(cos(angle));
  row[half] = static_cast<float>(sin(angle));
}

__global__ void rope_kernel(RopeArgs a) {
  const int64_t half = a.table.width / 2;
  const int64_t pairs = a.heads * half;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= a.x.count * pairs) return;
  const int64_t t = i / pairs;
  const int64_t head = i % pairs / half;
  const int64_t pair = i % half;
  const float c = a.table.f32(t)[pair];
  const float sine = a.table.f32(t)[half + pair];
  const float s = a.inverse ? -sine : sine;
  float* x = a.x.f32(t) + (head + 1) * (a.x.width / a.heads) - 2 * half + 2 * pair;
  const float x0 = x[0];
  const float x1 = x[1];
  x[0] = round_bf16(__fsub_rn(mul(x0, c), mul(x1, s)));
  x[1] = round_bf16(add(mul(x0, s), mul(x1, c)));
}

}  // namespace

void rope_table(Launch& l, const RopeTableArgs& a) {
  const int64_t n = a.table.count * (a.table.width / 2);
  if (n > 0) rope_table_kernel<<<blocks_for(n, 128), 128, 0, l.stream>>>(a);
}

void rope(Launch& l, const RopeArgs& a) {
  const int64_t n = a.x.count * a.heads * (a.table.width / 2);
  if (n > 0) rope_kernel<<<blocks_for(n, 128), 128, 0, l.stream>>>(a);
}

}  // namespace tidemill::cuda
