// Kernel of cpu_matmul.h over tile registers T (simd/amx.h).
//
// 32 rows of weights are widened a chunk of columns at a time and stay in the cache while all
// tokens of the call pass by; meanwhile the chunk that follows is widened, a share with every tile,
// so that the vector units work beside the matrix unit. Sums stay in their registers if there are
// two tiles of tokens at most. Rows that are not ordinary are computed again, one by one.
#pragma once

#include "ops/cpu_kernels.h"
#include "ops/linear/cpu_amx_pack_kernel.h"
#include "ops/linear/cpu_amx_widen_kernel.h"

namespace tidemill {
namespace {

inline constexpr int64_t kAmxSums = 2 * kAmxTokens / kTileSide * kTileBytes;
static_assert(kAmxSums + kWidenedBytes <= kMatmulScratch);

// Which shape the tile registers have now; a change empties them.
template <class T>
class CurrentShape {
 public:
  ~CurrentShape() {
    if (first_ != 0) T::release();
  }
  void set(int64_t first, int64_t second) {
    if (first == first_ && second == second_) return;
    T::configure(TileShape(first, second));
    first_ = first;
    second_ = second;
  }

 private:
  int64_t first_ = 0;
  int64_t second_ = 0;
};

// At most 32 rows, of one row of FP8 scales, by at most kAmxTokens tokens from a multiple of 16 on.
template <class T, WeightFormat kFormat>
class TileProduct {
 public:
  TileProduct(const MatmulArgs& a, int64_t row, int64_t rows, int64_t token, int64_t tokens)
      : a_(a),
        blocks_(a.w->cols / kTileColumns),
        row_(row),
        rows_(rows),
        token_(token),
        tokens_(tokens),
        pairs_((tokens + 2 * kTileSide - 1) / (2 * kTileSide)),
        widened_(*a.w, row, rows, row + rows != a.row_end, pairs_ >= 2, a.scratch + kAmxSums) {}

  void run(CurrentShape<T>& shape) {
    if (a_.ordinary_x) {
      next_ = widened_.start(0);
      for (int64_t step = widened_.steps(); step > 0; --step) widened_.step();
      for (int64_t begin = 0; begin < blocks_; begin = widened_.end(begin)) {
        const std::byte* chunk = next_;
        const int64_t end = widened_.end(begin);
        if (end < blocks_) {
          next_ = widened_.start(end);
          steps_ = widened_.steps();
        } else {
          steps_ = 0;
          ordinary_ = widened_.ordinary_rows();
        }
        for (int64_t pair = 0; pair < pairs_; ++pair) multiply_pair(shape, chunk, begin, pair);
      }
    }
    for (int64_t r = 0; r < rows_; ++r) {
      if ((ordinary_ >> r & 1) == 0) multiply_unusual(r);
    }
  }

 private:
  // Of a pair of token tiles, in the order of the registers.
  std::byte* sums(int64_t pair) const { return a_.scratch + pair * 4 * kTileBytes; }
  int64_t tile_tokens(int64_t tile) const {
    const int64_t left = tokens_ - tile * kTileSide;
    return left < kTileSide ? left < 0 ? 0 : left : kTileSide;
  }
  const std::byte* tile(int64_t i) const {
    return a_.x.row(token_ + i * kTileSide) +
           a_.x.column / kTileColumns * kTileLine * tile_tokens(i);
  }

  void multiply_pair(CurrentShape<T>& shape, const std::byte* chunk, int64_t begin, int64_t pair) {
    const int64_t second = tile_tokens(2 * pair + 1);
    shape.set(tile_tokens(2 * pair), second);
    if (rows_ > kTileSide) {
      second > 0 ? multiply<2, 2>(chunk, begin, pair) : multiply<2, 1>(chunk, begin, pair);
    } else {
      second > 0 ? multiply<1, 2>(chunk, begin, pair) : multiply<1, 1>(chunk, begin, pair);
    }
  }

  // The chunk of columns that begins with this block, by a pair of token tiles.
  template <int kRowTiles, int kTokenTiles>
  void multiply(const std::byte* w, int64_t begin, int64_t pair) {
    const int64_t end = widened_.end(begin);
    // One token: 16 rows without gaps, in the product and in its result.
    const int64_t stride[2] = {4 * tile_tokens(2 * pair), 4 * tile_tokens(2 * pair + 1)};
    const int64_t step[2] = {stride[0] * kTileSide, stride[1] * kTileSide};
    const std::byte* x[2] = {tile(2 * pair) + begin * step[0],
                             kTokenTiles == 2 ? tile(2 * pair + 1) + begin * step[1] : nullptr};
    // Steps of widening are spread evenly over all tiles of the chunk.
    const int64_t tiles = pairs_ * (end - begin);

    if (begin == 0) {
      for_each_sum<kRowTiles, kTokenTiles>([&]<int kSum>() { T::template zero<kSum>(); });
    } else if (pairs_ > 1) {
      for_each_sum<kRowTiles, kTokenTiles>([&]<int kSum>() {
        T::template load<kSum>(sums(pair) + kSum * kTileBytes, sum_stride(pair, kSum));
      });
    }
    for (int64_t block = begin; block < end; ++block) {
      T::template load<kWeights>(w, kTileLine);
      T::template load<kTokens>(x[0], stride[0]);
      T::template multiply<kSums, kWeights, kTokens>();
      x[0] += step[0];
      if constexpr (kTokenTiles == 2) {
        T::template load<kTokens + 1>(x[1], stride[1]);
        T::template multiply<kSums + 1, kWeights, kTokens + 1>();
        x[1] += step[1];
      }
      if constexpr (kRowTiles == 2) {
        T::template load<kWeights + 1>(w + kTileBytes, kTileLine);
        T::template multiply<kSums + 2, kWeights + 1, kTokens>();
        if constexpr (kTokenTiles == 2)
          T::template multiply<kSums + 3, kWeights + 1, kTokens + 1>();
      }
      w += 2 * kTileBytes;
      for (due_ += steps_; due_ >= tiles; due_ -= tiles) widened_.step();
    }
    if (end < blocks_ && pairs_ == 1) return;
    for_each_sum<kRowTiles, kTokenTiles>([&]<int kSum>() {
      T::template store<kSum>(sums(pair) + kSum * kTileBytes, sum_stride(pair, kSum));
    });
    if (end < blocks_) return;
    for_each_sum<kRowTiles, kTokenTiles>([&]<int kSum>() {
      constexpr int64_t kRow = kSum / 2 * kTileSide;
      const int64_t i = 2 * pair + kSum % 2;
      const int64_t rows = rows_ - kRow < kTileSide ? rows_ - kRow : kTileSide;
      const auto wanted = static_cast<__mmask16>(first_lanes(rows) & (ordinary_ >> kRow));
      store_tile(a_, sums(pair) + kSum * kTileBytes, row_ + kRow, wanted, token_ + i * kTileSide,
                 tile_tokens(i));
    });
  }

  template <int kRowTiles, int kTokenTiles, class Body>
  static void for_each_sum(const Body& body) {
    body.template operator()<kSums>();
    if constexpr (kTokenTiles == 2) body.template operator()<kSums + 1>();
    if constexpr (kRowTiles == 2) body.template operator()<kSums + 2>();
    if constexpr (kRowTiles == 2 && kTokenTiles == 2) body.template operator()<kSums + 3>();
  }
  int64_t sum_stride(int64_t pair, int sum) const {
    return tile_tokens(2 * pair + sum % 2) == 1 ? 4 : kTileLine;
  }

  // Any values of row r: multiplies and adds separately, 16 tokens at once.
  void multiply_unusual(int64_t r) const {
    constexpr int64_t kColumns = 512;
    alignas(64) float wide[kColumns];
    for (int64_t i = 0; tile_tokens(i) > 0; ++i) {
      const int64_t tokens = tile_tokens(i);
      const std::byte* pair = tile(i);
      __m512 sum = _mm512_setzero_ps();
      for (int64_t begin = 0; begin < a_.w->cols; begin += kColumns) {
        const int64_t left = a_.w->cols - begin;
        const int64_t n = left < kColumns ? left : kColumns;
        widen_planes(*a_.w, row_ + r, begin, begin + n, wide);
        for (const float* block = wide; block < wide + n; block += kTileColumns) {
          __m512 odd = _mm512_setzero_ps();
          __m512 even = _mm512_setzero_ps();
          for (int64_t k = 0; k < kTileSide; ++k, pair += 4 * tokens) {
            const __m512i x = _mm512_maskz_loadu_epi32(first_lanes(tokens), pair);
            const __m512 x_odd =
                _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)));
            const __m512 x_even = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
            odd = _mm512_add_ps(odd, _mm512_mul_ps(_mm512_set1_ps(block[k]), x_odd));
            even = _mm512_add_ps(even, _mm512_mul_ps(_mm512_set1_ps(block[k + kTileSide]), x_even));
          }
          sum = _mm512_add_ps(sum, _mm512_add_ps(even, odd));
        }
      }
      alignas(64) float y[kTileSide];
      _mm512_store_ps(y, finished(a_, sum));
      for (int64_t t = 0; t < tokens; ++t) {
        float& to = a_.y[(token_ + i * kTileSide + t) * a_.y_stride + row_ + r - a_.row_begin];
        to = a_.store == Store::kAdd ? to + y[t] : y[t];
      }
    }
  }

  const MatmulArgs& a_;
  const int64_t blocks_;  // of 32 columns
  const int64_t row_;
  const int64_t rows_;
  const int64_t token_;
  const int64_t tokens_;
  const int64_t pairs_;  // of token tiles
  WidenedRows<kFormat> widened_;
  const std::byte* next_ = nullptr;  // the chunk that is being widened
  int64_t steps_ = 0;                // that it takes
  int64_t due_ = 0;                  // of a step, in tiles
  uint32_t ordinary_ = 0;            // one bit a row, known before the last chunk
};

template <class T, WeightFormat kFormat>
void multiply_tiles(const MatmulArgs& a) {
  CurrentShape<T> shape;
  for (int64_t row = a.row_begin; row < a.row_end;) {
    const int64_t boundary = (row / kAmxRows + 1) * kAmxRows;
    const int64_t end = boundary < a.row_end ? boundary : a.row_end;
    for (int64_t token = 0; token < a.x.count; token += kAmxTokens) {
      const int64_t left = a.x.count - token;
      TileProduct<T, kFormat> product(a, row, end - row, token,
                                      left < kAmxTokens ? left : kAmxTokens);
      product.run(shape);
    }
    row = end;
  }
}

template <class T>
void matmul_tiles(const MatmulArgs& a) {
  if (a.w->format == WeightFormat::kF32) return avx512_kernels().matmul(a);
  with_format(a.w->format, [&]<WeightFormat kFormat>() { multiply_tiles<T, kFormat>(a); });
}

}  // namespace
}  // namespace tidemill
