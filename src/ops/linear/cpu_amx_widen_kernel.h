// Rows of weights as the A tiles of linear/cpu_amx_kernel.h, a chunk of columns at a time.
#pragma once

#include "ops/linear/cpu_amx_shape.h"
#include "ops/linear/cpu_tile_kernel.h"
#include "ops/simd/avx512bf16.h"

namespace tidemill {
namespace {

// With many tokens, what is read of a chunk, 16 KiB of weights and as much of two tiles of tokens,
// lies in L1. With few, memory sets the pace: it is read in longer runs. Either way in strips of
// some rows, a few streams at a time, asking for what comes some strips later.
inline constexpr int64_t kChunkColumns = 256;
inline constexpr int64_t kChunkRun = 640;       // bytes of a row
inline constexpr int64_t kLargestChunk = 1280;  // columns
inline constexpr int64_t kStrip = 8;
inline constexpr int64_t kAhead = 2;
// Two chunks, the one in use and the next.
inline constexpr int64_t kWidenedBytes = 2 * kAmxRows * (2 * kLargestChunk + kTileLine);

// At most kAmxRows rows, of one row of FP8 scales.
template <WeightFormat kFormat>
class WidenedRows {
 public:
  // memory: kWidenedBytes, aligned to 64.
  WidenedRows(const Matrix& w, int64_t row, int64_t rows, bool rows_below, bool many_tokens,
              std::byte* memory)
      : w_(w),
        weights_(w, row, 0),
        row_(row),
        rows_(rows),
        rows_below_(rows_below),
        blocks_(w.cols / kTileColumns),
        chunk_(even_part(blocks_, many_tokens ? kChunkColumns / kTileColumns : kChunkRun / kBytes)),
        stride_((chunk_ + 1) * kTileLine),
        memory_(memory),
        ordinary_scales_(weights_.template ordinary_scales<Avx512>(rows, w.cols)) {}

  // Chunks begin at 0 and where another ends, in blocks of 32 columns.
  int64_t end(int64_t begin) const { return begin + chunk_ < blocks_ ? begin + chunk_ : blocks_; }
  // From row to row; they begin in different cache sets.
  int64_t stride() const { return stride_; }

  // Widening goes on by one block of a strip. start() returns where the chunk will lie, in the
  // place of the one before the last; steps() of them complete it.
  const std::byte* start(int64_t begin) {
    std::byte* to = memory_ + (at_.second ? kAmxRows * stride_ : 0);
    at_ = {.begin = begin, .end = end(begin), .block = begin, .to = to, .second = !at_.second};
    at_.ahead = distance();
    return to;
  }
  int64_t steps() const { return (rows_ + kStrip - 1) / kStrip * (at_.end - at_.begin); }
  void step() {
    const int64_t left = rows_ - at_.strip;
    left >= kStrip ? widen<true>(kStrip) : widen<false>(left);
    if (++at_.block < at_.end) return;
    at_.block = at_.begin;
    at_.strip += kStrip;
    at_.ahead = distance();
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

  // n in parts of about the same size, `most` at most.
  static int64_t even_part(int64_t n, int64_t most) {
    const int64_t parts = (n + most - 1) / most;
    return parts > 1 ? (n + parts - 1) / parts : n;
  }

  // Bytes to the strip that will be widened kAhead strips later, in this chunk, in one that follows
  // or in the first one of the rows below; or 0.
  int64_t distance() const {
    const int64_t strips = (rows_ + kStrip - 1) / kStrip;
    const int64_t later = at_.strip / kStrip + kAhead;
    const int64_t block = at_.begin + later / strips * chunk_;
    const int64_t rows = later % strips * kStrip - at_.strip;
    if (block < blocks_) return (block - at_.begin) * kBytes + rows * weights_.stride;
    return rows_below_ ? (rows_ + rows) * weights_.stride - at_.begin * kBytes : 0;
  }

  template <bool kWhole>
  void widen(int64_t rows) {
    if constexpr (kWhole) rows = kStrip;  // a known length
    constexpr int64_t kPerLine = kBytes < kTileLine ? kTileLine / kBytes : 1;
    const int64_t stride = weights_.stride;
    const int64_t scale_stride = weights_.scale_stride;
    const uint8_t* data = weights_.data + at_.strip * stride + at_.block * kBytes;
    const uint8_t* scales = weights_.scales + at_.strip * scale_stride + at_.block;
    std::byte* to = at_.to + at_.strip * stride_ + (at_.block - at_.begin) * kTileLine;
    // Blocks that share a line take turns in asking for it.
    for (int64_t r = at_.block % kPerLine; r < rows; r += kPerLine) {
      Avx512::prefetch(data + r * stride + at_.ahead);
    }
    typename M::Seen seen = seen_;
    uint8_t scale = *scales;
#pragma GCC unroll 8
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t half = r / 4 * 4;  // two bases: 8 addresses from few registers
      const int64_t rest = r % 4;
      if constexpr (kFormat == WeightFormat::kFp4Row) {
        scale = scales[half * scale_stride + rest * scale_stride];
      }
      __m512i wide[1];
      M::template widen<kFormat>(data + half * stride + rest * stride, &scale, wide, seen);
      M::store_register(reinterpret_cast<uint16_t*>(to + half * stride_ + rest * stride_), wide[0]);
    }
    seen_ = seen;
  }

  struct Position {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t strip = 0;
    int64_t block = 0;
    int64_t ahead = 0;
    std::byte* to = nullptr;
    bool second = false;  // of the two places for a chunk, for the next one
  };

  const Matrix& w_;
  const TileWeights<kFormat> weights_;
  const int64_t row_;
  const int64_t rows_;
  const bool rows_below_;  // that are wanted next
  const int64_t blocks_;   // of 32 columns
  const int64_t chunk_;    // in blocks
  const int64_t stride_;
  std::byte* const memory_;
  const bool ordinary_scales_;
  Position at_;
  typename M::Seen seen_;
};

}  // namespace
}  // namespace tidemill
