// Products in BF16: VDPBF16PS adds, in each of the 16 lanes, the product of the odd elements and
// then that of the even ones, each rounded once: the pair lanes of canonical.h, 32 columns at a
// time. It takes subnormal numbers for zero, so only ordinary values may reach it (cpu_matmul.h).
//
// Included only by *_avx512bf16.cpp; see simd/avx512.h.
#pragma once

#include "ops/linear/cpu_matmul.h"
#include "ops/simd/avx512.h"
#include "ops/simd/tables.h"

namespace tidemill {
namespace {

// The 16 values of E2M1 for every scale byte, each table twice because an index has 5 bits. A model
// uses a dozen of the tables: they stay in L1.
struct E2m1Tables {
  uint16_t value[256][32] = {};
  constexpr E2m1Tables() {
    for (int scale = 0; scale < 256; ++scale) {
      for (int code = 0; code < 32; ++code) value[scale][code] = e2m1_as_bf16(code, scale);
    }
  }
};
alignas(64) constexpr E2m1Tables kE2m1Tables;

struct HalvesBf16;

struct Avx512Bf16 : Avx512 {
  using Float = Avx512;
  using Halves = HalvesBf16;  // for one token, where they are cheaper to widen
  template <WeightFormat kFormat>
  static constexpr bool kInHalves = kFormat == WeightFormat::kFp4Row;
  using Element = uint16_t;
  using Vector = __m512i;  // 32 bf16 values
  static constexpr int kElements = 32;
  static constexpr int kVectors = 1;
  static constexpr int kTileTokens = 6;
  static constexpr int kDecodeTokens = 8;
  static constexpr int decode_rows(int tokens) { return tokens <= 2 ? 8 : tokens <= 6 ? 4 : 2; }

  static Vector load_register(const Element* p) { return _mm512_loadu_si512(p); }
  static void store_register(Element* p, Vector x) { _mm512_storeu_si512(p, x); }
  template <bool kFused>
  static Register multiply_add(Vector a, Vector b, Register sum) {
    static_assert(kFused);
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }

  static void planes(const Element* p, F& odd, F& even) {
    const __m512i words = load_register(p);
    odd = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-0x10000)));
    even = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  }
  // Of values that bf16 represents.
  static void store_activations(Element* p, F first, F second) {
    const __m512i odd_words =
        _mm512_add_epi16(_mm512_set1_epi16(1),
                         _mm512_slli_epi16(_mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22,
                                                            21, 20, 19, 18, 17, 16, 15, 14, 13, 12,
                                                            11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                           1));
    store_register(p, _mm512_permutex2var_epi16(_mm512_castps_si512(first), odd_words,
                                                _mm512_castps_si512(second)));
  }

  // What was seen of the weights: see ordinary().
  struct Seen {
    __m512i largest = _mm512_setzero_si512();
    __m512i smallest = _mm512_set1_epi16(-1);
    __m256i code = _mm256_setzero_si256();
    void join(const Seen& other) {
      largest = _mm512_max_epu16(largest, other.largest);
      smallest = _mm512_min_epu16(smallest, other.smallest);
      code = _mm256_max_epu8(code, other.code);
    }
  };

  template <WeightFormat kFormat>
  static void widen(const uint8_t* p, const uint8_t* scale, Vector (&out)[kVectors], Seen& seen) {
    if constexpr (kFormat == WeightFormat::kBf16) {
      out[0] = _mm512_loadu_si512(p);
      const __m512i magnitude = _mm512_add_epi16(out[0], out[0]);
      seen.largest = _mm512_max_epu16(seen.largest, magnitude);
      seen.smallest =
          _mm512_min_epu16(seen.smallest, _mm512_add_epi16(magnitude, _mm512_set1_epi16(-1)));
    } else if constexpr (kFormat == WeightFormat::kFp8Block) {
      const __m256i codes = load_codes(p);
      const __m256i magnitude = _mm256_add_epi8(codes, codes);
      seen.code = _mm256_max_epu8(seen.code, magnitude);
      out[0] = e4m3(codes, *scale);
    } else {
      static_assert(kFormat == WeightFormat::kFp4Row);
      out[0] = e2m1(p, *scale);
    }
  }
  // A block of several rows. Few blocks of FP8 have a subnormal code.
  template <WeightFormat kFormat, class Rows, int kRows>
  static void widen_rows(const Rows& rows, Vector (&out)[kRows][kVectors], Seen& seen) {
    if constexpr (kFormat == WeightFormat::kFp8Block) {
      __m256i smallest = _mm256_set1_epi8(-1);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m256i codes = load_codes(rows.data(r));
        const __m256i magnitude = _mm256_add_epi8(codes, codes);
        seen.code = _mm256_max_epu8(seen.code, magnitude);
        smallest = _mm256_min_epu8(smallest, magnitude);
        out[r][0] = e4m3_normal(codes, *rows.scale(r));
      }
      if (_mm256_cmplt_epu8_mask(smallest, _mm256_set1_epi8(0x10)) == 0) [[likely]]
        return;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) out[r][0] = e4m3(load_codes(rows.data(r)), *rows.scale(r));
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) widen<kFormat>(rows.data(r), rows.scale(r), out[r], seen);
    }
  }
  template <WeightFormat kFormat>
  static bool ordinary(const Seen& seen) {
    if constexpr (kFormat == WeightFormat::kBf16) {
      return _mm512_cmpgt_epu16_mask(seen.largest,
                                     _mm512_set1_epi16(static_cast<int16_t>(kLargestBf16))) == 0 &&
             _mm512_cmplt_epu16_mask(seen.smallest,
                                     _mm512_set1_epi16(static_cast<int16_t>(kSmallestBf16))) == 0;
    } else if constexpr (kFormat == WeightFormat::kFp8Block) {
      return _mm256_cmpeq_epi8_mask(seen.code, _mm256_set1_epi8(-2)) == 0;
    }
    return true;
  }

 private:
  static __m256i load_codes(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }

  // Exponent and mantissa into place, then the scale onto the exponent. Not for subnormal codes.
  static Vector e4m3_normal(__m256i codes, uint8_t scale) {
    const __m512i value = _mm512_and_si512(_mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 4),
                                           _mm512_set1_epi16(static_cast<int16_t>(0x87F0)));
    return _mm512_add_epi16(value, _mm512_set1_epi16(static_cast<int16_t>((scale - 7) * 128)));
  }
  // The subnormal ones (and zero) from a table of 8 that carries the scale.
  static Vector e4m3(__m256i codes, uint8_t scale) {
    // m * 2^-9 as bf16, exponents relative to that of code 0
    const __m512i subnormal = _mm512_maskz_add_epi16(
        0xFEFEFEFEu, _mm512_set1_epi16(static_cast<int16_t>((scale - 7) * 128)),
        _mm512_broadcast_i32x4(_mm_setr_epi16(0, -0x100, -0x80, -0x40, 0, 0x20, 0x40, 0x60)));
    const __m512i code = _mm512_cvtepi8_epi16(codes);
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    const __m512i signed_subnormal = _mm512_ternarylogic_epi32(
        _mm512_permutexvar_epi16(code, subnormal), code, _mm512_set1_epi16(-0x8000), kOrAnd);
    return _mm512_mask_mov_epi16(e4m3_normal(codes, scale),
                                 _mm512_testn_epi16_mask(code, _mm512_set1_epi16(0x78)),
                                 signed_subnormal);
  }

  // Both words of a lane begin with their code: the low nibble of its byte and the high one.
  static Vector e2m1(const uint8_t* p, uint8_t scale) {
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i codes = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
    return _mm512_permutexvar_epi16(codes, _mm512_load_si512(kE2m1Tables.value[scale]));
  }
};

// FP4 for one token: half registers, because VPMULTISHIFTQB takes 8 bytes from memory to all their
// quarters and so replaces three shuffles of a whole one.
struct HalvesBf16 {
  using Vector = __m256i;  // 16 bf16 values
  struct F {
    __m256 half[2];
  };
  static F zero() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
  static __m512 whole(F sum) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(sum.half[0]), sum.half[1], 1);
  }
  // 16 codes at p, a word each; the table ignores what is above them.
  static Vector widen(const uint8_t* p, uint8_t scale) {
    int64_t codes;
    __builtin_memcpy(&codes, p, sizeof(codes));
    constexpr int64_t kFour = 0x000C000800040000;  // bit offsets
    constexpr int64_t kNext = 0x0010001000100010;
    const __m256i words = _mm256_multishift_epi64_epi8(
        _mm256_setr_epi64x(kFour, kFour + kNext, kFour + 2 * kNext, kFour + 3 * kNext),
        _mm256_set1_epi64x(codes));
    return _mm256_permutexvar_epi16(
        words, _mm256_load_si256(reinterpret_cast<const __m256i*>(kE2m1Tables.value[scale])));
  }
  static __m256 multiply_add(Vector a, const uint16_t* x, __m256 sum) {
    return _mm256_dpbf16_ps(sum, (__m256bh)a,
                            (__m256bh)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }
};

}  // namespace
}  // namespace tidemill
