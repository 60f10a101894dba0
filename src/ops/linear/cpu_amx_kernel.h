// Kernel of cpu_matmul.h over tile registers T (simd/amx.h).
//
// 32 rows of weights are widened a chunk of columns at a time and stay in L1 while all tokens of
// the call pass by; meanwhile the chunk that follows is widened, a share with every tile, so that
// the vector units work beside the matrix unit. Sums stay in their registers if there are two tiles
// of tokens at most. Rows that are not ordinary are computed again, one by one.
#pragma once

#include "ops/cpu_kernels.h"
#include "ops/linear/cpu_amx_pack_kernel.h"
#include "ops/linear/cpu_tile_kernel.h"

namespace tidemill {
namespace {

// Of many tokens, what is read of a chunk, 16 KiB of weights and as much of two tiles of tokens,
// lies in L1. Of few, memory sets the pace: it is read in longer runs. Either way in strips of some
// rows, a few streams at a time, asking for the strip that follows.
inline constexpr int64_t kChunkColumns = 256;
inline constexpr int64_t kChunkRun = 640;  // bytes of a row
inline constexpr int64_t kLargestChunk = 1280;
inline constexpr int64_t kStrip = 8;
inline constexpr int64_t kAmxSums = 2 * kAmxTokens / kTileSide * kTileBytes;
static_assert(2 * kAmxRows * (2 * kLargestChunk + kTileLine) + kAmxSums <= kMatmulScratch);

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
        w_(*a.w, row, 0),
        blocks_(a.w->cols / kTileColumns),
        row_(row),
        rows_(rows),
        token_(token),
        tokens_(tokens),
        pairs_((tokens + 2 * kTileSide - 1) / (2 * kTileSide)),
        chunk_(chunk(pairs_ > 1 ? kChunkColumns / kTileColumns : kChunkRun / kBytes)) {}

  void run(CurrentShape<T>& shape) {
    ordinary_ = 0;
    if (a_.ordinary_x) {
      const bool scales = w_.template ordinary_scales<Avx512>(rows_, a_.w->cols);
      start_widening(0);
      for (int64_t step = widening_steps(); step > 0; --step) widen_step();
      for (int64_t begin = 0; begin < blocks_; begin += chunk_) {
        if (chunk_end(begin) < blocks_) {
          start_widening(chunk_end(begin));
        } else {
          ordinary_ = ordinary_rows(scales);
        }
        for (int64_t pair = 0; pair < pairs_; ++pair) multiply_pair(shape, begin, pair);
      }
    }
    for (int64_t r = 0; r < rows_; ++r) {
      if ((ordinary_ >> r & 1) == 0) multiply_unusual(r);
    }
  }

 private:
  using M = Avx512Bf16;
  static constexpr int64_t kBytes = TileWeights<kFormat>::kBlockBytes;

  // Of a pair of token tiles, in the order of the registers.
  std::byte* sums(int64_t pair) const { return a_.scratch + pair * 4 * kTileBytes; }
  // Row 0 of the chunk that begins with this block; its rows begin in different cache sets.
  std::byte* widened(int64_t begin) const {
    return a_.scratch + kAmxSums + begin / chunk_ % 2 * kAmxRows * widened_stride();
  }
  int64_t widened_stride() const { return (chunk_ + 1) * kTileLine; }
  // Blocks of a chunk, so that there are few of about the same size.
  int64_t chunk(int64_t most) const {
    const int64_t chunks = (blocks_ + most - 1) / most;
    return (blocks_ + chunks - 1) / chunks;
  }
  int64_t chunk_end(int64_t begin) const {
    return begin + chunk_ < blocks_ ? begin + chunk_ : blocks_;
  }
  int64_t tile_tokens(int64_t tile) const {
    const int64_t left = tokens_ - tile * kTileSide;
    return left < kTileSide ? left < 0 ? 0 : left : kTileSide;
  }
  const std::byte* tile(int64_t i) const {
    return a_.x.row(token_ + i * kTileSide) +
           a_.x.column / kTileColumns * kTileLine * tile_tokens(i);
  }

  // The chunk that is being widened: next the columns of `block` of the strip.
  struct Widening {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t strip = 0;
    int64_t block = 0;
    int64_t ahead = 0;  // bytes to the strip that follows
    int64_t due = 0;    // of a step, in tiles
  };
  void start_widening(int64_t begin) {
    next_ = {.begin = begin, .end = chunk_end(begin), .strip = 0, .block = begin};
    next_.ahead = prefetch_distance();
  }
  // The strip that follows may be of the next chunk or of the rows below.
  int64_t prefetch_distance() const {
    if (next_.strip + kStrip < rows_) return kStrip * w_.stride;
    if (next_.end < blocks_) return (next_.end - next_.begin) * kBytes - next_.strip * w_.stride;
    if (row_ + rows_ == a_.row_end) return 0;
    return (rows_ - next_.strip) * w_.stride - next_.begin * kBytes;
  }
  int64_t widening_steps() const {
    return (rows_ + kStrip - 1) / kStrip * (next_.end - next_.begin);
  }
  void widen_step() {
    const int64_t left = rows_ - next_.strip;
    if (left >= kStrip) {
      widen<true>(kStrip);
    } else {
      widen<false>(left);
    }
    if (++next_.block < next_.end) return;
    next_.block = next_.begin;
    next_.strip += kStrip;
    next_.ahead = prefetch_distance();
  }
  template <bool kWhole>
  void widen(int64_t rows) {
    if constexpr (kWhole) rows = kStrip;  // a known length
    constexpr int64_t kPerLine = kBytes < kTileLine ? kTileLine / kBytes : 1;
    const uint8_t* data = w_.data + next_.strip * w_.stride + next_.block * kBytes;
    const uint8_t* scales = w_.scales + next_.strip * w_.scale_stride + next_.block;
    const int64_t stride = widened_stride();
    std::byte* to =
        widened(next_.begin) + next_.strip * stride + (next_.block - next_.begin) * kTileLine;
    for (int64_t r = next_.block % kPerLine; r < rows; r += kPerLine) {  // who shares a line
      Avx512::prefetch(data + r * w_.stride + next_.ahead);              // takes turns
    }
    typename M::Seen seen = seen_;
    uint8_t scale = *scales;
#pragma GCC unroll 8
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t half = r / 4 * 4;  // two bases: 8 addresses from few registers
      const int64_t rest = r % 4;
      if constexpr (kFormat == WeightFormat::kFp4Row) {
        scale = scales[half * w_.scale_stride + rest * w_.scale_stride];
      }
      __m512i wide[1];
      M::template widen<kFormat>(data + half * w_.stride + rest * w_.stride, &scale, wide, seen);
      M::store_register(reinterpret_cast<uint16_t*>(to + half * stride + rest * stride), wide[0]);
    }
    seen_ = seen;
  }

  // Which rows are ordinary: all, or those that are when looked at alone.
  uint32_t ordinary_rows(bool scales) const {
    if (scales && M::template ordinary<kFormat>(seen_)) return ~0u;
    uint32_t result = 0;
    for (int64_t r = 0; r < rows_; ++r) {
      const TileWeights<kFormat> row(*a_.w, row_ + r, 0);
      typename M::Seen seen;
      __m512i wide[1];
      for (int64_t block = 0; block < blocks_; ++block) {
        M::template widen<kFormat>(row.data + block * kBytes, row.scales + block, wide, seen);
      }
      const bool ordinary = row.template ordinary_scales<Avx512>(1, a_.w->cols) &&
                            M::template ordinary<kFormat>(seen);
      result |= uint32_t{ordinary} << r;
    }
    return result;
  }

  void multiply_pair(CurrentShape<T>& shape, int64_t begin, int64_t pair) {
    const int64_t second = tile_tokens(2 * pair + 1);
    shape.set(tile_tokens(2 * pair), second);
    if (rows_ > kTileSide) {
      second > 0 ? multiply<2, 2>(begin, pair) : multiply<2, 1>(begin, pair);
    } else {
      second > 0 ? multiply<1, 2>(begin, pair) : multiply<1, 1>(begin, pair);
    }
  }

  // The chunk of columns that begins with this block, by a pair of token tiles.
  template <int kRowTiles, int kTokenTiles>
  void multiply(int64_t begin, int64_t pair) {
    const int64_t end = chunk_end(begin);
    // One token: 16 rows without gaps, in the product and in its result.
    const int64_t stride[2] = {4 * tile_tokens(2 * pair), 4 * tile_tokens(2 * pair + 1)};
    const int64_t step[2] = {stride[0] * kTileSide, stride[1] * kTileSide};
    const std::byte* x[2] = {tile(2 * pair) + begin * step[0],
                             kTokenTiles == 2 ? tile(2 * pair + 1) + begin * step[1] : nullptr};
    // Steps of widening are spread evenly over all tiles of the chunk.
    const int64_t tiles = pairs_ * (end - begin);
    const int64_t steps = end < blocks_ ? widening_steps() : 0;
    const std::byte* w = widened(begin);

    if (begin == 0) {
      for_each_sum<kRowTiles, kTokenTiles>([&]<int kSum>() { T::template zero<kSum>(); });
    } else if (pairs_ > 1) {
      for_each_sum<kRowTiles, kTokenTiles>([&]<int kSum>() {
        T::template load<kSum>(sums(pair) + kSum * kTileBytes, sum_stride(pair, kSum));
      });
    }
    for (int64_t block = begin; block < end; ++block) {
      T::template load<kWeights>(w, widened_stride());
      T::template load<kTokens>(x[0], stride[0]);
      T::template multiply<kSums, kWeights, kTokens>();
      x[0] += step[0];
      if constexpr (kTokenTiles == 2) {
        T::template load<kTokens + 1>(x[1], stride[1]);
        T::template multiply<kSums + 1, kWeights, kTokens + 1>();
        x[1] += step[1];
      }
      if constexpr (kRowTiles == 2) {
        T::template load<kWeights + 1>(w + kTileSide * widened_stride(), widened_stride());
        T::template multiply<kSums + 2, kWeights + 1, kTokens>();
        if constexpr (kTokenTiles == 2)
          T::template multiply<kSums + 3, kWeights + 1, kTokens + 1>();
      }
      w += kTileLine;
      for (next_.due += steps; next_.due >= tiles; next_.due -= tiles) widen_step();
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
  const TileWeights<kFormat> w_;
  const int64_t blocks_;  // of 32 columns
  const int64_t row_;
  const int64_t rows_;
  const int64_t token_;
  const int64_t tokens_;
  const int64_t pairs_;  // of token tiles
  const int64_t chunk_;  // blocks
  Widening next_;
  typename M::Seen seen_;
  uint32_t ordinary_ = 0;  // one bit a row, known before the last chunk
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
  switch (a.w->format) {
    case WeightFormat::kF32:
      return avx512_kernels().matmul(a);
    case WeightFormat::kBf16:
      return multiply_tiles<T, WeightFormat::kBf16>(a);
    case WeightFormat::kFp8Block:
      return multiply_tiles<T, WeightFormat::kFp8Block>(a);
    case WeightFormat::kFp4Row:
      return multiply_tiles<T, WeightFormat::kFp4Row>(a);
    case WeightFormat::kFp8Row:
      return;  // tables are gathered, not multiplied
  }
}

}  // namespace
}  // namespace tidemill
