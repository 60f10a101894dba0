// Activations before a quantised product; included only by kernels of one instruction set.
#pragma once

#include "ops/simd/math.h"

namespace tidemill {
namespace {

// What an exact product needs of its activations (MatmulArgs::ordinary_x).
template <class S>
class OrdinaryCheck {
 public:
  using F = typename S::F;
  void add(F x) {
    const F magnitude = absolute<S>(x);
    largest_ = S::max(magnitude, largest_);
    smallest_ = S::min(S::select(S::less(S::zero(), magnitude), magnitude, S::set(1)), smallest_);
    low_ = S::ori(S::bits(x), low_);
  }
  bool ordinary() const {
    float largest[16];
    float smallest[16];
    float low[16];
    S::store(largest, largest_);
    S::store(smallest, smallest_);
    S::store(low, S::floats(low_));
    bool result = true;
    for (int i = 0; i < 16; ++i) {
      result &= largest[i] <= 0x1p50f && smallest[i] >= 0x1p-50f &&
                (__builtin_bit_cast(uint32_t, low[i]) & 0xFFFFu) == 0;
    }
    return result;
  }

 private:
  F largest_ = S::zero();
  F smallest_ = S::set(1);
  typename S::I low_ = S::seti(0);
};

// n a multiple of 32. quantise: out = Q8 of x. Returns whether the values are ordinary.
template <class S>
bool prepare_activations(const float* x, int64_t n, bool quantise, float* out) {
  OrdinaryCheck<S> check;
  for (int64_t k = 0; k < n; k += 32) {
    const float* values = x + k;
    if (quantise) {
      q8_block<S>(values, out + k);
      values = out + k;
    }
    check.add(S::load(values));
    check.add(S::load(values + 16));
  }
  return check.ordinary();
}

}  // namespace
}  // namespace tidemill
