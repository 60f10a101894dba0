// Weights as the tensor cores read them: 16 bytes of a row at a time, widened to bf16 in registers.
//
// A row is read in chunks of 64 bytes. Of a chunk, thread c of four (lane % 4) reads piece c, 16
// bytes of E columns, for rows g and g + 8 (g = lane / 4): the A fragments of E / 4 matrix
// instructions of depth 16. So the columns of one instruction are not neighbours; activations are
// stored in the same order (activations.cuh). All values are exact in bf16: at most four bits times
// a power of two.
//
// Products of a row are added in 1, 2, 4 or 8 segments of whole units, a unit being a chunk or 64
// columns. The tensor cores add up a segment in ascending order, then the segments' sums are added
// in ascending order. How many segments a matrix has depends on its shape alone (segments_of), so
// a sum is the same for any count of tokens.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "model/weights.h"

namespace tidemill::cuda {

constexpr int kMostSegments = 8;
constexpr int kPieceBytes = 16;
constexpr int kChunkBytes = 4 * kPieceBytes;

// Columns of a piece.
constexpr __host__ __device__ int piece_columns(WeightFormat format) {
  return format == WeightFormat::kBf16 ? 8 : format == WeightFormat::kFp4Row ? 32 : 16;
}
constexpr __host__ __device__ int chunk_columns(WeightFormat format) {
  return 4 * piece_columns(format);
}
constexpr __host__ __device__ int unit_columns(WeightFormat format) {
  return chunk_columns(format) < 64 ? 64 : chunk_columns(format);
}
// Segments of a matrix: as many as give the warps of a device something to read when there are few
// tokens.
constexpr int segments_of(int64_t rows) {
  int segments = 1;
  while (segments < kMostSegments && rows / 16 * segments < 2048) segments *= 2;
  return segments;
}
// The first unit of a segment, of `units` in a row.
constexpr __host__ __device__ int segment_begin(int segment, int units, int segments) {
  return segment * units / segments;
}
// Whether the kernels for tensor cores take such a matrix.
inline bool has_fragments(const Matrix& w) {
  return (w.format == WeightFormat::kBf16 || w.format == WeightFormat::kFp8Block ||
          w.format == WeightFormat::kFp4Row) &&
         w.rows % 16 == 0 &&
         w.cols % (w.format == WeightFormat::kBf16 ? 64 : 128) == 0 &&  // scales in words, too
         reinterpret_cast<uintptr_t>(w.data) % kPieceBytes == 0 &&
         reinterpret_cast<uintptr_t>(w.scales) % 4 == 0;
}

// Which of eight neighbouring columns is value i (0, 1) of pair q (0 to 3). A piece has E / 8 such
// groups; pairs 2 j and 2 j + 1 of a piece belong to instruction j: its columns 2 c and 2 c + 1,
// and 2 c + 8 and 2 c + 9. The orders are those in which widening yields pairs.
template <WeightFormat kFormat>
constexpr __host__ __device__ int column_of_pair(int q, int i) {
  if (kFormat == WeightFormat::kFp4Row) return q + 4 * i;
  if (kFormat == WeightFormat::kBf16) return 2 * q + i;
  return q / 2 * 4 + q % 2 + 2 * i;
}

// Where a column of eight lies among the pairs' values.
template <WeightFormat kFormat>
constexpr __host__ __device__ int place_of_column(int column) {
  int place = 0;
  while (column_of_pair<kFormat>(place / 2, place % 2) != column) ++place;
  return place;
}

__device__ inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  __nv_bfloat162 x, y;
  memcpy(&x, &a, 4);
  memcpy(&y, &b, 4);
  x = __hmul2(x, y);
  memcpy(&a, &x, 4);
  return a;
}

// Bits of `a` where the mask has ones, otherwise of `b`: one instruction, which the compiler would
// take apart.
__device__ inline uint32_t choose(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(result) : "r"(mask), "r"(a), "r"(b));
  return result;
}

// The power of two that makes codes, placed at the low end of a bf16's bits, the values that they
// stand for: 2^(byte - 127) and the difference of the exponents' biases. It is at most 2^127; what
// is left of larger ones, which no released model has, is `rest`.
template <WeightFormat kFormat>
struct Scale {
  uint32_t factor = 0;  // twice the same bf16
  uint32_t byte = 0;

  static constexpr uint32_t kBias = kFormat == WeightFormat::kFp4Row ? 126 : 120;

  Scale() = default;
  __device__ explicit Scale(uint32_t scale) : byte(scale) {
    factor = min(scale + kBias, 254u) * 0x00800080u;
  }
  __device__ bool large() const { return byte + kBias > 254; }
  __device__ uint32_t rest() const {
    const uint32_t bits = byte == 255 ? 0x7FC0u : (max(byte + kBias, 254u) - 127) << 7;
    return bits | bits << 16;
  }
};

// Pair q (of 2 E / 4) of a piece, not yet multiplied by the scale.
template <WeightFormat kFormat>
__device__ uint32_t codes_of_pair(const uint4& piece, int q) {
  if constexpr (kFormat == WeightFormat::kBf16) {
    return word(piece, q);
  } else if constexpr (kFormat == WeightFormat::kFp4Row) {
    // Of two codes in each half of a word, magnitudes and signs are brought to the distance that
    // they have in bf16; then a shift and a mask make a pair.
    const uint32_t w = word(piece, q / 4);
    constexpr uint32_t kPlaces =
        0x81C081C0u;  // sign, lowest bits of the exponent, highest one below
    if (q % 4 < 2) {
      const uint32_t apart = choose(0x00770077u, w, w << 6);
      return apart << (q % 4 == 0 ? 6 : 2) & kPlaces;
    }
    const uint32_t apart = choose(0x88008800u, w, w >> 6);
    return (q % 4 == 2 ? apart << 4 : apart) & kPlaces;
  } else {
    constexpr uint32_t kSigns = 0x80008000u;
    constexpr uint32_t kMagnitudes = 0x07F007F0u;
    const uint32_t w = word(piece, q / 2);
    return q % 2 == 0 ? ((w << 4) & kMagnitudes) | ((w << 8) & kSigns)
                      : ((w >> 4) & kMagnitudes) | (w & kSigns);
  }
}

// Where a thread finds its pieces and scales of a matrix, row `row` on: those of row + lane / 4.
template <WeightFormat kFormat>
struct ThreadRows {
  static constexpr bool kFp4 = kFormat == WeightFormat::kFp4Row;
  static constexpr bool kScaled = kFormat != WeightFormat::kBf16;

  const uint8_t* pieces = nullptr;  // of chunk 0; the next chunk's 64 bytes on
  const uint8_t* scales = nullptr;  // of the row, or of the 32 rows that it lies in

  ThreadRows() = default;
  __device__ ThreadRows(const void* data, const uint8_t* all_scales, int64_t columns, int64_t row) {
    const int lane = threadIdx.x % 32;
    pieces = static_cast<const uint8_t*>(data) + (row + lane / 4) * row_bytes(columns) +
             lane % 4 * kPieceBytes;
    if constexpr (kScaled) {
      scales = all_scales + (kFp4 ? row + lane / 4 : row / 32) * (columns / 32);
    }
  }
  static __device__ int64_t row_bytes(int64_t columns) {
    return columns / piece_columns(kFormat) * kPieceBytes;
  }
  // Of a chunk's scale among the row's.
  static __device__ int scale_at(int chunk) {
    const int c = threadIdx.x % 4;
    return kFp4 ? 4 * chunk + c : 2 * chunk + c / 2;
  }
};

// A thread's part of one chunk of a tile of 16 rows: rows g and g + 8.
template <WeightFormat kFormat>
struct Chunk {
  uint4 piece[2];
  uint32_t scale[2];  // bytes

  // The A fragment of instruction `step` (of E / 4), short of the rest of large scales.
  __device__ void fragment(int step, uint32_t (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = codes_of_pair<kFormat>(piece[i % 2], 2 * step + i / 2);
    if constexpr (kFormat != WeightFormat::kBf16) {
      const uint32_t factors[2] = {Scale<kFormat>(scale[0]).factor,
                                   Scale<kFormat>(scale[1]).factor};
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = multiply_bf16x2(a[i], factors[i % 2]);
    }
  }
  __device__ bool large() const {
    if constexpr (kFormat == WeightFormat::kBf16) return false;
    return Scale<kFormat>(max(scale[0], scale[1])).large();
  }
  // Multiplies a fragment by that rest.
  __device__ void enlarge(uint32_t (&a)[4]) const {
    const uint32_t rests[2] = {Scale<kFormat>(scale[0]).rest(), Scale<kFormat>(scale[1]).rest()};
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = multiply_bf16x2(a[i], rests[i % 2]);
  }
};

}  // namespace tidemill::cuda
