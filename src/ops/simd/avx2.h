// AVX2 + FMA + F16C: the 16 canonical lanes in two registers. See simd/avx512.h for the interface
// and for why this header belongs to *_avx2.cpp alone.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/simd/tables.h"

namespace tidemill {
namespace {

// The 16 values of E2M1 as bf16 for every scale byte: their low bytes, then their high ones.
struct E2m1Bytes {
  uint8_t value[256][2][16] = {};
  constexpr E2m1Bytes() {
    for (int scale = 0; scale < 256; ++scale) {
      for (int code = 0; code < 16; ++code) {
        const uint16_t word = e2m1_as_bf16(code, scale);
        value[scale][0][code] = static_cast<uint8_t>(word);
        value[scale][1][code] = static_cast<uint8_t>(word >> 8);
      }
    }
  }
};
alignas(64) constexpr E2m1Bytes kE2m1Bytes;

// 2^(scale - 127) and the 120 by which the exponents of E4M3 differ from those of bf16, as
// something to add to two bf16 words.
struct E4m3Exponents {
  int32_t value[256] = {};
  constexpr E4m3Exponents() {
    for (int scale = 8; scale < 240; ++scale) value[scale] = (scale - 7) * 128 * 0x10001;
  }
};
alignas(64) constexpr E4m3Exponents kE4m3Exponents;

struct Avx2 {
  struct F {
    __m256 low, high;  // lanes 0..7, 8..15
  };
  struct I {
    __m256i low, high;
  };
  using M = F;  // all bits of a lane set or clear

  using Register = __m256;
  static constexpr int kRegisters = 2;
  using Element = float;
  using Vector = Register;
  static constexpr int kElements = 8;
  static Register& part(F& x, int i) { return i == 0 ? x.low : x.high; }
  static Register load_register(const float* p) { return _mm256_loadu_ps(p); }
  template <bool kFused>
  static Register multiply_add(Register a, Register b, Register c) {
    return kFused ? _mm256_fmadd_ps(a, b, c) : _mm256_add_ps(c, _mm256_mul_ps(a, b));
  }

  static void store_register(float* p, Register x) { _mm256_storeu_ps(p, x); }

  static constexpr int kTileRows = 4;
  static constexpr int kTileTokens = 3;
  static constexpr int decode_rows(int tokens) { return tokens == 1 ? 4 : tokens <= 3 ? 2 : 1; }
  static constexpr int kValueRegisters = 1;

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
  }
  static F add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static F sub(F a, F b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  static F mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static F div(F a, F b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
  static F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static F min(F a, F b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
  static F max(F a, F b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }

  static I seti(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static I bits(F x) { return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)}; }
  static F floats(I x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }
  static I addi(I a, I b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
  }
  static I andi(I a, I b) {
    return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
  }
  static I ori(I a, I b) {
    return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
  }
  template <int kBits>
  static I left(I a) {
    return {_mm256_slli_epi32(a.low, kBits), _mm256_slli_epi32(a.high, kBits)};
  }
  template <int kBits>
  static I right(I a) {
    return {_mm256_srli_epi32(a.low, kBits), _mm256_srli_epi32(a.high, kBits)};
  }
  static I to_int(F x) { return {_mm256_cvttps_epi32(x.low), _mm256_cvttps_epi32(x.high)}; }

  static M less(F a, F b) {
    return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)};
  }
  static M is_nan(F a) {
    return {_mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q), _mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q)};
  }
  static F select(M m, F yes, F no) {
    return {_mm256_blendv_ps(no.low, yes.low, m.low), _mm256_blendv_ps(no.high, yes.high, m.high)};
  }

  // Into L2: an L1 has a dozen or two misses at a time, which is less than memory can deliver.
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

  // ---- 32 bytes
  static __m256i byte_set(uint8_t x) { return _mm256_set1_epi8(static_cast<char>(x)); }
  static __m256i byte_load(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static __m256i byte_sub(__m256i a, __m256i b) { return _mm256_sub_epi8(a, b); }
  static __m256i byte_and(__m256i a, __m256i b) { return _mm256_and_si256(a, b); }
  static __m256i byte_max(__m256i a, __m256i b) { return _mm256_max_epu8(a, b); }
  static bool bytes_at_most(__m256i x, uint8_t limit) {
    const __m256i bound = byte_set(limit);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(byte_max(x, bound), bound)) == -1;
  }

  // ---- 16-bit words of an I
  static I add16(I a, I b) {
    return {_mm256_add_epi16(a.low, b.low), _mm256_add_epi16(a.high, b.high)};
  }
  static I max16(I a, I b) {
    return {_mm256_max_epu16(a.low, b.low), _mm256_max_epu16(a.high, b.high)};
  }
  static I min16(I a, I b) {
    return {_mm256_min_epu16(a.low, b.low), _mm256_min_epu16(a.high, b.high)};
  }
  static bool all_equal(I a, I b) {
    const __m256i equal =
        _mm256_and_si256(_mm256_cmpeq_epi32(a.low, b.low), _mm256_cmpeq_epi32(a.high, b.high));
    return _mm256_movemask_epi8(equal) == -1;
  }

  // ---- widening 32 columns into the odd and the even ones
  static void split_pairs(F first, F second, F& odd, F& even) {
    odd = {split<0b11011101>(first), split<0b11011101>(second)};
    even = {split<0b10001000>(first), split<0b10001000>(second)};
  }
  static I pairs(const void* p) {
    const auto* half = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1)};
  }
  // 32 E4M3 codes times 2^(scale - 127). Exponent and mantissa into place as bf16, then the scale
  // onto the exponent; a subnormal code, which few blocks have, needs a multiplication.
  static void e4m3_pairs(const void* p, uint8_t scale, F& odd, F& even, __m256i& largest) {
    const __m256i codes = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi8(0x7F));
    const __m256i next = _mm256_add_epi8(magnitude, _mm256_set1_epi8(1));  // negative for NaN
    if (_mm256_movemask_epi8(_mm256_cmpgt_epi8(next, _mm256_set1_epi8(8))) != -1) [[unlikely]] {
      largest = _mm256_max_epu8(largest, magnitude);
      const F factor = floats(seti((scale + 8) << 23));
      odd = mul(halves_of_e4m3(codes), factor);
      even = mul(halves_of_e4m3(_mm256_slli_epi16(codes, 8)), factor);
      return;
    }
    // Pair j beside pair j + 8.
    const __m256i pairs = _mm256_shuffle_epi8(
        _mm256_permute4x64_epi64(codes, 0b11011000),
        _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15,  //
                         0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    const __m256i exponent = _mm256_set1_epi32(kE4m3Exponents.value[scale]);
    const __m256i in_place = kept(_mm256_set1_epi16(static_cast<int16_t>(0x87F0)));
    const auto widen = [&](__m256i words) {  // the high byte of every word
      const __m256i code = _mm256_and_si256(_mm256_srai_epi16(words, 4), in_place);
      return unpack_bf16(_mm256_add_epi16(code, exponent));
    };
    odd = widen(pairs);
    even = widen(_mm256_slli_epi16(pairs, 8));
  }
  // 32 E2M1 codes times 2^(scale - 127). In both halves the codes of even columns, then those of
  // odd ones; of columns 2j and 2j + 16 those of the first half of the lanes come first.
  static void e2m1_pairs(const void* p, uint8_t scale, F& odd, F& even) {
    const __m256i bytes = _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p))),
        _mm256_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 0, 8, 1, 9, 2, 10, 3, 11,  //
                         4, 12, 5, 13, 6, 14, 7, 15, 4, 12, 5, 13, 6, 14, 7, 15));
    const __m256i codes = _mm256_and_si256(_mm256_srlv_epi64(bytes, _mm256_setr_epi64x(0, 4, 0, 4)),
                                           _mm256_set1_epi8(0x0F));
    const auto look_up = [&](const uint8_t(&table)[16]) {
      return _mm256_shuffle_epi8(
          _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table))),
          codes);
    };
    const __m256i low = look_up(kE2m1Bytes.value[scale][0]);
    const __m256i high = look_up(kE2m1Bytes.value[scale][1]);
    even = unpack_bf16(_mm256_unpacklo_epi8(low, high));
    odd = unpack_bf16(_mm256_unpackhi_epi8(low, high));
  }

  // ---- widening in order
  static F bf16(const void* p) {
    const auto* half = static_cast<const __m128i*>(p);
    return floats(left<16>({_mm256_cvtepu16_epi32(_mm_loadu_si128(half)),
                            _mm256_cvtepu16_epi32(_mm_loadu_si128(half + 1))}));
  }
  static F e4m3(const void* p) {
    const __m128i codes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7),
                                            _mm256_set1_epi16(static_cast<int16_t>(0xBF80)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  }
  static void e2m1(const void* p, F scale, F& first, F& second) {
    const __m256 table = _mm256_mul_ps(scale.low, _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6));
    const auto* word = static_cast<const char*>(p);
    first = {e2m1_word(word, table), e2m1_word(word + 4, table)};
    second = {e2m1_word(word + 8, table), e2m1_word(word + 12, table)};
  }

  // ---- across lanes
  static float reduce(F x) {
    const __m256 a = _mm256_add_ps(x.low, x.high);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
  }
  static void reduce4(F a, F b, F c, F d, float* out) {
    const __m256 ab = fold8(a, b);
    const __m256 cd = fold8(c, d);
    const __m256 x = _mm256_add_ps(
        _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd))),
        _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd))));
    const __m256 y = _mm256_add_ps(x, _mm256_movehdup_ps(x));
    const __m128 low = _mm256_castps256_ps128(y);
    const __m128 high = _mm256_extractf128_ps(y, 1);
    _mm_storeu_ps(out, _mm_blend_ps(low, _mm_moveldup_ps(high), 0b1010));
  }
  static float largest(F x) {
    const __m256 a = _mm256_max_ps(x.low, x.high);
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
  }

  static F swap_pairs(F x) {
    return {_mm256_permute_ps(x.low, 0b10110001), _mm256_permute_ps(x.high, 0b10110001)};
  }
  template <int kColumn>
  static F spread_column(F x) {
    return {_mm256_permute_ps(x.low, kColumn * 0x55), _mm256_permute_ps(x.high, kColumn * 0x55)};
  }
  template <int kRow>
  static F spread_row(F x) {
    const __m256 half = kRow < 2 ? x.low : x.high;
    const __m256 row = _mm256_permute2f128_ps(half, half, (kRow % 2) * 0x11);
    return {row, row};
  }

 private:
  template <int kEvery>
  static __m256 split(F x) {
    const __m256 halves = _mm256_shuffle_ps(x.low, x.high, kEvery);
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(halves), 0b11011000));
  }
  // A constant that the compiler shall not make anew in every round of a loop.
  static __m256i kept(__m256i x) {
    asm("" : "+x"(x));
    return x;
  }
  // Of dwords of two bf16 words each: lanes 0..7 are the low ones, 8..15 the high ones.
  static F unpack_bf16(__m256i words) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(words, kept(_mm256_set1_epi32(-0x10000))))};
  }
  // The high byte of every word.
  static F halves_of_e4m3(__m256i words) {
    const __m256i halves = _mm256_and_si256(_mm256_srai_epi16(words, 1),
                                            _mm256_set1_epi16(static_cast<int16_t>(0xBF80)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  }
  // 8 codes in a dword: magnitudes from the table (vpermps reads 3 bits), bit 3 becomes the sign.
  static __m256 e2m1_word(const char* p, __m256 table) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof(word));
    const __m256i codes =
        _mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28),
                                          _mm256_set1_epi32(static_cast<int32_t>(0x80000000u)));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(table, codes), _mm256_castsi256_ps(sign));
  }
  static __m256 fold8(F a, F b) {
    const __m256 a8 = _mm256_add_ps(a.low, a.high);
    const __m256 b8 = _mm256_add_ps(b.low, b.high);
    return _mm256_add_ps(_mm256_permute2f128_ps(a8, b8, 0x20),
                         _mm256_permute2f128_ps(a8, b8, 0x31));
  }
};

}  // namespace
}  // namespace tidemill
