// Kernel of cpu_matmul.h over tile registers T (simd/amx.h).
//
// 32 rows of weights are widened a chunk of columns at a time and stay in the cache while all
// tokens of the call pass by; meanwhile the chunk that follows is widened, a share with every tile,
// so that the vector units work beside the matrix unit. With two tiles of tokens at most, sums stay
// in their registers. With more, some blocks of 32 rows share a chunk of the tokens' columns, which
// stays in L2, and sums wait in memory. Rows that are not ordinary are computed again, one by one.
#pragma once

#include <optional>

#include "ops/cpu_kernels.h"
#include "ops/linear/cpu_amx_pack_kernel.h"
#include "ops/linear/cpu_amx_widen_kernel.h"

namespace tidemill {
namespace {

inline constexpr int64_t kAmxSums = kAmxRowBlocks * kAmxRows * kAmxTokens * 4;
static_assert(kAmxSums + 2 * kWidenedBytes <= kMatmulScratch);

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

// At most kAmxRowBlocks blocks of rows, each of one row of FP8 scales (only one block for two tiles
// of tokens or fewer), by at most kAmxTokens tokens from a multiple of 16 on.
template <class T, WeightFormat kFormat>
class TileProduct {
 public:
  TileProduct(const MatmulArgs& a, int64_t row, int64_t row_end, int64_t token, int64_t tokens)
      : a_(a),
        blocks_(a.w->cols / kTileColumns),
        token_(token),
        tokens_(tokens),
        pairs_((tokens + 2 * kTileSide - 1) / (2 * kTileSide)) {
    // After the last rows of a unit of many tokens comes another one, as a rule.
    const int64_t limit = pairs_ >= 2 ? a.w->rows : a.row_end;
    const int64_t below = row_end + (row_end - row) <= limit ? row_end - row : 0;
    while (row < row_end) {
      const int64_t rows = block_end(row, row_end) - row;
      rows_[row_blocks_++].emplace(a, row, rows, below, pairs_ >= 2);
      row += rows;
    }
  }

  static int64_t block_end(int64_t row, int64_t row_end) {
    const int64_t boundary = (row / kAmxRows + 1) * kAmxRows;
    return boundary < row_end ? boundary : row_end;
  }

  void run(CurrentShape<T>& shape) {
    if (a_.ordinary_x) {
      start(0, 0);
      for (; steps_ > 0; --steps_) filling_->step();
      for (int64_t begin = 0; begin < blocks_;) {
        const int64_t end = rows_[0]->widened.end(begin);
        for (int64_t i = 0; i < row_blocks_; ++i) {
          const std::byte* chunk = filled_;
          if (end == blocks_) rows_[i]->ordinary = rows_[i]->widened.ordinary_rows();
          const bool more = i + 1 < row_blocks_;
          if (more || end < blocks_) start(more ? i + 1 : 0, more ? begin : end);
          for (int64_t pair = 0; pair < pairs_; ++pair) multiply_pair(shape, chunk, begin, i, pair);
          steps_ = 0;
        }
        begin = end;
      }
    }
    for (int64_t i = 0; i < row_blocks_; ++i) {
      for (int64_t r = 0; r < rows_[i]->rows; ++r) {
        if ((rows_[i]->ordinary >> r & 1) == 0) multiply_unusual(rows_[i]->row + r);
      }
    }
  }

 private:
  struct RowBlock {
    RowBlock(const MatmulArgs& a, int64_t first, int64_t count, int64_t below, bool many_tokens)
        : row(first), rows(count), widened(*a.w, first, count, below, many_tokens) {}
    int64_t row;
    int64_t rows;
    WidenedRows<kFormat> widened;
    uint32_t ordinary = 0;  // one bit a row, known before the last chunk
  };

  // Widening of a chunk of row block i begins, in the place of the one before the last.
  void start(int64_t i, int64_t begin) {
    second_ = !second_;
    std::byte* to = a_.scratch + kAmxSums + (second_ ? kWidenedBytes : 0);
    filling_ = &rows_[i]->widened;
    filling_->start(begin, to);
    steps_ = filling_->steps();
    filled_ = to;
  }

  // Of a pair of token tiles, in the order of the registers.
  std::byte* sums(int64_t i, int64_t pair) const {
    return a_.scratch + (i * pairs_ + pair) * 4 * kTileBytes;
  }
  int64_t tile_tokens(int64_t tile) const {
    const int64_t left = tokens_ - tile * kTileSide;
    return left < kTileSide ? left < 0 ? 0 : left : kTileSide;
  }
  static void prefetch_near(const std::byte* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  }
  // Of tokens, from a block of columns on.
  const std::byte* tile(int64_t i, int64_t block) const {
    return a_.x.row(token_ + i * kTileSide) +
           (a_.x.column / kTileColumns + block) * kTileLine * tile_tokens(i);
  }

  void multiply_pair(CurrentShape<T>& shape, const std::byte* chunk, int64_t begin, int64_t i,
                     int64_t pair) {
    const int64_t second = tile_tokens(2 * pair + 1);
    shape.set(tile_tokens(2 * pair), second);
    if (rows_[i]->rows > kTileSide) {
      second > 0 ? multiply<2, 2>(chunk, begin, i, pair) : multiply<2, 1>(chunk, begin, i, pair);
    } else {
      second > 0 ? multiply<1, 2>(chunk, begin, i, pair) : multiply<1, 1>(chunk, begin, i, pair);
    }
  }

  // The chunk of columns that begins with this block, by a pair of token tiles.
  template <int kRowTiles, int kTokenTiles>
  void multiply(const std::byte* w, int64_t begin, int64_t i, int64_t pair) {
    const RowBlock& block_of_rows = *rows_[i];
    const int64_t end = block_of_rows.widened.end(begin);
    std::byte* const kept = sums(i, pair);
    // One token: 16 rows without gaps, in the product and in its result.
    const int64_t stride[2] = {4 * tile_tokens(2 * pair), 4 * tile_tokens(2 * pair + 1)};
    const int64_t step[2] = {stride[0] * kTileSide, stride[1] * kTileSide};
    const std::byte* x[2] = {tile(2 * pair, begin),
                             kTokenTiles == 2 ? tile(2 * pair + 1, begin) : nullptr};
    // Tiles of tokens come from L2. Each is asked for two blocks before its turn; after those of
    // this pair come those of the next one, or of the first for other rows or for the next chunk.
    constexpr int64_t kLater = 2;
    constexpr bool kAsk = kRowTiles == 2 && kTokenTiles == 2;
    const int64_t next_pair = pair + 1 < pairs_ ? pair + 1 : 0;
    const int64_t next_begin = next_pair > 0 || i + 1 < row_blocks_ ? begin : end;
    const std::byte* after[2] = {};
    for (int side = 0; kAsk && side < 2; ++side) {
      const int64_t next = 2 * next_pair + side;  // the last pair may have one tile
      after[side] = side == 0 || tile_tokens(next) > 0 ? tile(next, next_begin) : after[0];
    }
    const auto ask = [&](int64_t block, int side) {
      const int64_t late = block + kLater - end;
      const std::byte* p =
          late < 0 ? x[side] + kLater * kTileBytes : after[side] + late * kTileBytes;
#pragma GCC unroll 16
      for (int64_t line = 0; line < kTileSide; ++line) prefetch_near(p + line * kTileLine);
    };
    // Steps of widening are spread evenly over all tiles of the chunk.
    const int64_t tiles = pairs_ * (end - begin);

    if (begin == 0) {
      for_each_sum<kRowTiles, kTokenTiles>([&]<int kSum>() { T::template zero<kSum>(); });
    } else if (pairs_ > 1) {
      for_each_sum<kRowTiles, kTokenTiles>([&]<int kSum>() {
        T::template load<kSum>(kept + kSum * kTileBytes, sum_stride(pair, kSum));
      });
    }
    for (int64_t block = begin; block < end; ++block) {
      T::template load<kWeights>(w, kTileLine);
      T::template load<kTokens>(x[0], stride[0]);
      T::template multiply<kSums, kWeights, kTokens>();
      if constexpr (kAsk) ask(block, 0);
      x[0] += step[0];
      if constexpr (kTokenTiles == 2) {
        T::template load<kTokens + 1>(x[1], stride[1]);
        T::template multiply<kSums + 1, kWeights, kTokens + 1>();
      }
      if constexpr (kRowTiles == 2) {
        T::template load<kWeights + 1>(w + kTileBytes, kTileLine);
        T::template multiply<kSums + 2, kWeights + 1, kTokens>();
        if constexpr (kAsk) ask(block, 1);
        if constexpr (kTokenTiles == 2)
          T::template multiply<kSums + 3, kWeights + 1, kTokens + 1>();
      }
      x[1] += step[1];
      w += 2 * kTileBytes;
      for (due_ += steps_; due_ >= tiles; due_ -= tiles) filling_->step();
    }
    if (end < blocks_ && pairs_ == 1) return;
    for_each_sum<kRowTiles, kTokenTiles>([&]<int kSum>() {
      T::template store<kSum>(kept + kSum * kTileBytes, sum_stride(pair, kSum));
    });
    if (end < blocks_) return;
    for_each_sum<kRowTiles, kTokenTiles>([&]<int kSum>() {
      constexpr int64_t kRow = kSum / 2 * kTileSide;
      const int64_t t = 2 * pair + kSum % 2;
      const int64_t left = block_of_rows.rows - kRow;
      const __mmask16 rows = first_lanes(left < kTileSide ? left : kTileSide);
      const auto wanted = static_cast<__mmask16>(rows & (block_of_rows.ordinary >> kRow));
      store_tile(a_, kept + kSum * kTileBytes, block_of_rows.row + kRow, wanted,
                 token_ + t * kTileSide, tile_tokens(t));
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

  // Any values of a row: multiplies and adds separately, 16 tokens at once.
  void multiply_unusual(int64_t row) const {
    constexpr int64_t kColumns = 512;
    alignas(64) float wide[kColumns];
    for (int64_t i = 0; tile_tokens(i) > 0; ++i) {
      const int64_t tokens = tile_tokens(i);
      const std::byte* pair = tile(i, 0);
      __m512 sum = _mm512_setzero_ps();
      for (int64_t begin = 0; begin < a_.w->cols; begin += kColumns) {
        const int64_t left = a_.w->cols - begin;
        const int64_t n = left < kColumns ? left : kColumns;
        widen_planes(*a_.w, row, begin, begin + n, wide);
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
        float& to = a_.y[(token_ + i * kTileSide + t) * a_.y_stride + row - a_.row_begin];
        to = a_.store == Store::kAdd ? to + y[t] : y[t];
      }
    }
  }

  const MatmulArgs& a_;
  const int64_t blocks_;  // of 32 columns
  const int64_t token_;
  const int64_t tokens_;
  const int64_t pairs_;  // of token tiles
  std::optional<RowBlock> rows_[kAmxRowBlocks];
  int64_t row_blocks_ = 0;
  WidenedRows<kFormat>* filling_ = nullptr;  // whose chunk is being widened
  const std::byte* filled_ = nullptr;        // where it will lie
  bool second_ = false;                      // of two places
  int64_t steps_ = 0;                        // that it takes
  int64_t due_ = 0;                          // of a step, in tiles
};

template <class T, WeightFormat kFormat>
void multiply_tiles(const MatmulArgs& a) {
  using Product = TileProduct<T, kFormat>;
  CurrentShape<T> shape;
  for (int64_t token = 0; token < a.x.count; token += kAmxTokens) {
    const int64_t left = a.x.count - token;
    const int64_t tokens = left < kAmxTokens ? left : kAmxTokens;
    const int64_t row_blocks = tokens > 2 * kTileSide ? kAmxRowBlocks : 1;
    for (int64_t row = a.row_begin; row < a.row_end;) {
      int64_t end = row;
      for (int64_t i = 0; i < row_blocks && end < a.row_end; ++i) {
        end = Product::block_end(end, a.row_end);
      }
      Product(a, row, end, token, tokens).run(shape);
      row = end;
    }
  }
  if (a.past_caches) _mm_sfence();  // stores around the caches, before others are told
}

template <class T>
void matmul_tiles(const MatmulArgs& a) {
  if (a.w->format == WeightFormat::kF32) return avx512_kernels().matmul(a);
  with_format(a.w->format, [&]<WeightFormat kFormat>() { multiply_tiles<T, kFormat>(a); });
}

}  // namespace
}  // namespace tidemill
