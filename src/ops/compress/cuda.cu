#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda {
namespace {

template <int V>
__device__ Pack<float, V> values_at(const float* from) {
  if (is_aligned(from, sizeof(float) * V)) return load<V>(from);
  Pack<float, V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) out.at[i] = from[i];
  return out;
}

template <int V>
__global__ void compress_pairs_kernel(CompressPairsArgs a, unsigned parts) {
  const Place<V> at(parts);
  const int64_t width = a.latent.width;
  if (at.k >= width) return;
  const int64_t even = a.even_row[at.row];
  const int64_t odd = a.odd_row[at.row];
  const float* k_even = a.k.f32(even);
  const float* g_even = a.g.f32(even);
  if (even < 0) {
    k_even =
        reinterpret_cast<const float*>(a.pending_base + a.pending_add + a.pending_offset[at.row]);
    g_even = k_even + width;
  }
  const auto k0 = values_at<V>(k_even + at.k);
  const auto g0 = values_at<V>(g_even + at.k);
  const auto k1 = values_at<V>(a.k.f32(odd) + at.k);
  const auto g1 = values_at<V>(a.g.f32(odd) + at.k);
  Pack<float, V> latent;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float largest = fmaxf(g0.at[i], g1.at[i]);
    const float e0 = canonical_exp(__fsub_rn(g0.at[i], largest));
    const float e1 = canonical_exp(__fsub_rn(g1.at[i], largest));
    const float total = add(e0, e1);
    latent.at[i] =
        round_bf16(add(mul(__fdiv_rn(e0, total), k0.at[i]), mul(__fdiv_rn(e1, total), k1.at[i])));
  }
  store(a.latent.f32(at.row) + at.k, latent);
}

template <int V>
void launch(cudaStream_t stream, const CompressPairsArgs& a) {
  const Parts p(a.latent.count, a.latent.width, V);
  compress_pairs_kernel<V><<<p.blocks, p.threads, 0, stream>>>(a, p.parts);
}

}  // namespace

void compress_pairs(Launch& l, const CompressPairsArgs& a) {
  if (a.latent.count == 0) return;
  in_packs(a.latent, 2) ? launch<2>(l.stream, a) : launch<1>(l.stream, a);
}

}  // namespace tidemill::cuda
