// How the tile registers of a matrix product are used (simd/amx.h, linear/cpu_amx_kernel.h).
//
// A is 16 rows of weights by 32 columns, B the same columns of up to 16 tokens, as pairs: row k has
// elements 2k and 2k + 1 of each token. C is 16 rows by as many tokens. Two A and two B give the
// four sums that are in work at a time.
#pragma once

#include <cstdint>

#include "ops/linear/cpu_matmul.h"

namespace tidemill {

inline constexpr int64_t kTileSide = kTokenTile;  // rows of A, tokens of B, pairs of both
inline constexpr int64_t kTileColumns = 32;       // of weights
inline constexpr int64_t kTileLine = 64;          // bytes of a full row
inline constexpr int64_t kTileBytes = 16 * 64;
inline constexpr int64_t kAmxRows = 2 * kTileSide;  // of a block of weights
// Of a product; the scratch of a thread holds its sums.
inline constexpr int64_t kAmxRowBlocks = 5;
inline constexpr int64_t kAmxTokens = 512;
// Rows of a unit of many tokens, if that leaves some units for every thread: threads share cores,
// and nobody should wait long for a slower one.
inline constexpr int64_t kAmxUnitRows = 4 * kAmxRows;
inline constexpr int64_t kAmxUnitsPerThread = 5;

// Registers.
inline constexpr int kSums = 0;     // 0..3: row tile * 2 + token tile
inline constexpr int kWeights = 4;  // 4, 5
inline constexpr int kTokens = 6;   // 6, 7

namespace {

// What LDTILECFG reads. Not shared between files compiled with different instructions.
struct alignas(64) TileShape {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // For two tiles of so many tokens; 0: the second one is not used.
  TileShape(int64_t first, int64_t second) {
    const auto set = [&](int tile, int64_t bytes) {
      row_bytes[tile] = static_cast<uint16_t>(bytes);
      rows[tile] = kTileSide;
    };
    const int64_t bytes[2] = {4 * first, 4 * (second > 0 ? second : kTileSide)};
    for (int i = 0; i < 2; ++i) {
      set(kSums + i, bytes[i]);
      set(kSums + 2 + i, bytes[i]);
      set(kWeights + i, kTileLine);
      set(kTokens + i, bytes[i]);
    }
  }
};
static_assert(sizeof(TileShape) == 64);

}  // namespace

}  // namespace tidemill
