// SwiGLU of a block of 32 channels; included only by kernels of one instruction set.
#pragma once

#include "ops/linear/cpu_prepare_kernel.h"

namespace tidemill {
namespace {

// out = Q8(bf16(weight * silu(min(g, limit)) * clamp(u, +-limit))). Returns whether all values are
// ordinary (MatmulArgs::ordinary_x).
template <class S>
bool swiglu_block(const float* g, const float* u, float limit, float weight, float* out) {
  using F = typename S::F;
  const F high = S::set(limit);
  for (int k = 0; k < 32; k += 16) {
    const F gate = S::min(high, S::load(g + k));  // NaN stays
    const F up = S::max(S::set(-limit), S::min(high, S::load(u + k)));
    const F silu = S::mul(gate, sigmoid<S>(gate));
    S::store(out + k, round_bf16<S>(S::mul(S::set(weight), S::mul(silu, up))));
  }
  return prepare_activations<S>(out, 32, true, out);
}

template <class S>
void round_row(float* x, int64_t n) {
  for (int64_t k = 0; k < n; k += 16) S::store(x + k, round_bf16<S>(S::load(x + k)));
}

}  // namespace
}  // namespace tidemill
