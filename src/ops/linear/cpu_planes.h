// Products in float32: 32 columns are the 16 odd ones, then the 16 even ones, so that adding them
// 16 at a time is the order of pair lanes (canonical.h). A matrix of float32 keeps its columns and
// the order of plain lanes. S: simd/avx512.h.
#pragma once

#include "ops/linear/cpu_matmul.h"
#include "ops/simd/math.h"

namespace tidemill {
namespace {

template <class S>
struct Planes : S {
  using Float = S;
  using F = typename S::F;
  using S::kElements;
  using S::kRegisters;
  using typename S::Element;
  using typename S::Vector;
  static constexpr int kVectors = 2 * kRegisters;  // of 32 columns
  // Tokens of a tile; of one that widens its rows and does not keep them.
  static constexpr int kTileTokens = kRegisters == 1 ? 6 : 3;
  static constexpr int kDecodeTokens = kRegisters == 1 ? 6 : 4;

  template <WeightFormat kFormat>
  static constexpr bool kInHalves = false;

  static void planes(const Element* p, F& odd, F& even) {
    odd = S::load(p);
    even = S::load(p + 16);
  }
  static void store_activations(Element* p, F first, F second) {
    F odd;
    F even;
    S::split_pairs(first, second, odd, even);
    S::store(p, odd);
    S::store(p + 16, even);
  }

  // What was seen of the weights: see ordinary().
  struct Seen {
    typename S::I largest = S::seti(0);
    typename S::I smallest = S::seti(-1);
    decltype(S::byte_set(0)) code = S::byte_set(0);
  };

  // 32 columns at p, with the scale byte at `scale`.
  template <WeightFormat kFormat>
  static void widen(const uint8_t* p, const uint8_t* scale, Vector (&out)[kVectors], Seen& seen) {
    F odd;
    F even;
    if constexpr (kFormat == WeightFormat::kF32) {
      odd = S::load(reinterpret_cast<const float*>(p));
      even = S::load(reinterpret_cast<const float*>(p + 64));
    } else if constexpr (kFormat == WeightFormat::kBf16) {
      const auto words = S::pairs(p);
      const auto magnitude = S::add16(words, words);
      seen.largest = S::max16(seen.largest, magnitude);
      seen.smallest = S::min16(seen.smallest, S::add16(magnitude, S::seti(-1)));
      odd = S::floats(S::andi(words, S::seti(-0x10000)));
      even = S::floats(S::template left<16>(words));
    } else if constexpr (kFormat == WeightFormat::kFp8Block) {
      S::e4m3_pairs(p, *scale, odd, even, seen.code);
    } else {
      static_assert(kFormat == WeightFormat::kFp4Row);
      S::e2m1_pairs(p, *scale, odd, even);
    }
    for (int i = 0; i < kRegisters; ++i) {
      out[i] = S::part(odd, i);
      out[kRegisters + i] = S::part(even, i);
    }
  }
  template <WeightFormat kFormat>
  static bool ordinary(const Seen& seen) {
    if constexpr (kFormat == WeightFormat::kBf16) {
      const auto largest = S::seti(static_cast<int32_t>(kLargestBf16 * 0x10001u));
      const auto smallest = S::seti(static_cast<int32_t>(kSmallestBf16 * 0x10001u));
      return S::all_equal(S::max16(seen.largest, largest), largest) &&
             S::all_equal(S::min16(seen.smallest, smallest), smallest);
    } else if constexpr (kFormat == WeightFormat::kFp8Block) {
      return S::bytes_at_most(seen.code, 0x7E);
    }
    return true;
  }
};

}  // namespace
}  // namespace tidemill
