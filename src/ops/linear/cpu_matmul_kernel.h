// Kernel of cpu_matmul.h over a policy S (simd/avx512.h). Two ways through a matrix:
//  - few tokens: the rows are widened in registers and used at once; memory bandwidth is the limit;
//  - many tokens: a block of rows is widened once into L1 and multiplied tile by tile.
// Both add in canonical order, so that the choice cannot be seen in a result.
#pragma once

#include "ops/linear/cpu_matmul.h"
#include "ops/simd/math.h"

namespace tidemill {
namespace {

constexpr int64_t kRowBlock = 8;       // rows widened together
constexpr int64_t kColumnBlock = 512;  // columns widened together: 16 KiB with kRowBlock
constexpr int64_t kTokenBlock = 32;    // tokens that share a widened block

// Ordinary rows have scales of 2^-60 .. 2^60 and no NaN code. Others are rare and go another way.
constexpr uint8_t kLowestScale = 67;
constexpr uint8_t kScaleRange = 120;

template <class S>
bool ordinary_scales(const uint8_t* scales, int64_t n) {
  auto largest = S::byte_set(0);
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const auto distance = S::byte_sub(S::byte_load(scales + i), S::byte_set(kLowestScale));
    largest = S::byte_max(largest, distance);
  }
  bool ordinary = S::bytes_at_most(largest, kScaleRange);
  for (; i < n; ++i) ordinary &= static_cast<uint8_t>(scales[i] - kLowestScale) <= kScaleRange;
  return ordinary;
}

// n a multiple of 32.
template <class S>
bool ordinary_codes(const uint8_t* codes, int64_t n) {
  auto largest = S::byte_set(0);
  for (int64_t i = 0; i < n; i += 32) {
    largest = S::byte_max(largest, S::byte_and(S::byte_load(codes + i), S::byte_set(0x7F)));
  }
  return S::bytes_at_most(largest, 0x7E);
}

// Rows of a matrix in one format. load(row, k): columns k .. k + 31, k a multiple of 32.
template <class S, WeightFormat kFormat>
struct Weights {
  using F = typename S::F;
  static constexpr bool kExactProducts =
      kFormat == WeightFormat::kFp8Block || kFormat == WeightFormat::kFp4Row;

  const uint8_t* data;
  const uint8_t* scales;
  int64_t cols;

  explicit Weights(const Matrix& w)
      : data(static_cast<const uint8_t*>(w.data)), scales(w.scales), cols(w.cols) {}

  void load(int64_t row, int64_t k, F& first, F& second) const {
    if constexpr (kFormat == WeightFormat::kF32) {
      const uint8_t* p = data + (row * cols + k) * 4;
      first = S::load(reinterpret_cast<const float*>(p));
      second = S::load(reinterpret_cast<const float*>(p + 64));
    } else if constexpr (kFormat == WeightFormat::kBf16) {
      const uint8_t* p = data + (row * cols + k) * 2;
      first = S::bf16(p);
      second = S::bf16(p + 32);
    } else if constexpr (kFormat == WeightFormat::kFp8Block) {
      const uint8_t* p = data + row * cols + k;
      const F scale = S::set(power_of_two(scales[(row / 32) * (cols / 32) + k / 32] + 8));
      first = S::mul(S::e4m3(p), scale);
      second = S::mul(S::e4m3(p + 16), scale);
    } else {
      static_assert(kFormat == WeightFormat::kFp4Row);
      const F scale = S::set(power_of_two(scales[row * (cols / 32) + k / 32]));
      S::e2m1(data + (row * cols + k) / 2, scale, first, second);
    }
  }

  // ordinary() reads a block of rows before they are multiplied. Without asking for the next block
  // during the products, waiting for memory and computing would take turns.
  void prefetch_next_block(int64_t row, int64_t k) const {
    if constexpr (kExactProducts) {
      const int64_t columns = (row + kRowBlock) * cols + k;
      S::prefetch(data + (kFormat == WeightFormat::kFp4Row ? columns / 2 : columns));
    }
  }

  bool ordinary(int64_t row, int64_t rows) const {
    const int64_t blocks = cols / 32;
    if constexpr (kFormat == WeightFormat::kFp8Block) {
      const int64_t first = row / 32;
      const int64_t last = (row + rows - 1) / 32;
      return ordinary_scales<S>(scales + first * blocks, (last - first + 1) * blocks) &&
             ordinary_codes<S>(data + row * cols, rows * cols);
    } else if constexpr (kFormat == WeightFormat::kFp4Row) {
      return ordinary_scales<S>(scales + row * blocks, rows * blocks);
    } else {
      return true;
    }
  }
};

// Finishes the sums of tokens [token, token + kTokens) and of `rows` rows from `row` on.
template <class S, int kTokens, int kRows>
void store_sums(const MatmulArgs& a, const typename S::F (&sum)[kTokens][kRows], int64_t row,
                int64_t rows, int64_t token) {
  constexpr int kSums = kTokens * kRows;
  float out[(kSums + 15) / 16 * 16] = {};
  const auto at = [&](int i) { return i < kSums ? sum[i / kRows][i % kRows] : S::zero(); };
  if constexpr (kSums == 1) {
    out[0] = S::reduce(sum[0][0]);
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; i += 4) S::reduce4(at(i), at(i + 1), at(i + 2), at(i + 3), out + i);
  }
  if (a.store == Store::kBf16) {
    for (int i = 0; i < kSums; i += 16) {
      const auto y = round_bf16<S>(S::load(out + i));
      S::store(out + i, a.scale == 1 ? y : round_bf16<S>(S::mul(y, S::set(a.scale))));
    }
  }
  float* y = a.y + token * a.y_stride + row - a.row_begin;
  for (int t = 0; t < kTokens; ++t, y += a.y_stride) {
    if (a.store == Store::kAdd) {
      for (int64_t r = 0; r < rows; ++r) y[r] += out[t * kRows + r];
    } else {
      for (int64_t r = 0; r < rows; ++r) y[r] = out[t * kRows + r];
    }
  }
}

// ---- few tokens

template <class S, WeightFormat kFormat, int kTokens, int kRows>
void multiply_rows(const MatmulArgs& a, int64_t row) {
  using F = typename S::F;
  constexpr bool kFused = Weights<S, kFormat>::kExactProducts;
  const Weights<S, kFormat> w(*a.w);
  const float* x[kTokens];
  for (int t = 0; t < kTokens; ++t) x[t] = a.x.row(t);
  F sum[kTokens][kRows];
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[t][r] = S::zero();
  }
  for (int64_t k = 0; k < w.cols; k += 32) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      F first;
      F second;
      w.load(row + r, k, first, second);
      w.prefetch_next_block(row + r, k);
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) {
        sum[t][r] = multiply_add<S, kFused>(first, S::load(x[t] + k), sum[t][r]);
        sum[t][r] = multiply_add<S, kFused>(second, S::load(x[t] + k + 16), sum[t][r]);
      }
    }
  }
  store_sums<S, kTokens, kRows>(a, sum, row, kRows, 0);
}

template <class S, WeightFormat kFormat, int kTokens>
void multiply_few(const MatmulArgs& a, int64_t begin, int64_t end) {
  constexpr int kRows = S::decode_rows(kTokens);
  for (; begin + kRows <= end; begin += kRows) multiply_rows<S, kFormat, kTokens, kRows>(a, begin);
  for (; begin < end; ++begin) multiply_rows<S, kFormat, kTokens, 1>(a, begin);
}

template <class S, WeightFormat kFormat>
void multiply_few(const MatmulArgs& a, int64_t begin, int64_t end) {
  switch (a.x.count) {
    case 1:
      return multiply_few<S, kFormat, 1>(a, begin, end);
    case 2:
      return multiply_few<S, kFormat, 2>(a, begin, end);
    case 3:
      return multiply_few<S, kFormat, 3>(a, begin, end);
    default:
      return multiply_few<S, kFormat, 4>(a, begin, end);
  }
}

// ---- many tokens

// sum[t][r] += widened row r . x[t] over n columns (a multiple of 16). One register's share of the
// lanes at a time, so that a tile of kTokens x kRows registers fits the register file.
template <class S, bool kFused, int kTokens, int kRows>
void multiply_tile(const float* w, int64_t w_stride, const float* const* x, int64_t n,
                   typename S::F (&sum)[kTokens][kRows]) {
  using R = typename S::Register;
#pragma GCC unroll 2
  for (int part = 0; part < S::kRegisters; ++part) {
    const int64_t lane = part * (16 / S::kRegisters);
    R acc[kTokens][kRows];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) acc[t][r] = S::part(sum[t][r], part);
    }
    for (int64_t k = lane; k < n; k += 16) {
      R value[kTokens];
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) value[t] = S::load_register(x[t] + k);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const R row = S::load_register(w + r * w_stride + k);
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; ++t) {
          acc[t][r] = S::template multiply_add<kFused>(row, value[t], acc[t][r]);
        }
      }
    }
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) S::part(sum[t][r], part) = acc[t][r];
    }
  }
}

// A block of widened rows: columns [k, k + n) of rows [row, row + rows).
struct WidenedBlock {
  const float* w = nullptr;  // stride kColumnBlock
  int64_t row = 0;
  int64_t rows = 0;
  int64_t k = 0;
  int64_t n = 0;
  bool last = false;       // the sums are complete after this block
  float* lanes = nullptr;  // unfinished sums of the rows and tokens of a block, 16 lanes each
};

template <class S, bool kFused, int kTokens>
void multiply_tiles(const MatmulArgs& a, const WidenedBlock& block, int64_t token,
                    int64_t token_begin) {
  constexpr int kRows = S::kTileRows;
  const float* x[kTokens];
  for (int t = 0; t < kTokens; ++t) x[t] = a.x.row(token + t) + block.k;
  for (int64_t r0 = 0; r0 < block.rows; r0 += kRows) {
    typename S::F sum[kTokens][kRows];
    float* lanes = block.lanes + ((token - token_begin) * kRowBlock + r0 * kTokens) * 16;
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kRows; ++r) {
        sum[t][r] = block.k == 0 ? S::zero() : S::load(lanes + (t * kRows + r) * 16);
      }
    }
    multiply_tile<S, kFused, kTokens, kRows>(block.w + r0 * kColumnBlock, kColumnBlock, x, block.n,
                                             sum);
    if (block.last) {
      const int64_t rows = block.rows - r0 < kRows ? block.rows - r0 : kRows;
      store_sums<S, kTokens, kRows>(a, sum, block.row + r0, rows, token);
    } else {
      for (int t = 0; t < kTokens; ++t) {
        for (int r = 0; r < kRows; ++r) S::store(lanes + (t * kRows + r) * 16, sum[t][r]);
      }
    }
  }
}

template <class S, bool kFused>
void multiply_block(const MatmulArgs& a, const WidenedBlock& block, int64_t begin, int64_t end) {
  int64_t t = begin;
  for (; t + S::kTileTokens <= end; t += S::kTileTokens) {
    multiply_tiles<S, kFused, S::kTileTokens>(a, block, t, begin);
  }
  if constexpr (S::kTileTokens > 3) {
    if (t + 3 == end) return multiply_tiles<S, kFused, 3>(a, block, t, begin);
  }
  if (t + 2 == end) return multiply_tiles<S, kFused, 2>(a, block, t, begin);
  if (t + 1 == end) multiply_tiles<S, kFused, 1>(a, block, t, begin);
}

template <class S, WeightFormat kFormat>
void multiply_many(const MatmulArgs& a, int64_t row, int64_t rows, bool ordinary) {
  using F = typename S::F;
  alignas(64) float widened[kRowBlock * kColumnBlock];
  alignas(64) float lanes[kTokenBlock * kRowBlock * 16];
  const Weights<S, kFormat> w(*a.w);
  const int64_t padded = (rows + S::kTileRows - 1) / S::kTileRows * S::kTileRows;
  for (int64_t r = rows; r < padded; ++r) {  // a tile's rows beyond the block
    for (int64_t k = 0; k < kColumnBlock; ++k) widened[r * kColumnBlock + k] = 0;
  }
  for (int64_t begin = 0; begin < a.x.count; begin += kTokenBlock) {
    const int64_t end = begin + kTokenBlock < a.x.count ? begin + kTokenBlock : a.x.count;
    for (int64_t k = 0; k < w.cols; k += kColumnBlock) {
      const int64_t n = w.cols - k < kColumnBlock ? w.cols - k : kColumnBlock;
      for (int64_t r = 0; r < rows; ++r) {
        float* out = widened + r * kColumnBlock;
        if (!ordinary) {
          widen_columns(*a.w, row + r, k, k + n, out);
          continue;
        }
        for (int64_t i = 0; i < n; i += 32) {
          F first;
          F second;
          w.load(row + r, k + i, first, second);
          S::store(out + i, first);
          S::store(out + i + 16, second);
        }
      }
      const WidenedBlock block{widened, row, rows, k, n, k + n == w.cols, lanes};
      if (Weights<S, kFormat>::kExactProducts && ordinary && a.ordinary_x) {
        multiply_block<S, true>(a, block, begin, end);
      } else {
        multiply_block<S, false>(a, block, begin, end);
      }
    }
  }
}

template <class S, WeightFormat kFormat>
void matmul_format(const MatmulArgs& a) {
  const Weights<S, kFormat> w(*a.w);
  for (int64_t row = a.row_begin; row < a.row_end; row += kRowBlock) {
    const int64_t rows = a.row_end - row < kRowBlock ? a.row_end - row : kRowBlock;
    const bool ordinary = w.ordinary(row, rows);
    const bool exact = !Weights<S, kFormat>::kExactProducts || (ordinary && a.ordinary_x);
    if (a.x.count <= 4 && exact) {
      multiply_few<S, kFormat>(a, row, row + rows);
    } else {
      multiply_many<S, kFormat>(a, row, rows, ordinary);
    }
  }
}

template <class S>
void matmul(const MatmulArgs& a) {
  switch (a.w->format) {
    case WeightFormat::kF32:
      return matmul_format<S, WeightFormat::kF32>(a);
    case WeightFormat::kBf16:
      return matmul_format<S, WeightFormat::kBf16>(a);
    case WeightFormat::kFp8Block:
      return matmul_format<S, WeightFormat::kFp8Block>(a);
    case WeightFormat::kFp4Row:
      return matmul_format<S, WeightFormat::kFp4Row>(a);
    case WeightFormat::kFp8Row:
      return;  // tables are gathered, not multiplied
  }
}

}  // namespace
}  // namespace tidemill
