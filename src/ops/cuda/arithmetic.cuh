// Number formats and the arithmetic of canonical.h on the device, bit for bit: the same lanes, the
// same order, nothing fused (__fmul_rn and __fadd_rn are never contracted).
#pragma once

#include <cstdint>

#include "model/weights.h"
#include "ops/tensor.h"

namespace tidemill::cuda {

constexpr int kLanes = 16;  // threads that share a sum
constexpr int kScaleBlock = 32;
constexpr int kEntryBlock = 16;

__device__ inline float add(float a, float b) { return __fadd_rn(a, b); }
__device__ inline float mul(float a, float b) { return __fmul_rn(a, b); }

// ---- formats (base/formats.h)
__device__ inline float bf16_to_float(uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ inline float round_bf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return __uint_as_float((bits & 0xFFFF0000u) | 0x400000u);
  return __uint_as_float((bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u);
}

// `i` is known when it is compiled.
__device__ inline uint32_t word(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Both rounded to bf16. What is not a number gives any.
__device__ inline uint32_t bf16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ inline float e8m0_to_float(uint32_t byte) {
  if (byte == 255) return __uint_as_float(0x7FC00000u);
  if (byte == 0) return __uint_as_float(0x00400000u);
  return __uint_as_float(byte << 23);
}
__device__ inline uint8_t e8m0_at_least(float value) {
  const uint32_t bits = __float_as_uint(value);
  return static_cast<uint8_t>((bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1 : 0));
}

__device__ inline uint8_t e4m3_from_float(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  const float absolute = __uint_as_float(magnitude);
  if (absolute >= 448.0f) return static_cast<uint8_t>(sign | 0x7Eu);
  if (absolute < 0.015625f) {
    return static_cast<uint8_t>(
        sign | (__float_as_uint(add(absolute, 16384.0f)) - __float_as_uint(16384.0f)));
  }
  magnitude += 0x7FFFFu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((magnitude >> 20) - (120u << 3)));
}
__device__ inline float e4m3_to_float(uint32_t byte) {
  if ((byte & 0x7Fu) == 0x7Fu) return __uint_as_float(0x7FC00000u);
  const float magnitude = mul(__uint_as_float((byte & 0x7Fu) << 20), 0x1p120f);
  return __uint_as_float(__float_as_uint(magnitude) | (byte & 0x80u) << 24);
}

__device__ inline float e2m1_to_float(uint32_t code) {
  const uint32_t magnitude = code & 7u;
  const float value = magnitude == 0   ? 0.0f
                      : magnitude == 1 ? 0.5f  // the only subnormal
                                       : __uint_as_float((magnitude + 252u) << 22);
  return __uint_as_float(__float_as_uint(value) | (code & 8u) << 28);
}
__device__ inline uint32_t e2m1_from_float(float value) {
  const float a = fabsf(value);
  const uint32_t code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                        (a >= 3.5f) + (a > 5.0f);
  return code | (__float_as_uint(value) >> 28 & 8u);
}

// As std::max, std::min and std::clamp: fmaxf and fminf would turn NaN into a number.
__device__ inline float larger(float a, float b) { return a < b ? b : a; }
__device__ inline float smaller(float a, float b) { return b < a ? b : a; }
__device__ inline float clamped(float value, float limit) {
  return smaller(larger(value, -limit), limit);
}
__device__ inline float absolute_max(const float* x, int n) {
  float result = 0;
  for (int i = 0; i < n; ++i) result = fmaxf(result, fabsf(x[i]));
  return result;
}
// Scales by the largest magnitude of a block, and of the block itself.
__device__ inline uint8_t q8_scale_of(float largest) {
  return e8m0_at_least(mul(fmaxf(largest, 1e-4f), 1.0f / 448.0f));
}
__device__ inline uint8_t q4_index_scale_of(float largest) {
  return e8m0_at_least(mul(fmaxf(largest, 6 * 0x1p-126f), 1.0f / 6.0f));
}
__device__ inline uint8_t q4_entry_scale_of(float largest) {
  return e4m3_from_float(__fdiv_rn(fmaxf(largest, 6 * 0x1p-9f), 6.0f));
}
__device__ inline uint8_t q8_scale(const float* x) {
  return q8_scale_of(absolute_max(x, kScaleBlock));
}
__device__ inline uint8_t q4_index_scale(const float* x) {
  return q4_index_scale_of(absolute_max(x, kScaleBlock));
}
__device__ inline uint8_t q4_entry_scale(const float* x) {
  return q4_entry_scale_of(absolute_max(x, kEntryBlock));
}

__device__ inline uint8_t q8_code(float value, float scale) {
  return e4m3_from_float(clamped(__fdiv_rn(value, scale), 448.0f));
}
__device__ inline uint32_t q4_code(float value, float scale) {
  return e2m1_from_float(clamped(__fdiv_rn(value, scale), 6.0f));
}

// Element k of a cache row.
__device__ inline float row_value(const RowFormat& format, const std::byte* row, int64_t k) {
  const auto* in = reinterpret_cast<const uint8_t*>(row);
  const auto nibble = [&] { return k % 2 == 0 ? in[k / 2] & 15u : in[k / 2] >> 4; };
  switch (format.kind) {
    case RowKind::kF32:
      return reinterpret_cast<const float*>(row)[k];
    case RowKind::kQ8:
      return mul(e4m3_to_float(in[k]), e8m0_to_float(in[format.width + k / kScaleBlock]));
    case RowKind::kQ4Entry:
      return mul(e2m1_to_float(nibble()), e4m3_to_float(in[format.width / 2 + k / kEntryBlock]));
    case RowKind::kQ4Index:
      return mul(e2m1_to_float(nibble()), e8m0_to_float(in[format.width / 2 + k / kScaleBlock]));
  }
  return 0;
}

// ---- functions (canonical.h)
// canonical_exp() of what is neither NaN nor too small or large for it.
__device__ inline float usual_exp(float x) {
  constexpr float kRound = 12582912.0f;
  const float n = __fsub_rn(add(mul(x, 1.44269504f), kRound), kRound);
  float r = __fsub_rn(x, mul(n, 0.693359375f));
  r = __fsub_rn(r, mul(n, -2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = add(mul(p, r), 1.3981999507e-3f);
  p = add(mul(p, r), 8.3334519073e-3f);
  p = add(mul(p, r), 4.1665795894e-2f);
  p = add(mul(p, r), 1.6666665459e-1f);
  p = add(mul(p, r), 5.0000001201e-1f);
  p = add(mul(p, mul(r, r)), r);
  p = add(p, 1.0f);
  return mul(p, __uint_as_float(static_cast<uint32_t>(static_cast<int>(n) + 127) << 23));
}
__device__ inline float canonical_exp(float x) {
  if (!(x >= -87.33f)) return x < -87.33f ? 0.0f : x;
  return usual_exp(fminf(x, 88.37f));
}
__device__ inline float canonical_sigmoid(float x) {
  return __fdiv_rn(1.0f, add(1.0f, canonical_exp(-x)));
}

// ---- sums over 16 lanes: the threads of half a warp, all of them here
__device__ inline int lane() { return threadIdx.x % kLanes; }
__device__ inline int lane_group() { return threadIdx.x / kLanes; }

__device__ inline float add_lanes(float value) {
  const uint32_t half_warp = threadIdx.x % 32 < kLanes ? 0x0000FFFFu : 0xFFFF0000u;
  for (int half = kLanes / 2; half > 0; half /= 2) {
    value = add(value, __shfl_down_sync(half_warp, value, half, kLanes));
  }
  return __shfl_sync(half_warp, value, 0, kLanes);
}

// at(k) for 0 <= k < n: element k belongs to lane k mod 16.
template <typename A, typename B>
__device__ float dot(int64_t n, const A& a, const B& b) {
  float sum = 0;
  for (int64_t k = lane(); k < n; k += kLanes) sum = add(sum, mul(a(k), b(k)));
  return add_lanes(sum);
}

// ---- weights
// Elements k and k + 1 (k even) of a row; 0 behind its end. The data begins at a multiple of their
// bytes, which a row of odd width does not.
__device__ inline float2 weight_pair(const Matrix& w, int64_t row, int64_t k) {
  const int64_t i = row * w.cols + k;
  const auto* data = static_cast<const uint8_t*>(w.data);
  const bool both = k + 1 < w.cols;
  switch (w.format) {
    case WeightFormat::kF32: {
      const auto* at = static_cast<const float*>(w.data) + i;
      return {at[0], both ? at[1] : 0.0f};
    }
    case WeightFormat::kBf16: {
      if (i % 2 != 0 || !both) {
        const auto* at = static_cast<const uint16_t*>(w.data) + i;
        return {bf16_to_float(at[0]), both ? bf16_to_float(at[1]) : 0.0f};
      }
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(data + 2 * i);
      return {bf16_to_float(pair & 0xFFFFu), bf16_to_float(pair >> 16)};
    }
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Row: {
      const uint32_t pair = i % 2 == 0 && both ? *reinterpret_cast<const uint16_t*>(data + i)
                            : both             ? data[i] | uint32_t{data[i + 1]} << 8
                                               : data[i];
      const int64_t scale_row = w.format == WeightFormat::kFp8Row ? row : row / kScaleBlock;
      const float scale =
          e8m0_to_float(w.scales[scale_row * ((w.cols + 31) / 32) + k / kScaleBlock]);
      return {mul(e4m3_to_float(pair & 0xFFu), scale), mul(e4m3_to_float(pair >> 8), scale)};
    }
    case WeightFormat::kFp4Row: {
      const uint32_t pair = data[i / 2];
      const float scale = e8m0_to_float(w.scales[row * ((w.cols + 31) / 32) + k / kScaleBlock]);
      return {mul(e2m1_to_float(pair & 15u), scale), mul(e2m1_to_float(pair >> 4), scale)};
    }
  }
  return {0, 0};
}
__device__ inline float weight(const Matrix& w, int64_t row, int64_t k) {
  const float2 pair = weight_pair(w, row, k & ~int64_t{1});
  return k % 2 == 0 ? pair.x : pair.y;
}

// Row `row` of w times x, in the order that weights of its format have.
__device__ inline float product(const Matrix& w, int64_t row, const float* x) {
  if (w.format == WeightFormat::kF32) {
    return dot(
        w.cols, [&](int64_t k) { return x[k]; },
        [&](int64_t k) { return static_cast<const float*>(w.data)[row * w.cols + k]; });
  }
  float sum = 0;
  for (int64_t k = 2 * lane(); k < w.cols; k += 2 * kLanes) {
    const float2 pair = weight_pair(w, row, k);
    if (k + 1 < w.cols) sum = add(sum, mul(x[k + 1], pair.y));
    sum = add(sum, mul(x[k], pair.x));
  }
  return add_lanes(sum);
}

}  // namespace tidemill::cuda
