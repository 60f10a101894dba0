// Number formats of a DeepSeek-V4.1 checkpoint and of its caches, bit exact.
//
// All conversions round to nearest, ties to even. Every decoded value is exact in float32 and,
// for the ranges that occur, in bf16.
//   bf16   1-8-7   upper half of a float32
//   E4M3   OCP "fn": bias 7, no infinity, 0x7F/0xFF = NaN, largest 448
//   E2M1   codes 0..7 = 0 .5 1 1.5 2 3 4 6, bit 3 = sign
//   E8M0   scale byte b = 2^(b-127), 255 = NaN
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace tidemill {

// ---- bf16
inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
inline uint16_t bf16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
inline float round_bf16(float value) { return bf16_to_float(bf16_from_float(value)); }

// ---- E8M0
inline float e8m0_to_float(uint8_t byte) {
  if (byte == 255) return std::bit_cast<float>(0x7FC00000u);
  if (byte == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127 is subnormal
  return std::bit_cast<float>(static_cast<uint32_t>(byte) << 23);
}
// Byte of the smallest power of two >= value, for normal value > 0. From the bits: a floating
// log2 would be off by one near powers of two.
inline uint8_t e8m0_at_least(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint8_t>((bits >> 23) + ((bits & 0x7FFFFFu) != 0));
}

// ---- E4M3
inline constexpr float kE4m3Max = 448.0f;
// The caller clamps first; what lies beyond saturates here. NaN stays NaN.
inline uint8_t e4m3_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  const float absolute = std::bit_cast<float>(magnitude);
  if (absolute >= kE4m3Max) return static_cast<uint8_t>(sign | 0x7Eu);
  if (absolute < 0x1p-6f) {  // subnormal: multiples of 2^-9; adding 2^14 rounds to that grid
    return static_cast<uint8_t>(
        sign | (std::bit_cast<uint32_t>(absolute + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f)));
  }
  magnitude += 0x7FFFFu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((magnitude >> 20) - ((127u - 7u) << 3)));
}
inline float e4m3_to_float(uint8_t byte) {
  if ((byte & 0x7Fu) == 0x7Fu) return std::bit_cast<float>(0x7FC00000u);
  const uint32_t sign = static_cast<uint32_t>(byte & 0x80u) << 24;
  // Exponent and mantissa moved into place, then the bias corrected; exact for subnormals too.
  const float magnitude =
      std::bit_cast<float>(static_cast<uint32_t>(byte & 0x7Fu) << 20) * 0x1p120f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

// ---- E2M1
inline constexpr float kE2m1Max = 6.0f;
inline constexpr std::array<float, 16> kE2m1Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                      4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                      -2.0f, -3.0f, -4.0f, -6.0f};
inline float e2m1_to_float(uint8_t code) { return kE2m1Values[code & 15u]; }
// |value| <= 6. The sign of zero is kept.
inline uint8_t e2m1_from_float(float value) {
  const float a = std::fabs(value);
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                   (a >= 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>(code | (std::signbit(value) ? 8 : 0));
}

// ---- block quantisers (spec: the scale is a multiplication by the float32 reciprocal)
inline constexpr int64_t kScaleBlock = 32;  // Q8, Q4 index: elements per E8M0 scale
inline constexpr int64_t kEntryBlock = 16;  // Q4 entries: elements per E4M3 scale
inline constexpr float kRecip448 = 1.0f / 448.0f;
inline constexpr float kRecip6 = 1.0f / 6.0f;
static_assert(std::bit_cast<uint32_t>(kRecip448) == 0x3B124925u);
static_assert(std::bit_cast<uint32_t>(kRecip6) == 0x3E2AAAABu);

inline float absolute_max(const float* x, int64_t n) {
  float result = 0.0f;
  for (int64_t i = 0; i < n; ++i) result = std::max(result, std::fabs(x[i]));
  return result;
}

// Q8 of 32 values: E8M0 scale byte of the block. The floor of 1e-4 flushes tiny activations.
inline uint8_t q8_scale(const float* x) {
  return e8m0_at_least(std::max(absolute_max(x, kScaleBlock), 1e-4f) * kRecip448);
}
inline uint8_t q8_code(float value, float scale) {
  return e4m3_from_float(std::clamp(value / scale, -kE4m3Max, kE4m3Max));
}
// Value that a Q8 block holds after quantising.
inline void q8_round(const float* x, float* out) {
  const float scale = e8m0_to_float(q8_scale(x));
  for (int64_t i = 0; i < kScaleBlock; ++i) out[i] = e4m3_to_float(q8_code(x[i], scale)) * scale;
}

// Q4 for index queries and keys: 32 values, E8M0 scale.
inline uint8_t q4_index_scale(const float* x) {
  return e8m0_at_least(std::max(absolute_max(x, kScaleBlock), 6 * 0x1p-126f) * kRecip6);
}
// Q4 for compressed entries: 16 values, E4M3 scale that is never zero.
inline uint8_t q4_entry_scale(const float* x) {
  return e4m3_from_float(std::max(absolute_max(x, kEntryBlock), 6 * 0x1p-9f) / 6.0f);
}
inline uint8_t q4_code(float value, float scale) {
  return e2m1_from_float(std::clamp(value / scale, -kE2m1Max, kE2m1Max));
}

}  // namespace tidemill
