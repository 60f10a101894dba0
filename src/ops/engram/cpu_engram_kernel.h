// Engram gate over a policy S (simd/avx512.h), one token per call. Widths are multiples of 16.
#pragma once

#include "ops/engram/engram.h"
#include "ops/norm/cpu_norm_kernel.h"

namespace tidemill {
namespace {

template <class S>
float engram_stream_gate(const float* h, const float* key, const uint16_t* q_weight,
                         const uint16_t* k_weight, int64_t width, float eps) {
  auto sum = S::zero();
  for (int64_t d = 0; d < width; d += 16) {
    const auto weight = S::mul(S::bf16(q_weight + d), S::bf16(k_weight + d));
    sum = S::add(sum, S::mul(S::mul(S::load(h + d), weight), S::load(key + d)));
  }
  const float root = 1.0f / __builtin_sqrtf(static_cast<float>(width));
  const float norms = inverse_rms<S>(h, width, eps) * inverse_rms<S>(key, width, eps);
  const float dot = S::reduce(sum) * norms * root;
  const float magnitude = __builtin_fabsf(dot);
  const float strength = __builtin_sqrtf(magnitude < 1e-6f ? 1e-6f : magnitude);
  float lanes[16];
  S::store(lanes, sigmoid<S>(S::set(__builtin_copysignf(strength, dot))));
  return lanes[0];
}

// q_weight and k_weight are bf16.
template <class S>
void engram_gate(const EngramGateArgs& a, int64_t t) {
  const int64_t width = a.q_weight->cols;
  float* h = static_cast<float*>(a.h.data) + t * a.h.stride;
  const float* keys = static_cast<const float*>(a.kvv.data) + t * a.kvv.stride;
  const float* value = keys + a.streams * width;
  float* gates = static_cast<float*>(a.gate.data) + t * a.gate.stride;
  const auto* q_weight = static_cast<const uint16_t*>(a.q_weight->data);
  const auto* k_weight = static_cast<const uint16_t*>(a.k_weight->data);
  for (int64_t s = 0; s < a.streams; ++s, h += width, keys += width) {
    float gate =
        engram_stream_gate<S>(h, keys, q_weight + s * width, k_weight + s * width, width, a.eps);
    if (a.image != nullptr && a.image[t] != 0) gate = 0;
    gates[s] = gate;
    for (int64_t d = 0; d < width; d += 16) {
      S::store(h + d,
               round_bf16<S>(S::add(S::load(h + d), S::mul(S::set(gate), S::load(value + d)))));
    }
  }
}

}  // namespace
}  // namespace tidemill
