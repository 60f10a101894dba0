// Widening packed cache rows; included only by kernels of one instruction set.
#pragma once

#include "ops/linear/cpu_matmul_kernel.h"
#include "ops/rows/cpu_rows.h"
#include "ops/simd/math.h"

namespace tidemill {
namespace {

// Neither 0 (subnormal) nor 255 (NaN).
inline bool plain_scales(const uint8_t* scales, int64_t n) {
  bool plain = true;
  for (int64_t i = 0; i < n; ++i) plain &= static_cast<uint8_t>(scales[i] - 1) < 254;
  return plain;
}

// format.width is a multiple of 32. Rows with codes or scales that the fast way does not know are
// left to the reference.
template <class S>
void unpack(const RowFormat& format, const std::byte* packed, float* out) {
  using F = typename S::F;
  const auto* row = reinterpret_cast<const uint8_t*>(packed);
  const int64_t width = format.width;
  const uint8_t* scales = row + (format.kind == RowKind::kQ8 ? width : width / 2);
  const auto store = [out](int64_t k, F first, F second) {
    S::store(out + k, first);
    S::store(out + k + 16, second);
  };
  if (format.kind == RowKind::kQ8 && ordinary_codes<S>(row, width) &&
      plain_scales(scales, width / 32)) {
    for (int64_t k = 0; k < width; k += 32) {
      const F scale = S::mul(S::set(power_of_two(scales[k / 32])), S::set(256.0f));
      store(k, S::mul(S::e4m3(row + k), scale), S::mul(S::e4m3(row + k + 16), scale));
    }
  } else if (format.kind == RowKind::kQ4Index && plain_scales(scales, width / 32)) {
    for (int64_t k = 0; k < width; k += 32) {
      F first;
      F second;
      S::e2m1(row + k / 2, S::set(power_of_two(scales[k / 32])), first, second);
      store(k, first, second);
    }
  } else if (format.kind == RowKind::kQ4Entry) {
    for (int64_t k = 0; k < width; k += 32) {
      F first;
      F second;
      S::e2m1(row + k / 2, S::set(1.0f), first, second);
      store(k, S::mul(first, S::set(e4m3_value(scales[k / 16]))),
            S::mul(second, S::set(e4m3_value(scales[k / 16 + 1]))));
    }
  } else {
    unpack_any(format, packed, out);
  }
}

}  // namespace
}  // namespace tidemill
