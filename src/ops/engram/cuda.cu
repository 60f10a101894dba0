#include <cmath>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda {
namespace {

constexpr int kThreads = 640;

// One block a token and stream. Three sums at once, each by half a warp of its own.
template <int V>
__global__ void __launch_bounds__(kThreads)
    engram_gate_kernel(EngramGateArgs a, Matrix q_weight, Matrix k_weight, float root) {
  extern __shared__ float4 shared[];  // rows: the stream, its key, the weighted stream, the value
  __shared__ float sums[3];
  const int64_t t = blockIdx.x / static_cast<unsigned>(a.streams);
  const int64_t s = blockIdx.x % static_cast<unsigned>(a.streams);
  const int width = static_cast<int>(q_weight.cols);
  auto* const stream = reinterpret_cast<float*>(shared);
  float* const key = stream + padded(width);
  float* const weighted = key + padded(width);
  float* const value = weighted + padded(width);
  float* const h = a.h.f32(t) + s * width;
  const float* const kvv = a.kvv.f32(t);
  const auto* const q = static_cast<const uint16_t*>(q_weight.data) + s * width;
  const auto* const k = static_cast<const uint16_t*>(k_weight.data) + s * width;
  const int first = V * static_cast<int>(threadIdx.x);
  const int step = V * static_cast<int>(blockDim.x);
  for (int d = first; d < width; d += step) {
    const auto x = load<V>(h + d);
    const auto q_codes = load<V>(q + d);
    const auto k_codes = load<V>(k + d);
    const auto keys = load<V>(kvv + s * width + d);
    const auto values = load<V>(kvv + a.streams * width + d);
    Pack<float, V> products;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      products.at[i] =
          mul(x.at[i], mul(bf16_to_float(q_codes.at[i]), bf16_to_float(k_codes.at[i])));
    }
    store(stream + d, x);
    store(key + d, keys);
    store(weighted + d, products);
    store(value + d, values);
  }
  pad(stream, width);
  pad(key, width);
  pad(weighted, width);
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < 3 && threadIdx.x % 32 < kLanes) {
    const float sum = warp == 0   ? shared_inverse_rms(stream, width, a.eps)
                      : warp == 1 ? shared_inverse_rms(key, width, a.eps)
                                  : shared_dot(weighted, key, width);
    if (lane() == 0) sums[warp] = sum;
  }
  __syncthreads();
  const float d0 = mul(mul(sums[2], mul(sums[0], sums[1])), root);
  float gate = canonical_sigmoid(copysignf(__fsqrt_rn(larger(fabsf(d0), 1e-6f)), d0));
  if (a.image != nullptr && a.image[t] != 0) gate = 0;
  if (threadIdx.x == 0) a.gate.f32(t)[s] = gate;
#pragma unroll 2
  for (int d = first; d < width; d += step) {
    auto x = load<V>(stream + d);
    const auto v = load<V>(value + d);
#pragma unroll
    for (int i = 0; i < V; ++i) x.at[i] = round_bf16(add(x.at[i], mul(gate, v.at[i])));
    store(h + d, x);
  }
}

template <int V>
void launch(cudaStream_t stream, const EngramGateArgs& a) {
  const int64_t width = a.q_weight->cols;
  const float root = 1.0f / std::sqrt(static_cast<float>(width));
  const auto bytes = [](int64_t n) { return 4 * padded(n) * int{sizeof(float)}; };
  allow_shared<engram_gate_kernel<V>>(bytes(kMostHidden));
  const unsigned blocks = blocks_for(a.h.count * a.streams, 1);
  engram_gate_kernel<V>
      <<<blocks, kThreads, bytes(width), stream>>>(a, *a.q_weight, *a.k_weight, root);
}

}  // namespace

void engram_gate(Launch& l, const EngramGateArgs& a) {
  if (a.h.count == 0) return;
  const bool packs = in_packs(a.h, 4) && in_packs(a.kvv, 4) &&
                     in_packs(*a.q_weight, sizeof(uint16_t), 4) &&
                     in_packs(*a.k_weight, sizeof(uint16_t), 4);
  packs ? launch<4>(l.stream, a) : launch<1>(l.stream, a);
}

}  // namespace tidemill::cuda
