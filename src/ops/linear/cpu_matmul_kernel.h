// Kernel of cpu_matmul.h over a policy M (linear/cpu_planes.h, simd/avx512bf16.h).
//
// Rows are widened in registers and multiplied at once by a tile of tokens; with more tokens than a
// tile holds they are also kept, a block of rows and columns at a time, for the tiles that follow.
// Every way adds in canonical order, so that the choice cannot be seen in a result.
#pragma once

#include "ops/linear/cpu_tile_kernel.h"

namespace tidemill {
namespace {

// Columns [k, k + n) of at most kRowBlock rows, and a block of tokens.
template <class M>
struct Block {
  int64_t row = 0;
  int64_t rows = 0;
  int64_t token = 0;
  int64_t k = 0;
  int64_t n = 0;
  bool last = false;                       // the sums are complete after these columns
  int64_t ahead = 0;                       // bytes to the block that follows
  bool unusual[kRowBlock] = {};            // the tile that begins with this row, so far
  typename M::Element* widened = nullptr;  // [kRowBlock], kWidenedStride
  typename M::F* sums = nullptr;           // [tokens][kSumRows]
};

// How far to prefetch (measured): one tile ahead, unless that much would not stay in L2; there the
// hardware, which stops at every page, does most of it.
inline int64_t tile_ahead(int64_t tile_bytes) {
  constexpr int64_t kTooEarly = 64 << 10;
  constexpr int64_t kNear = 256;
  return tile_bytes <= kTooEarly ? tile_bytes : kNear;
}

// Half registers make small tiles, which read widened rows more often than L2 could follow: they
// shall stay in L1.
template <class M>
inline constexpr bool kRowsInL1 = M::kRegisters > 1;
inline constexpr int64_t kColumnBytesInL1 = 32 * 64;
static_assert(kColumnBytesInL1 <= kColumnBytes);

enum class Use : uint8_t {
  kOnce,   // one tile of tokens
  kFirst,  // the rows are widened and kept
  kAgain,  // they were
};

template <class M, WeightFormat kFormat, Use kUse, int kTokens, int kRows>
void run_tile(const MatmulArgs& a, Block<M>& block, int64_t token, int64_t first, int64_t rows,
              int64_t slot) {
  constexpr bool kFused = kFormat != WeightFormat::kF32;
  // With half registers there are too few to widen and multiply a whole tile.
  constexpr bool kKeepOnly = kUse == Use::kFirst && M::kRegisters > 1;
  Tile<M, kTokens, kRows> tile;
  for (int t = 0; t < kTokens; ++t) {
    tile.x[t] =
        reinterpret_cast<const typename M::Element*>(a.x.row(token + t)) + a.x.column + block.k;
  }
  tile.row = block.row + first;
  tile.rows = rows;
  tile.k = block.k;
  tile.n = block.n;
  tile.sum = reinterpret_cast<typename M::F(*)[kRows]>(
      block.sums + (token - block.token) * kSumRows + slot * kTokens);

  Kept<M> kept;
  if constexpr (kUse != Use::kOnce) {
    constexpr int64_t kStride = kWidenedStride / int64_t{sizeof(typename M::Element)};
    kept = {block.widened + first * kStride, rows < kRows ? 0 : kStride};
  }
  // From the first unusual columns on: their sums may be subnormal (cpu_matmul.h).
  bool& unusual = block.unusual[first];
  if constexpr (kKeepOnly) {
    unusual =
        unusual || (kFused && !a.ordinary_x) || !keep_rows<M, kFormat>(a, tile, kept, block.ahead);
  } else if constexpr (kUse != Use::kAgain) {
    const int64_t ahead = kUse == Use::kOnce ? tile_ahead(kRows * a.w->row_bytes()) : block.ahead;
    unusual = unusual || (kFused && !a.ordinary_x) ||
              !multiply_stored<M, kFormat, kUse == Use::kFirst>(a, tile, kept, ahead);
  }
  if constexpr (kKeepOnly || kUse == Use::kAgain) {
    if (!unusual) {
      multiply_tile<M, kFused, kTokens, kRows>(kept.data, kept.stride, tile.x, tile.n, tile.sum,
                                               tile.first());
    }
  }
  if (unusual) multiply_unusual<M, kFormat>(a, tile);
  if (block.last) store_sums(a, tile, token);
}

template <class M, WeightFormat kFormat, Use kUse, int kTokens>
void multiply_rows(const MatmulArgs& a, Block<M>& block, int64_t token) {
  constexpr int kRows = kUse == Use::kOnce ? M::decode_rows(kTokens) : M::kTileRows;
  int64_t r = 0;
  for (; r + kRows <= block.rows; r += kRows) {
    run_tile<M, kFormat, kUse, kTokens, kRows>(a, block, token, r, kRows, r);
  }
  if constexpr (kRows == 8) {
    if (r + 4 <= block.rows) {
      run_tile<M, kFormat, kUse, kTokens, 4>(a, block, token, r, 4, r);
      r += 4;
    }
  }
  for (int64_t slot = r; r < block.rows; ++r, slot += kRows) {
    run_tile<M, kFormat, kUse, kTokens, kRows>(a, block, token, r, 1, slot);
  }
}

template <class M, WeightFormat kFormat, Use kUse, int kTokens = 1>
void multiply_tokens(const MatmulArgs& a, Block<M>& block, int64_t token, int64_t tokens) {
  if (tokens == kTokens) return multiply_rows<M, kFormat, kUse, kTokens>(a, block, token);
  if constexpr (kTokens < (kUse == Use::kOnce ? M::kDecodeTokens : M::kTileTokens)) {
    multiply_tokens<M, kFormat, kUse, kTokens + 1>(a, block, token, tokens);
  }
}

// Part i of n things in `parts` parts of almost equal size begins here.
inline int64_t part_begin(int64_t n, int64_t parts, int64_t i) { return n * i / parts; }

template <class M, WeightFormat kFormat>
void multiply_block(const MatmulArgs& a, Block<M>& block, int64_t tokens) {
  if (tokens <= M::kDecodeTokens) {
    block.n = a.w->cols;
    block.last = true;
    return multiply_tokens<M, kFormat, Use::kOnce>(a, block, block.token, tokens);
  }
  constexpr int64_t kBytes = kRowsInL1<M> ? kColumnBytesInL1 : kColumnBytes;
  constexpr int64_t kColumns = kBytes / int64_t{sizeof(typename M::Element)};
  constexpr int64_t kBlockBytes = TileWeights<kFormat>::kBlockBytes;
  const int64_t blocks = a.w->cols / 32;
  const int64_t column_blocks = (a.w->cols + kColumns - 1) / kColumns;
  const int64_t tiles = (tokens + M::kTileTokens - 1) / M::kTileTokens;
  for (int64_t c = 0; c < column_blocks; ++c) {
    const int64_t begin = part_begin(blocks, column_blocks, c);
    const int64_t end = part_begin(blocks, column_blocks, c + 1);
    block.k = begin * 32;
    block.n = (end - begin) * 32;
    block.last = c + 1 == column_blocks;
    block.ahead = (block.last ? block.rows * blocks - begin : end - begin) * kBlockBytes;
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t first = part_begin(tokens, tiles, i);
      const int64_t count = part_begin(tokens, tiles, i + 1) - first;
      if (i == 0) {
        multiply_tokens<M, kFormat, Use::kFirst>(a, block, block.token, count);
      } else {
        multiply_tokens<M, kFormat, Use::kAgain>(a, block, block.token + first, count);
      }
    }
  }
}

template <class M, WeightFormat kFormat>
void matmul_format(const MatmulArgs& a) {
  // A block has one row of FP8 scales; with few tokens its widened rows stay in L1.
  const int64_t row_block = kRowsInL1<M> || a.x.count <= kFewTokens ? kFewRows : kRowBlock;
  static_assert(kRowBlock % kFewRows == 0);
  const int64_t token_blocks = (a.x.count + kTokenBlock - 1) / kTokenBlock;
  for (int64_t row = a.row_begin; row < a.row_end;) {
    const int64_t boundary = (row / row_block + 1) * row_block;
    const int64_t end = boundary < a.row_end ? boundary : a.row_end;
    for (int64_t i = 0; i < token_blocks; ++i) {
      Block<M> block;
      block.row = row;
      block.rows = end - row;
      block.token = part_begin(a.x.count, token_blocks, i);
      block.widened = reinterpret_cast<typename M::Element*>(a.scratch);
      block.sums = reinterpret_cast<typename M::F*>(a.scratch + kRowBlock * kWidenedStride);
      multiply_block<M, kFormat>(a, block,
                                 part_begin(a.x.count, token_blocks, i + 1) - block.token);
    }
    row = end;
  }
}

template <class M>
void matmul(const MatmulArgs& a) {
  if (a.w->format == WeightFormat::kF32) {
    return matmul_format<Planes<typename M::Float>, WeightFormat::kF32>(a);
  }
  with_format(a.w->format, [&]<WeightFormat kFormat>() { matmul_format<M, kFormat>(a); });
}

}  // namespace
}  // namespace tidemill
