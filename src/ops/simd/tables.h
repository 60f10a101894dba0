// Small tables of the policies in this folder, and what they are made of.
#pragma once

#include <cstdint>

namespace tidemill {
namespace {

// 2^(byte-127) for 1 <= byte <= 254, from memory: a broadcast load costs less than a shift and a
// move between register files.
struct PowersOfTwo {
  float value[256] = {};
  constexpr PowersOfTwo() {
    for (int byte = 1; byte < 255; ++byte) value[byte] = __builtin_bit_cast(float, byte << 23);
  }
};
alignas(64) constexpr PowersOfTwo kPowersOfTwo;
inline float power_of_two(int32_t byte) { return kPowersOfTwo.value[byte]; }

// The value of a code (its lowest 4 bits) times 2^(scale - 127). Both are normal or 0 for scales
// that a product takes (linear/cpu_matmul.h); 0 for those at the ends of the range.
constexpr uint16_t e2m1_as_bf16(int code, int scale) {
  constexpr uint16_t kMagnitude[8] = {0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0};
  const bool normal = scale >= 2 && scale <= 252;
  if (!normal) return 0;
  const int exponent = code % 8 == 0 ? 0 : (scale - 127) * 128;
  return static_cast<uint16_t>((kMagnitude[code % 8] + exponent) | (code & 8) << 12);
}

}  // namespace
}  // namespace tidemill
