// The arithmetic that all host backends share, bit for bit.
//
// Reductions run in 16 lanes: element k is added to lane k mod 16 in ascending order, then lanes
// are added pairwise (i and i+8, i+4, i+2, i+1). One AVX-512 register, two AVX2 registers or four
// SSE registers hold the lanes, so every instruction set gives the same bits, whatever the batch,
// the chunk or the number of threads.
//
// Products with bf16, FP8 and FP4 weights run in pair lanes: element k belongs to lane
// (k / 2) mod 16, and of a pair the odd element is added before the even one. That is what the
// BF16 dot product of AVX-512 computes, and float32 hardware computes it as fast on activations
// whose odd and even elements were separated once.
//
// Matrix units (AMX) add them in an order of their own, tile order: 32 elements at a time, the even
// ones in one chain from 0, the odd ones in another, and the sum of both is added to the total. The
// backends that have such a unit and the reference, if told to (backend.h, ProductOrder), agree
// bit for bit too.
//
// A fused multiply-add equals multiply-then-add where the product is exact in float32: bf16 x bf16
// (16 bits), and so every product of a quantised linear. Where a factor is a true float32 (the
// hyper-connection matrix, softmax rescaling) kernels multiply and add separately.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace tidemill {

inline constexpr int64_t kLanes = 16;

inline float add_lanes(const float (&lane)[kLanes]) {
  float sum[kLanes];
  std::copy(lane, lane + kLanes, sum);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) sum[i] += sum[i + half];
  }
  return sum[0];
}

inline float dot(const float* a, const float* b, int64_t n) {
  float lane[kLanes] = {};
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) lane[i] += a[k + i] * b[k + i];
  }
  for (int64_t i = 0; k + i < n; ++i) lane[i] += a[k + i] * b[k + i];
  return add_lanes(lane);
}

// The same in pair lanes.
inline float dot_pairs(const float* a, const float* b, int64_t n) {
  float lane[kLanes] = {};
  for (int64_t begin = 0; begin < n; begin += 2 * kLanes) {
    for (int64_t i = 0; i < kLanes && begin + 2 * i < n; ++i) {
      const int64_t k = begin + 2 * i;
      if (k + 1 < n) lane[i] += a[k + 1] * b[k + 1];
      lane[i] += a[k] * b[k];
    }
  }
  return add_lanes(lane);
}

// The same in tile order.
inline float dot_tiles(const float* a, const float* b, int64_t n) {
  constexpr int64_t kTile = 32;
  float total = 0;
  for (int64_t begin = 0; begin < n; begin += kTile) {
    float even = 0;
    float odd = 0;
    for (int64_t k = begin; k < std::min(n, begin + kTile); k += 2) {
      even += a[k] * b[k];
      if (k + 1 < n) odd += a[k + 1] * b[k + 1];
    }
    total += even + odd;
  }
  return total;
}

inline float sum(const float* a, int64_t n) {
  float lane[kLanes] = {};
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) lane[i] += a[k + i];
  }
  for (int64_t i = 0; k + i < n; ++i) lane[i] += a[k + i];
  return add_lanes(lane);
}

// exp by multiplications, additions and bit operations only, so that a vector version gives the
// same bits; within 2 ulp. 0 below -87.33, saturates above 88.37.
inline float canonical_exp(float x) {
  if (!(x >= -87.33f)) return x < -87.33f ? 0.0f : x;  // NaN passes through
  x = std::min(x, 88.37f);
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = (x * 1.44269504f + kRound) - kRound;
  float r = x - n * 0.693359375f;  // ln 2, high part: exact product
  r = r - n * -2.12194440e-4f;     // ln 2, low part
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r;
  p = p + 1.0f;
  const int32_t exponent = static_cast<int32_t>(n);
  return p * std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

inline float canonical_sigmoid(float x) { return 1.0f / (1.0f + canonical_exp(-x)); }

// Correctly rounded square root and division: an approximate rsqrt flips single bf16 ulps.
inline float inverse_rms(const float* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
}

}  // namespace tidemill
