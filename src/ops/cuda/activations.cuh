// Activations as the tensor cores read them: bf16, in the order in which weights of a format are
// widened (weights.cuh), in one of three layouts.
//
// kRows: a row a token; of a chunk first come eight columns of each of the four pieces, then the
// next eight of each; pairs of the eight in the order of instructions. For mma.sync, which takes B
// from registers.
//
// kTiles: tiles of kTileTokens tokens, inside a tile blocks of 64 columns, inside a block a token
// is a line of 128 bytes swizzled for wgmma (tensor_core.cuh). So a block of the first n tokens is
// n * 128 bytes in one piece, which one bulk copy brings to shared memory.
//
// kLines: a row a token, its columns as the lines of a tile have them, not swizzled: what tiles of
// any choice of tokens are copied from.
#pragma once

#include <cuda_fp8.h>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/early_launch.cuh"
#include "ops/cuda/weights.cuh"

namespace tidemill::cuda {

enum class Layout { kRows, kTiles, kLines };
constexpr int kTileTokens = 128;
constexpr int kBlockColumns = 64;
constexpr int kLineBytes = 128;

// Where 16-byte piece `piece` of a line lies in a tile of so many lines.
__device__ inline int64_t tile_byte(int64_t block, int lines, int line, int piece) {
  return (block * lines + line) * kLineBytes + (piece ^ line % 8) * 16;
}

// Where among a line's columns pair q of the eight columns from `column` on lies.
template <WeightFormat kFormat>
__device__ int64_t place_of_pair(int64_t column, int q) {
  constexpr int kPiece = piece_columns(kFormat);
  const int64_t chunk = column / (4 * kPiece);
  const int inside = static_cast<int>(column % (4 * kPiece));
  const int first = inside % kPiece / 4;  // instruction of the first two pairs
  return chunk * 4 * kPiece + 16 * (first + q / 2) + 8 * (q % 2) + 2 * (inside / kPiece);
}

// Where eight columns that begin at `column` (a multiple of 8) lie in a row of kRows.
template <WeightFormat kFormat>
constexpr __host__ __device__ int64_t place_of_eight(int64_t column) {
  constexpr int kPiece = piece_columns(kFormat);
  const auto inside = static_cast<int>(column % (4 * kPiece));
  return column - inside + inside % kPiece * 4 + inside / kPiece * 8;
}

// Four words of each of four threads `step` apart: a thread's i-th word goes to the i-th thread. By
// whole warps.
__device__ inline void transpose_words(uint32_t (&words)[4], int step) {
  const int mine = static_cast<int>(threadIdx.x) / step % 4;
#pragma unroll
  for (int half = 1; half < 4; half *= 2) {
    const bool upper = (mine & half) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & half) != 0) continue;
      uint32_t& kept = words[i];
      uint32_t& given = words[i + half];
      const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, upper ? kept : given, half * step);
      if (upper) {
        kept = got;
      } else {
        given = got;
      }
    }
  }
}

// Eight columns of a token that begin at `column` (a multiple of 8), bf16 values; nothing if
// `beyond`. By whole warps, whose threads have neighbouring eights.
template <WeightFormat kFormat, Layout kLayout>
__device__ void put_eight(const float (&values)[8], uint16_t* out, int64_t row, int64_t width,
                          int64_t column, bool beyond = false) {
  uint32_t pair[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    pair[q] = __float_as_uint(values[column_of_pair<kFormat>(q, 0)]) >> 16 |
              (__float_as_uint(values[column_of_pair<kFormat>(q, 1)]) & 0xFFFF0000u);
  }
  if constexpr (kLayout == Layout::kRows) {
    if (beyond) return;
    *reinterpret_cast<uint4*>(out + row * width + place_of_eight<kFormat>(column)) = {
        pair[0], pair[1], pair[2], pair[3]};
  } else {
    // Pair q of eights a piece apart lie next to each other: 16 bytes that one thread stores.
    constexpr int kStep = piece_columns(kFormat) / 8;
    const auto q = static_cast<int>(column / piece_columns(kFormat) % 4);
    transpose_words(pair, kStep);
    if (beyond) return;
    const int64_t at = place_of_pair<kFormat>(column - q * piece_columns(kFormat), q);
    const auto line = static_cast<int>(row % kTileTokens);
    auto* to =
        reinterpret_cast<uint8_t*>(out + (kLayout == Layout::kTiles ? row - line : row) * width);
    const auto piece = static_cast<int>(at % kBlockColumns / 8);
    to += kLayout == Layout::kLines ? at * 2
                                    : tile_byte(at / kBlockColumns, kTileTokens, line, piece);
    *reinterpret_cast<uint4*>(to) = {pair[0], pair[1], pair[2], pair[3]};
  }
}

// Q8 of two values of a block that has this scale, a power of two, and its inverse.
__device__ inline float q8_inverse_scale(uint32_t byte) {
  return e8m0_to_float(byte == 255 ? 255 : 254 - byte);
}
__device__ inline float2 q8_values(float2 values, float scale, float inverse) {
  const __nv_fp8x2_storage_t codes = __nv_cvt_float2_to_fp8x2(
      {mul(values.x, inverse), mul(values.y, inverse)}, __NV_SATFINITE, __NV_E4M3);
  const float2 rounded = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
  return {mul(rounded.x, scale), mul(rounded.y, scale)};
}

// Q8 of 32 columns that four neighbouring threads hold, eight each; all 32 threads of the warp
// call.
__device__ inline void quantise_eight(float (&values)[8]) {
  float largest = absolute_max(values, 8);
  largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
  const uint32_t byte = q8_scale_of(largest);
  const float scale = e8m0_to_float(byte);
  const float inverse = q8_inverse_scale(byte);
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const float2 two = q8_values({values[i], values[i + 1]}, scale, inverse);
    values[i] = two.x;
    values[i + 1] = two.y;
  }
}

// Eight columns of row t of x, of either kind.
__device__ inline void load_eight(const Rows& x, int64_t t, int64_t column, float (&values)[8]) {
  if (x.element == Element::kBf16) {
    const uint4 pairs = *reinterpret_cast<const uint4*>(x.bf16(t) + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t pair = word(pairs, i / 2);
      values[i] = __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u);
    }
    return;
  }
  const auto* from = reinterpret_cast<const float4*>(x.f32(t) + column);
  const float4 low = from[0];
  const float4 high = from[1];
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

// All of x, Q8 of it if `quantise`. Blocks of whole warps; launched early.
template <WeightFormat kFormat, Layout kLayout>
__global__ void store_activations_kernel(Rows x, bool quantise, uint16_t* out) {
  allow_next();
  await_previous();
  const int64_t eights = x.width / 8;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t last = x.count * eights - 1;
  const int64_t n = min(i, last);  // whole warps go on
  float values[8];
  load_eight(x, n / eights, n % eights * 8, values);
  if (quantise) quantise_eight(values);
  put_eight<kFormat, kLayout>(values, out, n / eights, x.width, n % eights * 8, i > last);
}

}  // namespace tidemill::cuda
