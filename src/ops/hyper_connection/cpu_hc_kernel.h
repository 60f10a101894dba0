// Hyper-connections over a policy S (simd/avx512.h), one token per call. Factors here are true
// float32 values, so nothing is fused (canonical.h).
#pragma once

#include "ops/hyper_connection/hyper_connection.h"
#include "ops/norm/cpu_norm_kernel.h"

namespace tidemill {
namespace {

template <class S>
typename S::F sum_of_columns(typename S::F c) {
  return S::add(S::add(S::add(S::template spread_column<0>(c), S::template spread_column<1>(c)),
                       S::template spread_column<2>(c)),
                S::template spread_column<3>(c));
}
template <class S>
typename S::F sum_of_rows(typename S::F c) {
  return S::add(S::add(S::add(S::template spread_row<0>(c), S::template spread_row<1>(c)),
                       S::template spread_row<2>(c)),
                S::template spread_row<3>(c));
}

// The 4 x 4 matrix in one register (reference.h sinkhorn).
template <class S>
typename S::F sinkhorn4(typename S::F c, int64_t iterations, float eps) {
  using F = typename S::F;
  const F e = S::set(eps);
  const F largest =
      S::max(S::max(S::template spread_column<0>(c), S::template spread_column<1>(c)),
             S::max(S::template spread_column<2>(c), S::template spread_column<3>(c)));
  c = exp<S>(S::sub(c, largest));
  c = S::add(S::div(c, sum_of_columns<S>(c)), e);
  c = S::div(c, S::add(sum_of_rows<S>(c), e));
  for (int64_t i = 1; i < iterations; ++i) {
    c = S::div(c, S::add(sum_of_columns<S>(c), e));
    c = S::div(c, S::add(sum_of_rows<S>(c), e));
  }
  return c;
}

// Four streams. m = fn . h: 24 sums.
template <class S>
void hc_coefficients(const HcMixArgs& a, int64_t t, const float* m) {
  using F = typename S::F;
  const float* h = static_cast<const float*>(a.h.data) + t * a.h.stride;
  const float r = inverse_rms<S>(h, a.h.width, a.norm_eps);
  const float* scale = a.weights->scale.data;
  const float* base = a.weights->base.data;
  float mixed[32] = {};
  for (int j = 0; j < 24; ++j) mixed[j] = m[j] * r * scale[j < 4 ? 0 : j < 8 ? 1 : 2] + base[j];
  const F gates = sigmoid<S>(S::load(mixed));  // the first 8 lanes
  float lanes[16];
  S::store(lanes, gates);
  float* pre = static_cast<float*>(a.pre.data) + t * a.pre.stride;
  float* post = static_cast<float*>(a.post.data) + t * a.post.stride;
  for (int s = 0; s < 4; ++s) {
    pre[s] = lanes[s] + a.hc_eps;
    post[s] = 2.0f * lanes[4 + s];
  }
  S::store(static_cast<float*>(a.comb.data) + t * a.comb.stride,
           sinkhorn4<S>(S::load(mixed + 8), a.sinkhorn_iterations, a.hc_eps));
}

// u = bf16(sum of pre[s] * h[s]).
template <class S>
void collapse(const float* h, int64_t streams, const float* pre, int64_t width, float* u) {
  for (int64_t d = 0; d < width; d += 16) {
    auto total = S::zero();
    for (int64_t s = 0; s < streams; ++s) {
      total = S::add(total, S::mul(S::set(pre[s]), S::load(h + s * width + d)));
    }
    S::store(u + d, round_bf16<S>(total));
  }
}

// Four streams, in place.
template <class S>
void expand(float* h, const float* y, const float* post, const float* comb, int64_t width) {
  using F = typename S::F;
  for (int64_t d = 0; d < width; d += 16) {
    F stream[4];
    for (int i = 0; i < 4; ++i) stream[i] = S::load(h + i * width + d);
    const F value = S::load(y + d);
    for (int j = 0; j < 4; ++j) {
      F mixed = S::zero();
      for (int i = 0; i < 4; ++i) {
        mixed = S::add(mixed, S::mul(S::set(comb[i * 4 + j]), stream[i]));
      }
      S::store(h + j * width + d, round_bf16<S>(S::add(S::mul(S::set(post[j]), value), mixed)));
    }
  }
}

}  // namespace
}  // namespace tidemill
