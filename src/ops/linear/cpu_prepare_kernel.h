// Activations before a quantised product; included only by kernels of one instruction set.
#pragma once

#include "ops/linear/cpu_planes.h"

namespace tidemill {
namespace {

// What an exact product needs of its activations (cpu_matmul.h).
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
    S::store(largest, largest_);
    S::store(smallest, smallest_);
    bool result = bf16();
    for (int i = 0; i < 16; ++i) {
      result &= largest[i] <= 0x1p50f && smallest[i] >= 0x1p-50f;
    }
    return result;
  }
  bool bf16() const {
    float low[16];
    S::store(low, S::floats(low_));
    uint32_t bits = 0;
    for (int i = 0; i < 16; ++i) bits |= __builtin_bit_cast(uint32_t, low[i]);
    return (bits & 0xFFFFu) == 0;
  }

 private:
  F largest_ = S::zero();
  F smallest_ = S::set(1);
  typename S::I low_ = S::seti(0);
};

// n a multiple of 32. Writes x, or Q8 of x, in the layout of the matmul policy M.
template <class M>
Activations prepare_activations(const float* x, int64_t n, bool quantise, void* out) {
  using S = typename M::Float;
  OrdinaryCheck<S> check;
  auto* to = static_cast<typename M::Element*>(out);
  alignas(64) float quantised[32];
  for (int64_t k = 0; k < n; k += 32) {
    const float* values = x + k;
    if (quantise) {
      q8_block<S>(values, quantised);
      values = quantised;
    }
    const auto first = S::load(values);
    const auto second = S::load(values + 16);
    check.add(first);
    check.add(second);
    M::store_activations(to + k, first, second);
  }
  if (check.ordinary()) return Activations::kOrdinary;
  const bool fits = sizeof(typename M::Element) == sizeof(float) || check.bf16();
  return fits ? Activations::kUnusual : Activations::kUnfit;
}

}  // namespace
}  // namespace tidemill
