// The arithmetic of canonical.h and formats.h on the 16 lanes of a policy S (simd/avx512.h), bit
// for bit. Included only by kernels of one instruction set; see there.
#pragma once

#include <cstdint>

#include "ops/simd/tables.h"

namespace tidemill {
namespace {

// Only where the product is exact may a kernel fuse (canonical.h).
template <class S, bool kFused>
typename S::F multiply_add(typename S::F a, typename S::F b, typename S::F c) {
  if constexpr (kFused) return S::fma(a, b, c);
  return S::add(c, S::mul(a, b));
}

template <class S>
typename S::F round_bf16(typename S::F x) {
  using I = typename S::I;
  const I bits = S::bits(x);
  const I upper = S::seti(static_cast<int32_t>(0xFFFF0000u));
  const I odd = S::andi(S::template right<16>(bits), S::seti(1));
  const I rounded = S::andi(S::addi(S::addi(bits, S::seti(0x7FFF)), odd), upper);
  const I quiet = S::ori(S::andi(bits, upper), S::seti(0x00400000));
  return S::select(S::is_nan(x), S::floats(quiet), S::floats(rounded));
}

template <class S>
typename S::F absolute(typename S::F x) {
  return S::floats(S::andi(S::bits(x), S::seti(0x7FFFFFFF)));
}

template <class S>
typename S::F exp(typename S::F x) {
  using F = typename S::F;
  const auto step = [](F p, F r, float c) { return S::add(S::mul(p, r), S::set(c)); };
  const F y = S::min(S::set(88.37f), x);  // NaN stays
  const F round = S::set(12582912.0f);
  const F n = S::sub(S::add(S::mul(y, S::set(1.44269504f)), round), round);
  F r = S::sub(y, S::mul(n, S::set(0.693359375f)));
  r = S::sub(r, S::mul(n, S::set(-2.12194440e-4f)));
  F p = S::set(1.9875691500e-4f);
  p = step(p, r, 1.3981999507e-3f);
  p = step(p, r, 8.3334519073e-3f);
  p = step(p, r, 4.1665795894e-2f);
  p = step(p, r, 1.6666665459e-1f);
  p = step(p, r, 5.0000001201e-1f);
  p = S::add(S::mul(p, S::mul(r, r)), r);
  p = S::add(p, S::set(1.0f));
  const F power = S::floats(S::template left<23>(S::addi(S::to_int(n), S::seti(127))));
  const F result = S::select(S::less(x, S::set(-87.33f)), S::zero(), S::mul(p, power));
  return S::select(S::is_nan(x), x, result);
}

template <class S>
typename S::F sigmoid(typename S::F x) {
  const auto one = S::set(1.0f);
  return S::div(one, S::add(one, exp<S>(S::floats(S::addi(
                                     S::bits(x), S::seti(static_cast<int32_t>(0x80000000u)))))));
}

// Q8 of 32 values (formats.h q8_round), as values; out may be x. Multiplying by the reciprocal of a
// power of two is the division.
template <class S>
void q8_block(const float* x, float* out) {
  using F = typename S::F;
  using I = typename S::I;
  const F first = S::load(x);
  const F second = S::load(x + 16);
  // max() takes its second operand on NaN: like std::max in absolute_max, NaN is passed over
  float amax = S::largest(S::max(absolute<S>(second), S::max(absolute<S>(first), S::zero())));
  amax = amax < 1e-4f ? 1e-4f : amax;
  const uint32_t v = __builtin_bit_cast(uint32_t, amax * (1.0f / 448.0f));
  const auto byte = static_cast<int32_t>((v >> 23) + ((v & 0x7FFFFFu) != 0));
  // an infinity among the values: byte 255, NaN
  const F scale = S::set(byte == 255 ? __builtin_nanf("") : power_of_two(byte));
  const F reciprocal = S::set(byte == 255 ? __builtin_nanf("") : power_of_two(254 - byte));
  const auto quantise = [&](F value) {
    F y = S::mul(value, reciprocal);
    y = S::max(S::set(-448.0f), S::min(S::set(448.0f), y));
    const I sign = S::andi(S::bits(y), S::seti(static_cast<int32_t>(0x80000000u)));
    const I magnitude = S::andi(S::bits(y), S::seti(0x7FFFFFFF));
    const I odd = S::andi(S::template right<20>(magnitude), S::seti(1));
    const I normal = S::andi(S::addi(S::addi(magnitude, S::seti(0x7FFFF)), odd),
                             S::seti(static_cast<int32_t>(0xFFF00000u)));
    const F grid = S::set(0x1p14f);  // below 2^-6: multiples of 2^-9
    const F subnormal = S::sub(S::add(S::floats(magnitude), grid), grid);
    const F rounded =
        S::select(S::less(S::floats(magnitude), S::set(0x1p-6f)), subnormal, S::floats(normal));
    return S::mul(S::floats(S::ori(S::bits(rounded), sign)), scale);
  };
  S::store(out, quantise(first));
  S::store(out + 16, quantise(second));
}

}  // namespace
}  // namespace tidemill
