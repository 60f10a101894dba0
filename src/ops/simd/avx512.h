// AVX-512 (F, BW, VL, DQ): the 16 canonical lanes in one register. Interface of all policies in
// this folder; simd/avx2.h has the same one with two registers.
//
// Included only by *_avx512.cpp, which is compiled with wider instructions than the rest of the
// program. The anonymous namespace gives everything instantiated with this policy internal
// linkage: a shared inline function could otherwise be merged by the linker into code that runs on
// an older CPU. For the same reason kernel headers call nothing of the standard library.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/simd/tables.h"

namespace tidemill {
namespace {

struct Avx512 {
  using F = __m512;     // 16 floats
  using I = __m512i;    // 16 int32
  using M = __mmask16;  // 16 conditions

  // The registers that an F is made of, and those that factors are loaded to.
  using Register = __m512;
  static constexpr int kRegisters = 1;
  using Element = float;
  using Vector = Register;
  static constexpr int kElements = 16;  // of a Vector
  static Register& part(F& x, int) { return x; }
  static Register load_register(const float* p) { return _mm512_loadu_ps(p); }
  // a * b + c; fused only where the product is exact (canonical.h).
  template <bool kFused>
  static Register multiply_add(Register a, Register b, Register c) {
    return kFused ? _mm512_fmadd_ps(a, b, c) : _mm512_add_ps(c, _mm512_mul_ps(a, b));
  }

  static void store_register(float* p, Register x) { _mm512_storeu_ps(p, x); }

  // Weight rows x tokens whose sums a tile keeps in registers.
  static constexpr int kTileRows = 4;
  static constexpr int kTileTokens = 4;
  static constexpr int decode_rows(int tokens) { return tokens <= 2 ? 8 : 4; }
  // Registers of one head's output in the value product of attention.
  static constexpr int kValueRegisters = 4;

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  // The second operand where either is NaN.
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }

  static I seti(int32_t x) { return _mm512_set1_epi32(x); }
  static I bits(F x) { return _mm512_castps_si512(x); }
  static F floats(I x) { return _mm512_castsi512_ps(x); }
  static I addi(I a, I b) { return _mm512_add_epi32(a, b); }
  static I andi(I a, I b) { return _mm512_and_si512(a, b); }
  static I ori(I a, I b) { return _mm512_or_si512(a, b); }
  template <int kBits>
  static I left(I a) {
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>
  static I right(I a) {
    return _mm512_srli_epi32(a, kBits);
  }
  static I to_int(F x) { return _mm512_cvttps_epi32(x); }

  static M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static M is_nan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
  static F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }

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
  static I add16(I a, I b) { return _mm512_add_epi16(a, b); }
  static I max16(I a, I b) { return _mm512_max_epu16(a, b); }
  static I min16(I a, I b) { return _mm512_min_epu16(a, b); }
  static bool all_equal(I a, I b) { return _mm512_cmpneq_epi32_mask(a, b) == 0; }

  // ---- widening 32 columns into the odd and the even ones (canonical.h, pair lanes)
  static void split_pairs(F first, F second, F& odd, F& even) {
    const I evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    odd = _mm512_permutex2var_ps(first, addi(evens, seti(1)), second);
    even = _mm512_permutex2var_ps(first, evens, second);
  }
  static I pairs(const void* p) { return _mm512_loadu_si512(p); }
  // 32 E4M3 codes times 2^(scale - 127), whose largest magnitude (a byte) joins `largest` at least
  // where it is that of a NaN; as halves their exponents are 8 too small.
  static void e4m3_pairs(const void* p, uint8_t scale, F& odd, F& even, __m256i& largest) {
    const __m256i codes = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    largest = byte_max(largest, byte_and(codes, byte_set(0x7F)));
    const __m256i half = _mm256_set1_epi16(static_cast<int16_t>(0xBF80));
    const F factor = set(power_of_two(scale + 8));
    const auto widen = [&](__m256i words) {  // the high byte of every word
      return mul(_mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(words, 1), half)), factor);
    };
    odd = widen(codes);
    even = widen(_mm256_slli_epi16(codes, 8));
  }
  // 32 E2M1 codes times 2^(scale - 127).
  static void e2m1_pairs(const void* p, uint8_t scale, F& odd, F& even) {
    const F table =
        mul(set(power_of_two(scale)),
            _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6));
    const I codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    odd = _mm512_permutexvar_ps(right<4>(codes), table);
    even = _mm512_permutexvar_ps(codes, table);  // reads 4 bits
  }

  // ---- widening in order
  static F bf16(const void* p) {
    const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return floats(left<16>(_mm512_cvtepu16_epi32(half)));
  }
  // 16 E4M3 codes, times 2^-8: seen as halves their exponents are 8 too small.
  static F e4m3(const void* p) {
    const __m128i codes = _mm_loadu_si128(static_cast<const __m128i*>(p));
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7),
                                            _mm256_set1_epi16(static_cast<int16_t>(0xBF80)));
    return _mm512_cvtph_ps(halves);
  }
  // 32 E2M1 codes in 16 bytes, times scale.
  static void e2m1(const void* p, F scale, F& first, F& second) {
    const F table = mul(scale, _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f,
                                              -2, -3, -4, -6));
    // A dword holds 8 codes: every lane gets its dword, shifted until its code is lowest.
    const I shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const auto* word = static_cast<const char*>(p);
    const I low = _mm512_mask_broadcastd_epi32(_mm512_broadcastd_epi32(_mm_loadu_si32(word)),
                                               0xFF00, _mm_loadu_si32(word + 4));
    const I high = _mm512_mask_broadcastd_epi32(_mm512_broadcastd_epi32(_mm_loadu_si32(word + 8)),
                                                0xFF00, _mm_loadu_si32(word + 12));
    first = _mm512_permutexvar_ps(_mm512_srlv_epi32(low, shift), table);
    second = _mm512_permutexvar_ps(_mm512_srlv_epi32(high, shift), table);
  }

  // ---- across lanes
  // The canonical tree of canonical.h: i and i+8, i+4, i+2, i+1.
  static float reduce(F x) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
  }
  // The same tree for four registers at once.
  static void reduce4(F a, F b, F c, F d, float* out) {
    const __m256 ab = fold8(a, b);  // a: 4 lanes, b: 4 lanes
    const __m256 cd = fold8(c, d);
    const __m256 x = _mm256_add_ps(
        _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd))),
        _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd))));
    // x: a a c c | b b d d
    const __m256 y = _mm256_add_ps(x, _mm256_movehdup_ps(x));
    const __m128 low = _mm256_castps256_ps128(y);
    const __m128 high = _mm256_extractf128_ps(y, 1);
    // a . c . and b . d . interleave to a b c d
    _mm_storeu_ps(out, _mm_blend_ps(low, _mm_moveldup_ps(high), 0b1010));
  }
  static float largest(F x) { return _mm512_reduce_max_ps(x); }

  // Exchanges lanes 2i and 2i + 1.
  static F swap_pairs(F x) { return _mm512_permute_ps(x, 0b10110001); }

  // A 4 x 4 matrix in one F: column j in every column, row i in every row.
  template <int kColumn>
  static F spread_column(F x) {
    return _mm512_permute_ps(x, kColumn * 0x55);
  }
  template <int kRow>
  static F spread_row(F x) {
    return _mm512_shuffle_f32x4(x, x, kRow * 0x55);
  }

 private:
  // Lanes i + (i+8), then i + (i+4), of two registers.
  static __m256 fold8(F a, F b) {
    const __m256 a8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m256 b8 = _mm256_add_ps(_mm512_castps512_ps256(b), _mm512_extractf32x8_ps(b, 1));
    return _mm256_add_ps(_mm256_permute2f128_ps(a8, b8, 0x20),
                         _mm256_permute2f128_ps(a8, b8, 0x31));
  }
};

}  // namespace
}  // namespace tidemill
