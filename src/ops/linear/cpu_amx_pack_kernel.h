// Activations into the tiles that linear/cpu_amx_kernel.h multiplies by, and sums out of them.
#pragma once

#include "ops/linear/cpu_amx_shape.h"
#include "ops/simd/avx512bf16.h"
#include "ops/simd/math.h"

namespace tidemill {
namespace {

inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }

// Element j of v[i] becomes element i of v[j]: within quarters by interleaving, then the quarters.
inline void transpose(__m512i (&v)[16]) {
  __m512i quarter[16];
#pragma GCC unroll 4
  for (int g = 0; g < 16; g += 4) {
    const __m512i low01 = _mm512_unpacklo_epi32(v[g], v[g + 1]);
    const __m512i high01 = _mm512_unpackhi_epi32(v[g], v[g + 1]);
    const __m512i low23 = _mm512_unpacklo_epi32(v[g + 2], v[g + 3]);
    const __m512i high23 = _mm512_unpackhi_epi32(v[g + 2], v[g + 3]);
    quarter[g] = _mm512_unpacklo_epi64(low01, low23);
    quarter[g + 1] = _mm512_unpackhi_epi64(low01, low23);
    quarter[g + 2] = _mm512_unpacklo_epi64(high01, high23);
    quarter[g + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(quarter[j], quarter[j + 4], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(quarter[j], quarter[j + 4], 0xEE);
    const __m512i c = _mm512_shuffle_i32x4(quarter[j + 8], quarter[j + 12], 0x44);
    const __m512i d = _mm512_shuffle_i32x4(quarter[j + 8], quarter[j + 12], 0xEE);
    v[j] = _mm512_shuffle_i32x4(a, c, 0x88);
    v[j + 4] = _mm512_shuffle_i32x4(a, c, 0xDD);
    v[j + 8] = _mm512_shuffle_i32x4(b, d, 0x88);
    v[j + 12] = _mm512_shuffle_i32x4(b, d, 0xDD);
  }
}

// Columns [0, n) of at most 16 rows of bf16: for every 32 columns, 16 rows of one pair of each
// token. n is a multiple of 32. One token's tile is its row.
inline void pack_tokens(const TokenRows& rows, int64_t n, std::byte* out) {
  const __mmask16 tokens = first_lanes(rows.count);
  for (int64_t block = 0; block < n / kTileColumns; ++block) {
    __m512i v[16];
    for (int64_t t = 0; t < rows.count; ++t) {
      v[t] = _mm512_loadu_si512(rows.row(t) + block * kTileLine);
    }
    std::byte* to = out + block * kTileLine * rows.count;
    if (rows.count == 1) {
      _mm512_storeu_si512(to, v[0]);
      continue;
    }
    for (int64_t t = rows.count; t < kTileSide; ++t) v[t] = _mm512_setzero_si512();
    transpose(v);
    for (int64_t i = 0; i < kTileSide; ++i) {
      _mm512_mask_storeu_epi32(to + i * 4 * rows.count, tokens, v[i]);
    }
  }
}

// Sums as the caller wants them.
inline __m512 finished(const MatmulArgs& a, __m512 sums) {
  if (a.store != Store::kBf16) return sums;
  const __m512 y = round_bf16<Avx512>(sums);
  return a.scale == 1 ? y : round_bf16<Avx512>(_mm512_mul_ps(y, _mm512_set1_ps(a.scale)));
}

// A tile of sums: line i is row `row` + i of the matrix by the tokens from `token` on; of one token
// there is one line of all rows. Only rows of the mask are stored.
inline void store_tile(const MatmulArgs& a, const std::byte* sums, int64_t row, __mmask16 rows,
                       int64_t token, int64_t tokens) {
  __m512i v[16];
  if (tokens == 1) {
    v[0] = _mm512_load_si512(sums);
  } else {
    for (int64_t i = 0; i < kTileSide; ++i) v[i] = _mm512_load_si512(sums + i * kTileLine);
    transpose(v);
  }
  float* to = a.y + token * a.y_stride + row - a.row_begin;
  for (int64_t t = 0; t < tokens; ++t, to += a.y_stride) {
    __m512 y = finished(a, _mm512_castsi512_ps(v[t]));
    if (a.store == Store::kAdd) y = _mm512_add_ps(_mm512_maskz_loadu_ps(rows, to), y);
    const bool whole_line = rows == 0xFFFF && reinterpret_cast<uintptr_t>(to) % kTileLine == 0;
    if (a.past_caches && whole_line) {
      _mm512_stream_ps(to, y);
    } else {
      _mm512_mask_storeu_ps(to, rows, y);
    }
  }
}

}  // namespace
}  // namespace tidemill
