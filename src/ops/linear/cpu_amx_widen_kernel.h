// Rows of weights as the A tiles of linear/cpu_amx_kernel.h, a chunk of columns at a time.
#pragma once

#include "ops/linear/cpu_amx_shape.h"
#include "ops/linear/cpu_tile_kernel.h"
#include "ops/simd/avx512bf16.h"

namespace tidemill {
namespace {

// With many tokens chunks are as long as leaves those of the tokens (kAmxTokens of them: 640 KB) in
// L2, beside two of weights and the sums, so that sums are seldom put aside and fetched again. With
// few, sums stay in their registers, and two chunks lie in L1 beside what is read. Either way in
// strips of some rows, a few streams at a time, asking for what comes some chunks later.
inline constexpr int64_t kManyTokensChunk = 640 / kTileColumns;
inline constexpr int64_t kFewTokensChunk = 128 / kTileColumns;
inline constexpr int64_t kStrip = 8;
inline constexpr int64_t kStepBlocks = 4;
inline constexpr int64_t kAhead = 8 << 10;                                   // bytes of weights
inline constexpr int64_t kWidenedBytes = kManyTokensChunk * 2 * kTileBytes;  // of a chunk

// At most kAmxRows rows, of one row of FP8 scales.
template <WeightFormat kFormat>
class WidenedRows {
 public:
  // rows_below: how far down the rows are that are wanted after the last chunk of these; 0: none.
  WidenedRows(const Matrix& w, int64_t row, int64_t rows, int64_t rows_below, bool many_tokens)
      : w_(w),
        weights_(w, row, 0),
        row_(row),
        rows_(rows),
        rows_below_(rows_below),
        blocks_(w.cols / kTileColumns),
        chunk_(even_part(blocks_, many_tokens ? kManyTokensChunk : kFewTokensChunk)),
        ordinary_scales_(weights_.template ordinary_scales<Avx512>(rows, w.cols)) {}

  // Chunks begin at 0 and where another ends, in blocks of 32 columns.
  int64_t end(int64_t begin) const { return begin + chunk_ < blocks_ ? begin + chunk_ : blocks_; }

  // Widening goes on by some blocks of a strip; steps() of them complete the chunk that begins at
  // `begin`: kWidenedBytes at most, aligned to 64, the two A tiles of a block, then those of the
  // next.
  void start(int64_t begin, std::byte* to) {
    at_ = {.begin = begin, .end = end(begin), .block = begin, .to = to};
    at_.ahead = distance();
  }
  int64_t steps() const {
    const int64_t strips = (rows_ + kStrip - 1) / kStrip;
    return strips * ((at_.end - at_.begin + kStepBlocks - 1) / kStepBlocks);
  }
  [[gnu::noinline]] void step() {
    const int64_t end = at_.block + kStepBlocks < at_.end ? at_.block + kStepBlocks : at_.end;
    const int64_t left = rows_ - at_.strip;
    left >= kStrip ? widen_strip(end) : widen_rest(end, left);
    at_.block = end;
    if (end < at_.end) return;
    at_.block = at_.begin;
    at_.strip += kStrip;
  }

  // Which rows are ordinary, one bit each: all, or those that are when looked at alone. After the
  // last step of the last chunk.
  uint32_t ordinary_rows() const {
    if (ordinary_scales_ && M::template ordinary<kFormat>(seen_)) return ~0u;
    uint32_t result = 0;
    for (int64_t r = 0; r < rows_; ++r) {
      const TileWeights<kFormat> row(w_, row_ + r, 0);
      typename M::Seen seen;
      __m512i wide[1];
      for (int64_t block = 0; block < blocks_; ++block) {
        M::template widen<kFormat>(row.data + block * kBytes, row.scales + block, wide, seen);
      }
      const bool ordinary =
          row.template ordinary_scales<Avx512>(1, w_.cols) && M::template ordinary<kFormat>(seen);
      result |= uint32_t{ordinary} << r;
    }
    return result;
  }

 private:
  using M = Avx512Bf16;
  static constexpr int64_t kBytes = TileWeights<kFormat>::kBlockBytes;

  // n in parts of about the same size, `most` at most; of nothing 1.
  static int64_t even_part(int64_t n, int64_t most) {
    const int64_t parts = (n + most - 1) / most;
    return parts > 0 ? (n + parts - 1) / parts : 1;
  }

  // Bytes to the chunk of these rows that comes about kAhead bytes later, or of those below; or 0.
  int64_t distance() const {
    const int64_t chunks = kAhead / (kAmxRows * chunk_ * kBytes) + 1;
    const int64_t block = at_.begin + chunks * chunk_;
    if (block < blocks_) return chunks * chunk_ * kBytes;
    const int64_t below = block - (blocks_ + chunk_ - 1) / chunk_ * chunk_;
    if (rows_below_ == 0 || below >= blocks_) return 0;
    return rows_below_ * weights_.stride + (below - at_.begin) * kBytes;
  }

  TileWeights<kFormat> weights(int64_t row, int64_t block) const {
    TileWeights<kFormat> result = weights_;
    result.data += row * result.stride + block * kBytes;
    result.scales += row * result.scale_stride + block;
    return result;
  }
  // Where the strip lies in the tiles of a block.
  std::byte* place(int64_t block) const {
    return at_.to + (block - at_.begin) * 2 * kTileBytes + at_.strip * kTileLine;
  }

  void widen_strip(int64_t end) {
    TileRows<kFormat, kStrip> rows(weights(at_.strip, at_.block), false, at_.ahead);
    std::byte* to = place(at_.block);
    typename M::Seen seen;  // in registers
    for (int64_t block = at_.block; block < end; ++block, rows.next_block(), to += 2 * kTileBytes) {
      rows.template prefetch<Avx512>(block);
      __m512i wide[kStrip][1];
      M::template widen_rows<kFormat>(rows, wide, seen);
#pragma GCC unroll 8
      for (int64_t r = 0; r < kStrip; ++r) _mm512_store_si512(to + r * kTileLine, wide[r][0]);
    }
    seen_.join(seen);
  }
  // Of fewer rows.
  void widen_rest(int64_t end, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      const TileWeights<kFormat> row = weights(at_.strip + r, at_.block);
      for (int64_t block = at_.block; block < end; ++block) {
        const int64_t i = block - at_.block;
        __m512i wide[1];
        M::template widen<kFormat>(row.data + i * kBytes, row.scales + i, wide, seen_);
        _mm512_store_si512(place(block) + r * kTileLine, wide[0]);
      }
    }
  }

  struct Position {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t strip = 0;
    int64_t block = 0;
    int64_t ahead = 0;
    std::byte* to = nullptr;
  };

  const Matrix& w_;
  const TileWeights<kFormat> weights_;
  const int64_t row_;
  const int64_t rows_;
  const int64_t rows_below_;
  const int64_t blocks_;  // of 32 columns
  const int64_t chunk_;   // in blocks
  const bool ordinary_scales_;
  Position at_;
  typename M::Seen seen_;
};

}  // namespace
}  // namespace tidemill
