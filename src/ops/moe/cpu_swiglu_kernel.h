// SwiGLU of a block of 32 channels; included only by kernels of one instruction set.
#pragma once

#include "ops/linear/cpu_prepare_kernel.h"

namespace tidemill {
namespace {

// out = Q8(bf16(weight * silu(min(g, limit)) * clamp(u, +-limit))) in the layout of the matmul
// policy M. Returns whether all values are ordinary (cpu_matmul.h); Q8 always fits bf16.
template <class M>
bool swiglu_block(const float* g, const float* u, float limit, float weight, void* out) {
  using S = typename M::Float;
  using F = typename S::F;
  const F high = S::set(limit);
  alignas(64) float y[32];
  for (int k = 0; k < 32; k += 16) {
    const F gate = S::min(high, S::load(g + k));  // NaN stays
    const F up = S::max(S::set(-limit), S::min(high, S::load(u + k)));
    const F silu = S::mul(gate, sigmoid<S>(gate));
    S::store(y + k, round_bf16<S>(S::mul(S::set(weight), S::mul(silu, up))));
  }
  return prepare_activations<M>(y, 32, true, out) == Activations::kOrdinary;
}

template <class S>
void round_row(float* x, int64_t n) {
  for (int64_t k = 0; k < n; k += 16) S::store(x + k, round_bf16<S>(S::load(x + k)));
}

}  // namespace
}  // namespace tidemill
