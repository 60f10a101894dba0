#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"

namespace tidemill::cuda {
namespace {

__device__ void divide(float* c, int n, int from, int step_line, int step, float eps) {
  float total = 0;
  for (int i = 0; i < n; ++i) total = add(total, c[from * step_line + i * step]);
  for (int i = 0; i < n; ++i) {
    c[from * step_line + i * step] = __fdiv_rn(c[from * step_line + i * step], add(total, eps));
  }
}

__device__ void sinkhorn(float* c, int n, int64_t iterations, float eps) {
  for (int i = 0; i < n; ++i) {
    float* row = c + i * n;
    float largest = row[0];
    for (int j = 1; j < n; ++j) largest = fmaxf(largest, row[j]);
    float total = 0;
    for (int j = 0; j < n; ++j) {
      row[j] = canonical_exp(__fsub_rn(row[j], largest));
      total = add(total, row[j]);
    }
    for (int j = 0; j < n; ++j) row[j] = add(__fdiv_rn(row[j], total), eps);
  }
  for (int j = 0; j < n; ++j) divide(c, n, j, 1, n, eps);
  for (int64_t iteration = 1; iteration < iterations; ++iteration) {
    for (int i = 0; i < n; ++i) divide(c, n, i, n, 1, eps);
    for (int j = 0; j < n; ++j) divide(c, n, j, 1, n, eps);
  }
}

// One block a token: every half warp a row of fn, the last one the norm.
__global__ void hc_mix_kernel(HcMixArgs a, HcWeights w) {
  extern __shared__ float m[];  // (2 + hc) * hc products, then the inverse of the norm
  const int64_t t = blockIdx.x;
  const float* h = a.h.f32(t);
  const int rows = static_cast<int>(w.fn.rows);
  const int groups = blockDim.x / kLanes;
  for (int j = lane_group(); j <= rows; j += groups) {
    const float value = j == rows ? inverse_rms(h, a.h.width, a.norm_eps) : product(w.fn, j, h);
    if (lane() == 0) m[j] = value;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  const int hc = static_cast<int>(a.streams);
  const float r = m[rows];
  const auto mixed = [&](int j, int kind) {
    return add(mul(mul(m[j], r), w.scale.data[kind]), w.base.data[j]);
  };
  for (int s = 0; s < hc; ++s) {
    a.pre.f32(t)[s] = add(canonical_sigmoid(mixed(s, 0)), a.hc_eps);
    a.post.f32(t)[s] = mul(2.0f, canonical_sigmoid(mixed(hc + s, 1)));
  }
  float comb[kMostStreams * kMostStreams];
  for (int i = 0; i < hc * hc; ++i) comb[i] = mixed(2 * hc + i, 2);
  sinkhorn(comb, hc, a.sinkhorn_iterations, a.hc_eps);
  for (int i = 0; i < hc * hc; ++i) a.comb.f32(t)[i] = comb[i];
}

__global__ void collapse_norm_kernel(CollapseNormArgs a) {
  extern __shared__ float u[];
  __shared__ float r;
  const int64_t t = blockIdx.x;
  const int64_t width = a.norm.size;
  const float* h = a.h.f32(t);
  const float* pre = a.pre.f32(t);
  for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
    float total = 0;
    for (int64_t s = 0; s < a.streams; ++s) total = add(total, mul(pre[s], h[s * width + d]));
    u[d] = round_bf16(total);
    if (a.collapsed.data != nullptr) a.collapsed.f32(t)[d] = u[d];
  }
  __syncthreads();
  if (threadIdx.x < kLanes) {
    const float value = inverse_rms(u, width, a.eps);
    if (threadIdx.x == 0) r = value;
  }
  __syncthreads();
  for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
    a.x.f32(t)[d] = round_bf16(mul(bf16_to_float(a.norm.data[d]), mul(u[d], r)));
  }
}

__global__ void expand_kernel(ExpandArgs a) {
  const int64_t width = a.y.width;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= a.h.count * width) return;
  const int64_t t = i / width;
  const int64_t d = i % width;
  const int hc = static_cast<int>(a.streams);
  float* h = a.h.f32(t) + d;
  float streams[kMostStreams];
  for (int s = 0; s < hc; ++s) streams[s] = h[s * width];
  for (int j = 0; j < hc; ++j) {
    float mixed = 0;
    for (int s = 0; s < hc; ++s) mixed = add(mixed, mul(a.comb.f32(t)[s * hc + j], streams[s]));
    h[j * width] = round_bf16(add(mul(a.post.f32(t)[j], a.y.f32(t)[d]), mixed));
  }
}

__global__ void stream_mean_kernel(StreamMeanArgs a) {
  const int64_t width = a.out.width;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= a.h.count * width) return;
  const float* h = a.h.f32(i / width) + i % width;
  float total = 0;
  for (int64_t s = 0; s < a.streams; ++s) total = add(total, h[s * width]);
  a.out.f32(i / width)[i % width] = round_bf16(__fdiv_rn(total, static_cast<float>(a.streams)));
}

}  // namespace

void hc_mix(Launch& l, const HcMixArgs& a) {
  if (a.h.count == 0) return;
  const size_t shared = (a.weights->fn.rows + 1) * sizeof(float);
  hc_mix_kernel<<<blocks_for(a.h.count, 1), 416, shared, l.stream>>>(a, *a.weights);
}

void collapse_norm(Launch& l, const CollapseNormArgs& a) {
  if (a.h.count == 0) return;
  const size_t shared = a.norm.size * sizeof(float);
  collapse_norm_kernel<<<blocks_for(a.h.count, 1), 256, shared, l.stream>>>(a);
}

void expand(Launch& l, const ExpandArgs& a) {
  const int64_t n = a.h.count * a.y.width;
  if (n > 0) expand_kernel<<<blocks_for(n, 256), 256, 0, l.stream>>>(a);
}

void stream_mean(Launch& l, const StreamMeanArgs& a) {
  const int64_t n = a.h.count * a.out.width;
  if (n > 0) stream_mean_kernel<<<blocks_for(n, 256), 256, 0, l.stream>>>(a);
}

}  // namespace tidemill::cuda
