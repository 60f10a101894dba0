// Matrix products of the cpu backend: what a thread does with its share of the rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/weights.h"

namespace tidemill {

// Activations as the kernels read them. Before a float32 matrix: rows of float32 as they are.
// Before any other: rows that CpuKernels::prepare wrote, blocks of 32 columns in the layout of the
// table, possibly a selection of them. Tables with a `pack` read tiles instead, one for each 16
// tokens and one for the rest, which it made of such rows: the tile of n tokens lies where their
// rows would, without gaps between these, and has n columns of pairs. One token's tile is its row.
inline constexpr int64_t kTokenTile = 16;
struct TokenRows {
  const std::byte* data = nullptr;
  int64_t stride = 0;  // bytes
  int64_t count = 0;
  const int32_t* index = nullptr;  // row of token i is index[i]; null: i
  int64_t column = 0;              // where the columns of a product begin: a multiple of 32

  const std::byte* row(int64_t i) const {
    return data + (index != nullptr ? index[i] : i) * stride;
  }
  // n tokens from `begin` on; of tiles, where one begins.
  TokenRows part(int64_t begin, int64_t n) const {
    TokenRows result = *this;
    result.count = n;
    if (index != nullptr) {
      result.index += begin;
    } else {
      result.data += begin * stride;
    }
    return result;
  }
};

enum class Store : uint8_t {
  kFloat,  // y = sum
  kAdd,    // y += sum
  kBf16,   // y = bf16(bf16(sum) * scale)
};

// Ordinary values make every product exact and every partial sum a multiple of 2^-126: it may be
// fused, and no hardware takes it for a subnormal number.
//  - activations: bf16, 0 or 2^-50 .. 2^50 in magnitude;
//  - FP8, FP4: scales of 2^-60 .. 2^60, no NaN code; bf16 weights: 0 or 2^-60 .. 2^61.
// The kernels look at the weights themselves and multiply all others one by one, unfused.
enum class Activations : uint8_t {
  kOrdinary,
  kUnusual,
  kUnfit,  // not of bf16, and the layout cannot hold them
};
inline constexpr uint8_t kLowestScale = 67;
inline constexpr uint8_t kScaleRange = 120;
// Bits of a magnitude, one to the left; those of the smallest less 1, where 0 wraps around.
inline constexpr uint32_t kLargestBf16 = (187 << 8) + 0xFF;
inline constexpr uint32_t kSmallestBf16 = (67 << 8) - 1;

// y[t][n - row_begin] = W[n] . x[t] for the rows row_begin <= n < row_end, in the order of the
// table.
// w.cols is a multiple of 32; w.format is not kFp8Row.
struct MatmulArgs {
  const Matrix* w = nullptr;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  TokenRows x = {};
  bool ordinary_x = false;
  float* y = nullptr;
  int64_t y_stride = 0;
  Store store = Store::kBf16;
  float scale = 1;
  bool past_caches = false;      // y is larger than they are: a table may store it around them
  std::byte* scratch = nullptr;  // kMatmulScratch bytes of this thread, aligned to 64
};

// Blocks of a product with many tokens: widened weights and unfinished sums stay in L2 (about half
// a MiB), the activations of a tile in L1.
inline constexpr int64_t kRowBlock = 32;  // the rows of an FP8 scale
inline constexpr int64_t kFewRows = 8;    // instead, for at most kFewTokens
inline constexpr int64_t kFewTokens = 32;
inline constexpr int64_t kTokenBlock = 128;                   // tokens that share widened rows
inline constexpr int64_t kColumnBytes = 40 * 64;              // of a widened row
inline constexpr int64_t kWidenedStride = kColumnBytes + 64;  // rows begin in different cache sets
inline constexpr int64_t kSumRows = kRowBlock + 8;  // three rows beyond the last tile take 4 each
inline constexpr int64_t kSumBytes = 64;            // 16 lanes
inline constexpr int64_t kMatmulScratch =
    kRowBlock * kWidenedStride + kSumRows * kTokenBlock * kSumBytes;

// Columns [begin, end) of one row, widened by the reference, the odd ones of every 32 first. begin
// and end are multiples of 32.
void widen_planes(const Matrix& w, int64_t row, int64_t begin, int64_t end, float* out);

}  // namespace tidemill
