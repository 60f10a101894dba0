// RMS normalisation over a policy S (simd/avx512.h). Widths are multiples of 16.
#pragma once

#include "ops/simd/math.h"

namespace tidemill {
namespace {

template <class S>
float inverse_rms(const float* x, int64_t n, float eps) {
  auto sum = S::zero();
  for (int64_t k = 0; k < n; k += 16) sum = S::add(sum, S::mul(S::load(x + k), S::load(x + k)));
  return 1.0f / __builtin_sqrtf(S::reduce(sum) / static_cast<float>(n) + eps);
}

// y may be x; weight: bf16 bits.
template <class S>
void rms_norm(const float* x, const uint16_t* weight, int64_t n, float eps, float* y) {
  const auto r = S::set(inverse_rms<S>(x, n, eps));
  for (int64_t k = 0; k < n; k += 16) {
    S::store(y + k, round_bf16<S>(S::mul(S::bf16(weight + k), S::mul(S::load(x + k), r))));
  }
}

}  // namespace
}  // namespace tidemill
