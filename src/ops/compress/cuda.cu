#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"

namespace tidemill::cuda {
namespace {

__global__ void compress_pairs_kernel(CompressPairsArgs a) {
  const int64_t width = a.latent.width;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= a.latent.count * width) return;
  const int64_t n = i / width;
  const int64_t c = i % width;
  float k0;
  float g0;
  if (a.even_row[n] >= 0) {
    k0 = a.k.f32(a.even_row[n])[c];
    g0 = a.g.f32(a.even_row[n])[c];
  } else {
    const auto* pending =
        reinterpret_cast<const float*>(a.pending_base + a.pending_add + a.pending_offset[n]);
    k0 = pending[c];
    g0 = pending[width + c];
  }
  const float k1 = a.k.f32(a.odd_row[n])[c];
  const float g1 = a.g.f32(a.odd_row[n])[c];
  const float largest = fmaxf(g0, g1);
  const float e0 = canonical_exp(__fsub_rn(g0, largest));
  const float e1 = canonical_exp(__fsub_rn(g1, largest));
  const float total = add(e0, e1);
  a.latent.f32(n)[c] =
      round_bf16(add(mul(__fdiv_rn(e0, total), k0), mul(__fdiv_rn(e1, total), k1)));
}

}  // namespace

void compress_pairs(Launch& l, const CompressPairsArgs& a) {
  const int64_t n = a.latent.count * a.latent.width;
  if (n > 0) compress_pairs_kernel<<<blocks_for(n, 128), 128, 0, l.stream>>>(a);
}

}  // namespace tidemill::cuda
