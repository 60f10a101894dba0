// Rotary embedding over a policy S (simd/avx512.h).
#pragma once

#include "ops/rope/rope.h"
#include "ops/simd/math.h"

namespace tidemill {
namespace {

// Token t; rope_dim is a multiple of 16. Elements are rotated 16 at a time: with cos and sin spread
// to pairs and neighbours exchanged, (x0 c - x1 s, x1 c + x0 s).
template <class S>
void rope(const RopeArgs& a, int64_t t) {
  using F = typename S::F;
  const int64_t half = a.table.width / 2;
  const int64_t head_dim = a.x.width / a.heads;
  const float* cosine = static_cast<const float*>(a.table.data) + t * a.table.stride;
  const float* sine = cosine + half;
  float* end = static_cast<float*>(a.x.data) + t * a.x.stride + head_dim;
  const float sign = a.inverse ? -1.0f : 1.0f;
  for (int64_t i = 0; i < half; i += 8) {
    float c[16];
    float s[16];
    for (int64_t k = 0; k < 8; ++k) {
      c[2 * k] = c[2 * k + 1] = cosine[i + k];
      s[2 * k] = -sign * sine[i + k];
      s[2 * k + 1] = sign * sine[i + k];
    }
    const F cosines = S::load(c);
    const F sines = S::load(s);
    float* x = end - 2 * half + 2 * i;
    for (int64_t head = 0; head < a.heads; ++head, x += head_dim) {
      const F value = S::load(x);
      const F rotated = S::add(S::mul(value, cosines), S::mul(S::swap_pairs(value), sines));
      S::store(x, round_bf16<S>(rotated));
    }
  }
}

}  // namespace
}  // namespace tidemill
