// Tiles of a matrix product over a policy M (linear/cpu_planes.h, simd/avx512bf16.h): a few rows by
// a few tokens, the sums in registers.
#pragma once

#include "ops/linear/cpu_planes.h"

namespace tidemill {
namespace {

template <class S>
bool ordinary_scales(const uint8_t* scales, int64_t n) {
  auto largest = S::byte_set(0);
  const auto add = [&](const uint8_t* p) {
    const auto distance = S::byte_sub(S::byte_load(p), S::byte_set(kLowestScale));
    largest = S::byte_max(largest, distance);
  };
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) add(scales + i);
  if (i == n || n > 32) {  // the rest with some of those before it
    if (i < n) add(scales + n - 32);
    return S::bytes_at_most(largest, kScaleRange);
  }
  bool ordinary = true;
  for (i = 0; i < n; ++i) ordinary &= static_cast<uint8_t>(scales[i] - kLowestScale) <= kScaleRange;
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

// body<format>() for a format that is widened. Not for float32, which is used as it is, and tables
// (kFp8Row), which are gathered, not multiplied.
template <class Body>
void with_format(WeightFormat format, const Body& body) {
  switch (format) {
    case WeightFormat::kBf16:
      return body.template operator()<WeightFormat::kBf16>();
    case WeightFormat::kFp8Block:
      return body.template operator()<WeightFormat::kFp8Block>();
    case WeightFormat::kFp4Row:
      return body.template operator()<WeightFormat::kFp4Row>();
    case WeightFormat::kF32:
    case WeightFormat::kFp8Row:
      return;
  }
}

// Columns from k on of the rows of a tile.
template <WeightFormat kFormat>
struct TileWeights {
  static constexpr int64_t kBlockBytes =  // of 32 columns
      kFormat == WeightFormat::kF32      ? 128
      : kFormat == WeightFormat::kBf16   ? 64
      : kFormat == WeightFormat::kFp4Row ? 16
                                         : 32;
  static constexpr bool kScaled =
      kFormat == WeightFormat::kFp4Row || kFormat == WeightFormat::kFp8Block;

  const uint8_t* data;
  const uint8_t* scales;
  int64_t stride;        // bytes from row to row
  int64_t scale_stride;  // rows of one FP8 block share their scales

  TileWeights(const Matrix& w, int64_t row, int64_t k) {
    const int64_t blocks = w.cols / 32;
    stride = blocks * kBlockBytes;
    data = static_cast<const uint8_t*>(w.data) + row * stride + k / 32 * kBlockBytes;
    scale_stride = kFormat == WeightFormat::kFp4Row ? blocks : 0;
    const int64_t scale_row = kFormat == WeightFormat::kFp4Row ? row : row / 32;
    scales = kScaled ? w.scales + scale_row * blocks + k / 32 : data;  // or not read
  }

  template <class S>
  bool ordinary_scales(int64_t rows, int64_t n) const {
    bool ordinary = true;
    if constexpr (kScaled) {
      if (scale_stride == 0) rows = 1;
      for (int64_t r = 0; r < rows; ++r) {
        ordinary &= tidemill::ordinary_scales<S>(scales + r * scale_stride, n / 32);
      }
    }
    return ordinary;
  }
};

// A tile of kTokens x kRows sums over columns [k, k + n). Where the matrix has no kRows rows left
// all rows are the same one and only the first counts.
template <class M, int kTokens, int kRows>
struct Tile {
  const typename M::Element* x[kTokens];  // from column k on
  int64_t row;
  int64_t rows;  // kRows or 1
  int64_t k;
  int64_t n;
  typename M::F (*sum)[kRows];  // [kTokens], of the columns before k; void for k = 0

  bool first() const { return k == 0; }
};

// The rows of a tile, a block of 32 columns at a time.
template <WeightFormat kFormat, int kRows>
class TileRows {
 public:
  static constexpr int64_t kBlockBytes = TileWeights<kFormat>::kBlockBytes;

  // Asks for what lies `ahead` bytes after the block it stands at.
  TileRows(TileWeights<kFormat> w, bool one_row, int64_t ahead)
      : data_{w.data}, scales_{w.scales}, stride_(w.stride), scale_stride_(w.scale_stride) {
    if (one_row) stride_ = scale_stride_ = 0;
    data_[1] = data_[0] + 4 * stride_;
    scales_[1] = scales_[0] + 4 * scale_stride_;
    // Rows beyond the fourth have pointers of their own, which the compiler must not see through: 8
    // addresses from few registers.
    asm("" : "+r"(data_[1]), "+r"(scales_[1]));
    for (int64_t i = 0; i < kTurns; ++i) asked_[i] = ahead + i * kAsked % kRows * stride_;
  }

  const uint8_t* data(int r) const { return data_[r / 4] + r % 4 * stride_; }
  const uint8_t* scale(int r) const {
    if constexpr (kFormat == WeightFormat::kFp8Block) return scales_[0];  // of all of them
    return scales_[r / 4] + r % 4 * scale_stride_;
  }
  template <class S>
  void prefetch(int64_t block) const {
    const uint8_t* next = data_[0] + asked_[block % kTurns];
#pragma GCC unroll 16
    for (int r = 0; r < kAsked; ++r) S::prefetch(next + r * stride_);
  }
  void next_block() {
    for (int i = 0; i < 2; ++i) {
      data_[i] += kBlockBytes;
      ++scales_[i];
    }
  }

 private:
  // The blocks of columns that share a line of 64 bytes take turns in asking for it.
  static constexpr int64_t kTurns = kBlockBytes < 64 ? 64 / kBlockBytes : 1;
  static constexpr int kAsked = kRows > kTurns ? kRows / kTurns : 1;

  const uint8_t* data_[2];
  const uint8_t* scales_[2];
  int64_t stride_;
  int64_t scale_stride_;
  int64_t asked_[kTurns];
};

// Finishes the sums of the tile for the tokens from `token` on.
template <class M, int kTokens, int kRows>
void store_sums(const MatmulArgs& a, const Tile<M, kTokens, kRows>& tile, int64_t token) {
  using S = typename M::Float;
  constexpr int kSums = kTokens * kRows;
  alignas(64) float out[(kSums + 15) / 16 * 16] = {};
  const auto at = [&](int i) { return i < kSums ? tile.sum[i / kRows][i % kRows] : S::zero(); };
#pragma GCC unroll 16
  for (int i = 0; i < kSums; i += 4) S::reduce4(at(i), at(i + 1), at(i + 2), at(i + 3), out + i);
  if (a.store == Store::kBf16) {
    for (int i = 0; i < kSums; i += 16) {
      const auto y = round_bf16<S>(S::load(out + i));
      S::store(out + i, a.scale == 1 ? y : round_bf16<S>(S::mul(y, S::set(a.scale))));
    }
  }
  float* y = a.y + token * a.y_stride + tile.row - a.row_begin;
  const auto store = [&](int64_t rows) {
    float* to = y;
    for (int t = 0; t < kTokens; ++t, to += a.y_stride) {
      for (int64_t r = 0; r < rows; ++r) {
        to[r] = a.store == Store::kAdd ? to[r] + out[t * kRows + r] : out[t * kRows + r];
      }
    }
  };
  tile.rows == kRows ? store(kRows) : store(1);  // the first with a known length
}

// ---- the products of a tile

// Widened rows of a block.
template <class M>
struct Kept {
  typename M::Element* data = nullptr;  // of the tile's first row
  int64_t stride = 0;
};

// multiply_stored for one token and ordinary scales, from column 0 on, in half registers.
template <class M, WeightFormat kFormat, int kRows>
void multiply_halves(TileRows<kFormat, kRows> rows, const Tile<M, 1, kRows>& tile) {
  using Halves = typename M::Halves;
  typename Halves::F sum[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sum[r] = Halves::zero();
  for (int64_t block = 0; block < tile.n / 32; ++block, rows.next_block()) {
    rows.template prefetch<typename M::Float>(block);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const auto* x = tile.x[0] + block * 32 + 16 * half;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        sum[r].half[half] = Halves::multiply_add(
            Halves::widen(rows.data(r) + 8 * half, *rows.scale(r)), x, sum[r].half[half]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) tile.sum[0][r] = Halves::whole(sum[r]);
}

// Widens the rows in registers, and keeps them if told to. Returns whether they are ordinary; if
// not, the sums are as before. Prefetches what lies `ahead` bytes after the rows.
template <class M, WeightFormat kFormat, bool kKeep, int kTokens, int kRows>
bool multiply_stored(const MatmulArgs& a, const Tile<M, kTokens, kRows>& tile, Kept<M> kept,
                     int64_t ahead) {
  using S = typename M::Float;
  using Vector = typename M::Vector;
  constexpr bool kFused = kFormat != WeightFormat::kF32;
  const TileWeights<kFormat> w(*a.w, tile.row, tile.k);
  if (!w.template ordinary_scales<S>(tile.rows, tile.n)) return false;
  TileRows<kFormat, kRows> rows(w, tile.rows < kRows, ahead);
  if constexpr (!kKeep && kTokens == 1 && M::template kInHalves<kFormat>) {
    multiply_halves<M>(rows, tile);
    return true;
  }

  typename M::Seen seen;
  const typename M::Element* x[kTokens];
  typename M::F sum[kTokens][kRows];
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
    x[t] = tile.x[t];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[t][r] = tile.first() ? S::zero() : tile.sum[t][r];
  }
  for (int64_t block = 0; block < tile.n / 32; ++block, rows.next_block()) {
    rows.template prefetch<S>(block);
    if constexpr (M::kVectors == 1) {
      Vector wide[kRows][1];
      M::template widen_rows<kFormat>(rows, wide, seen);
      if constexpr (kKeep) {
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          M::store_register(kept.data + r * kept.stride + block * 32, wide[r][0]);
        }
      }
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) {
        const Vector value = M::load_register(x[t] + block * 32);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          sum[t][r] = M::template multiply_add<kFused>(wide[r][0], value, sum[t][r]);
        }
      }
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        Vector wide[M::kVectors];
        M::template widen<kFormat>(rows.data(r), rows.scale(r), wide, seen);
        if constexpr (kKeep) {
#pragma GCC unroll 4
          for (int v = 0; v < M::kVectors; ++v) {
            M::store_register(kept.data + r * kept.stride + block * 32 + v * M::kElements, wide[v]);
          }
        }
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; ++t) {
          // With 16 registers: or its values stay in them, and sums in memory.
          if constexpr (M::kRegisters > 1) asm("" : "+r"(x[t]));
#pragma GCC unroll 4
          for (int v = 0; v < M::kVectors; ++v) {
            auto& s = M::part(sum[t][r], v % M::kRegisters);
            const Vector value = M::load_register(x[t] + block * 32 + v * M::kElements);
            s = M::template multiply_add<kFused>(wide[v], value, s);
          }
        }
      }
    }
  }
  if (!M::template ordinary<kFormat>(seen)) return false;
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) tile.sum[t][r] = sum[t][r];
  }
  return true;
}

// Only widens and keeps the rows of the tile; otherwise like multiply_stored.
template <class M, WeightFormat kFormat, int kTokens, int kRows>
bool keep_rows(const MatmulArgs& a, const Tile<M, kTokens, kRows>& tile, Kept<M> kept,
               int64_t ahead) {
  constexpr int64_t kBlockBytes = TileWeights<kFormat>::kBlockBytes;
  const TileWeights<kFormat> w(*a.w, tile.row, tile.k);
  if (!w.template ordinary_scales<typename M::Float>(tile.rows, tile.n)) return false;
  typename M::Seen seen;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const uint8_t* data = w.data + r * w.stride;
    const uint8_t* scales = w.scales + r * w.scale_stride;
    for (int64_t block = 0; block < tile.n / 32; ++block) {
      M::Float::prefetch(data + block * kBlockBytes + ahead);
      typename M::Vector wide[M::kVectors];
      M::template widen<kFormat>(data + block * kBlockBytes, scales + block, wide, seen);
#pragma GCC unroll 4
      for (int v = 0; v < M::kVectors; ++v) {
        M::store_register(kept.data + r * kept.stride + block * 32 + v * M::kElements, wide[v]);
      }
    }
  }
  return M::template ordinary<kFormat>(seen);
}

// sum[t][r] += widened row r . x[t] over n columns. One register's share of the lanes at a time, so
// that a tile fits the register file; the first sums begin at 0. Also for activations by
// activations, with M = S.
template <class M, bool kFused, int kTokens, int kRows>
void multiply_tile(const typename M::Element* w, int64_t w_stride,
                   const typename M::Element* const* x, int64_t n, typename M::F (*sum)[kRows],
                   bool first = false) {
  using Vector = typename M::Vector;
#pragma GCC unroll 2
  for (int part = 0; part < M::kRegisters; ++part) {
    typename M::Register acc[kTokens][kRows];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        typename M::F none = M::zero();
        acc[t][r] = first ? M::part(none, part) : M::part(sum[t][r], part);
      }
    }
    for (int64_t k = part * M::kElements; k < n; k += M::kRegisters * M::kElements) {
      Vector value[kTokens];
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) value[t] = M::load_register(x[t] + k);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Vector row = M::load_register(w + r * w_stride + k);
#pragma GCC unroll 16
        for (int t = 0; t < kTokens; ++t) {
          acc[t][r] = M::template multiply_add<kFused>(row, value[t], acc[t][r]);
        }
      }
    }
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) M::part(sum[t][r], part) = acc[t][r];
    }
  }
}

// Any values: multiplies and adds separately.
template <class M, WeightFormat kFormat, int kTokens, int kRows>
void multiply_unusual(const MatmulArgs& a, const Tile<M, kTokens, kRows>& tile) {
  using F = typename M::F;
  constexpr int64_t kColumns = 512;
  alignas(64) typename M::Float::Element wide[kColumns];
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t begin = 0; begin < tile.n; begin += kColumns) {
      const int64_t n = tile.n - begin < kColumns ? tile.n - begin : kColumns;
      widen_planes(*a.w, tile.row + r, tile.k + begin, tile.k + begin + n, wide);
      for (int t = 0; t < kTokens; ++t) {
        F sum = tile.first() && begin == 0 ? M::zero() : tile.sum[t][r];
        for (int64_t k = 0; k < n; k += 32) {
          F odd;
          F even;
          M::planes(tile.x[t] + begin + k, odd, even);
          sum = M::add(sum, M::mul(M::Float::load(wide + k), odd));
          sum = M::add(sum, M::mul(M::Float::load(wide + k + 16), even));
        }
        tile.sum[t][r] = sum;
      }
    }
  }
}

}  // namespace
}  // namespace tidemill
