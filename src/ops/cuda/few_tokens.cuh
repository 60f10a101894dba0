// Products of weights with few tokens, at the speed at which weights arrive. A warp has tiles of 16
// rows, one after the other, and of these one segment of the columns. Every thread copies its own
// pieces of weights into its own part of shared memory, some chunks ahead and on across tiles, so
// that reading never waits for multiplying. Copies begin before the activations are there
// (early_launch.cuh).
#pragma once

#include "ops/cuda/activations.cuh"
#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/early_launch.cuh"
#include "ops/cuda/tensor_core.cuh"
#include "ops/cuda/weights.cuh"

namespace tidemill::cuda {

constexpr int kFewWarps = 8;
constexpr int kFewThreads = 32 * kFewWarps;
constexpr int kFewRows = 16;     // of a tile
constexpr int kGroupTokens = 8;  // of a matrix instruction

// Eight rows of a matrix.
struct EightRows {
  const void* data;
  const uint8_t* scales;
  int64_t row;
};

// A tile as a thread reads it: its pieces of rows g and g + 8, and a warp's scales, of which a pair
// of chunks has a word per row and chunk (FP4; thread 2 r + c those of row r, chunk c) or one per
// eight rows and chunk (FP8; thread 2 c + h those of half h).
template <WeightFormat kFormat>
struct RowPair {
  const uint8_t* low = nullptr;
  const uint8_t* high = nullptr;
  const uint8_t* scales = nullptr;

  RowPair() = default;
  __device__ RowPair(const EightRows& first, const EightRows& second, int64_t columns) {
    low = ThreadRows<kFormat>(first.data, first.scales, columns, first.row).pieces;
    high = ThreadRows<kFormat>(second.data, second.scales, columns, second.row).pieces;
    const int lane = threadIdx.x % 32;
    if constexpr (kFormat == WeightFormat::kFp4Row) {
      const EightRows& rows = lane < 16 ? first : second;
      scales = rows.scales + (rows.row + lane / 2 % 8) * (columns / 32);
    } else if constexpr (kFormat == WeightFormat::kFp8Block) {
      const EightRows& rows = lane % 2 == 0 ? first : second;
      scales = rows.scales + rows.row / 32 * (columns / 32);
    }
  }
};

// Asks the L2 cache for `bytes` of each row of a tile, from byte `from` of the row on (multiples of
// 16). By a warp.
template <WeightFormat kFormat>
__device__ inline void fetch_rows(const EightRows& first, const EightRows& second, int64_t columns,
                                  int from, int bytes) {
  const int lane = threadIdx.x % 32;
  if (lane >= kFewRows || bytes <= 0) return;
  const EightRows& rows = lane < 8 ? first : second;
  const uint8_t* row = static_cast<const uint8_t*>(rows.data) +
                       (rows.row + lane % 8) * ThreadRows<kFormat>::row_bytes(columns) + from;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(row), "r"(bytes) : "memory");
}

// Asks it for a matrix or a part of one, by the whole grid.
__device__ inline void fetch_all(const void* data, int64_t bytes) {
  constexpr int64_t kPiece = 2048;
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = (int64_t{threadIdx.x} * gridDim.x + blockIdx.x) * kPiece; at < bytes;
       at += threads * kPiece) {
    const auto size = static_cast<uint32_t>(min(kPiece, bytes - at));
    asm volatile(
        "cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(static_cast<const uint8_t*>(data) + at),
        "r"(size)
        : "memory");
  }
}

// A warp's chunks, `begin` to `end` of each job: a tile. They come in pairs, 128 bytes of a row,
// the last of a job perhaps alone.
template <WeightFormat kFormat>
class FewStream {
 public:
  static constexpr int kDepth = 3;
  static constexpr bool kFp4 = kFormat == WeightFormat::kFp4Row;
  static constexpr bool kScaled = ThreadRows<kFormat>::kScaled;
  static constexpr int kScales = 4 * 32 * kPieceBytes;  // where they lie: behind the pieces
  static constexpr int kSlotBytes = kScales + (kScaled ? 128 : 0);
  static constexpr int kBytes = kDepth * kSlotBytes;            // of a warp
  static constexpr int kAheadBytes = kDepth * 2 * kChunkBytes;  // of a row

  // `memory`: this warp's. rows_of(job): the tile of job 0 to jobs - 1, each asked for once, in
  // order.
  template <typename RowsOf>
  __device__ FewStream(void* memory, int jobs, int begin, int end, RowsOf& rows_of)
      : jobs_(begin < end ? jobs : 0), begin_(begin), end_(end) {
#pragma unroll
    for (int i = 0; i < 2; ++i) byte_[i] = 0x4440 + ThreadRows<kFormat>::scale_at(begin + i) % 4;
    first_ =
        static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + threadIdx.x % 32 * kPieceBytes;
    asm volatile("" : "+r"(first_));  // computed once
    if (jobs_ > 0) start(rows_of);
    for (int i = 0; i < kDepth; ++i) issue(first_ + i * kSlotBytes, rows_of);
    slot_ = first_;
  }

  // The next pair of the stream.
  template <typename RowsOf>
  __device__ void next(Chunk<kFormat> (&now)[2], RowsOf& rows_of) {
    wait_copies<kDepth - 1>();
    __syncwarp();  // scales that other threads have copied
#pragma unroll
    for (int i = 0; i < 4; ++i) now[i / 2].piece[i % 2] = load_shared(piece(slot_, i));
    if constexpr (kScaled) {
      const uint32_t scales = slot_ - threadIdx.x % 32 * kPieceBytes + kScales;
      uint32_t words[2][2];  // of chunk, half
      if constexpr (kFp4) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint2 both = load_shared_words(scales + threadIdx.x % 32 / 4 * 8 + half * 64);
          words[0][half] = both.x;
          words[1][half] = both.y;
        }
      } else {
        const uint4 all = load_shared(scales);
        words[0][0] = all.x, words[0][1] = all.y, words[1][0] = all.z, words[1][1] = all.w;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        now[i / 2].scale[i % 2] = __byte_perm(words[i / 2][i % 2], 0, byte_[i / 2]);
      }
    }
    __syncwarp();  // all have read what is overwritten now
    issue(slot_, rows_of);
    slot_ += kSlotBytes;
    if (slot_ == first_ + kBytes) slot_ = first_;
  }

 private:
  // Of both rows of the first chunk, then of the second.
  __device__ static uint32_t piece(uint32_t slot, int i) { return slot + i * 32 * kPieceBytes; }
  template <typename RowsOf>
  __device__ void start(RowsOf& rows_of) {
    rows_ = rows_of(job_);
    rows_.low += begin_ * kChunkBytes;
    rows_.high += begin_ * kChunkBytes;
    chunk_ = begin_;
  }
  template <typename RowsOf>
  __device__ void issue(uint32_t slot, RowsOf& rows_of) {
    if (job_ < jobs_) {
      copy_async<16>(piece(slot, 0), rows_.low);
      copy_async<16>(piece(slot, 1), rows_.high);
      if (chunk_ + 1 < end_) {
        copy_async<16>(piece(slot, 2), rows_.low + kChunkBytes);
        copy_async<16>(piece(slot, 3), rows_.high + kChunkBytes);
      }
      if constexpr (kScaled) {
        const int lane = threadIdx.x % 32;
        const int chunk = chunk_ + (kFp4 ? lane % 2 : lane / 2);
        const int at = kFp4 ? 4 * chunk : 2 * chunk & ~3;
        if (chunk < end_ && (kFp4 || lane < 4)) {
          copy_async<4>(slot - lane * (kPieceBytes - 4) + kScales, rows_.scales + at);
        }
      }
      rows_.low += 2 * kChunkBytes;
      rows_.high += 2 * kChunkBytes;
      chunk_ += 2;
      if (chunk_ >= end_ && ++job_ < jobs_) start(rows_of);
    }
    commit_copies();
  }

  RowPair<kFormat> rows_;
  int jobs_;
  int begin_;
  int end_;
  int chunk_ = 0;
  int job_ = 0;
  uint32_t byte_[2];  // which of a word is the scale of a pair's chunk, as __byte_perm selects it
  uint32_t first_;    // slot
  uint32_t slot_;     // whose turn it is
};

// Where a thread finds the activations (layout kRows) of token lane / 4 of each eight, of its piece
// of the present chunk; where there is no such token, of any other.
template <WeightFormat kFormat, int kGroups>
struct TokenRows {
  static constexpr int kEights = piece_columns(kFormat) / 8;
  static constexpr int kEarly = kEights > 2 ? 1 : 2;  // chunks for which there are registers

  const uint4* piece[kGroups];

  // A token's row, chunk `chunk` on.
  __device__ void set(int group, const uint16_t* row, int chunk) {
    piece[group] =
        reinterpret_cast<const uint4*>(row) + (chunk * 4 + threadIdx.x % 4) * int64_t{kEights};
  }
  __device__ uint4 load(int group, int chunks_on, int eight) const {
    return piece[group][chunks_on * 4 * kEights + eight];
  }
  __device__ void advance(int chunks) {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) piece[n] += chunks * 4 * kEights;
  }
};

// Adds products of chunk `kChunk` of a pair to D of mma() for each eight tokens.
template <int kChunk, bool kLarge, WeightFormat kFormat, int kGroups>
__device__ __forceinline__ void add_chunk(const Chunk<kFormat>& now,
                                          const uint4 (&early)[2][piece_columns(kFormat) / 8],
                                          const TokenRows<kFormat, kGroups>& tokens,
                                          float (&acc)[kGroups][4]) {
#pragma unroll
  for (int eight = 0; eight < piece_columns(kFormat) / 8; ++eight) {
    uint4 x[kGroups];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const bool is_early = n == 0 && kChunk < TokenRows<kFormat, kGroups>::kEarly;
      x[n] = is_early ? early[kChunk][eight] : tokens.load(n, kChunk, eight);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[4];
      now.fragment(2 * eight + half, a);
      if constexpr (kLarge) now.enlarge(a);
#pragma unroll
      for (int n = 0; n < kGroups; ++n)
        mma(acc[n], a, word(x[n], 2 * half), word(x[n], 2 * half + 1));
    }
  }
}

// Adds a job of the stream, of so many chunks; `tokens` are at its first.
template <WeightFormat kFormat, int kGroups, typename RowsOf>
__device__ __forceinline__ void add_job(FewStream<kFormat>& stream, RowsOf& rows_of,
                                        TokenRows<kFormat, kGroups> tokens, int chunks,
                                        float (&acc)[kGroups][4]) {
  constexpr int kEights = piece_columns(kFormat) / 8;
  __syncwarp();
#pragma unroll 1
  for (; chunks > 0; chunks -= 2) {
    const bool two = chunks > 1;
    uint4 early[2][kEights];  // of the first eight tokens, while weights are waited for
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      early[0][i] = tokens.load(0, 0, i);
      if (TokenRows<kFormat, kGroups>::kEarly > 1) early[1][i] = tokens.load(0, two ? 1 : 0, i);
    }
    Chunk<kFormat> now[2];
    stream.next(now, rows_of);
    // The whole warp goes one way: mma() is the work of all its threads.
    if (__any_sync(0xFFFFFFFFu, now[0].large() || (two && now[1].large()))) {
      add_chunk<0, true>(now[0], early, tokens, acc);
      if (two) add_chunk<1, true>(now[1], early, tokens, acc);
    } else {
      add_chunk<0, false>(now[0], early, tokens, acc);
      if (two) add_chunk<1, false>(now[1], early, tokens, acc);
    }
    tokens.advance(2);
  }
}

// Row and token of a thread's sum acc[i] among sixteen rows and eight tokens.
__device__ inline int row_of_sum(int i) { return threadIdx.x % 32 / 4 + i / 2 * 8; }
__device__ inline int token_of_sum(int i) { return threadIdx.x % 4 * 2 + i % 2; }

// Sums of a tile's segments, one warp each, in shared memory.
template <int kGroups>
struct FewSums {
  static constexpr int kStride = kGroups * kGroupTokens + 1;
  static constexpr int kSegmentFloats = kFewRows * kStride;
  static constexpr int kBytes = kFewWarps * kSegmentFloats * int{sizeof(float)};  // of a block

  float* sums;  // of the first segment
  int segments;
  int units;

  __device__ void put(int segment, const float (&acc)[kGroups][4]) const {
    float* to = sums + segment * kSegmentFloats;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[row_of_sum(i) * kStride + n * kGroupTokens + token_of_sum(i)] = acc[n][i];
      }
    }
  }
  __device__ float total(int row, int token) const {
    float sum[kMostSegments];
#pragma unroll
    for (int s = 0; s < kMostSegments; ++s) {
      if (s < segments) sum[s] = sums[s * kSegmentFloats + row * kStride + token];
    }
    float result = 0;
    bool first = true;
#pragma unroll
    for (int s = 0; s < kMostSegments; ++s) {
      const bool empty = units < segments &&
                         segment_begin(s, units, segments) == segment_begin(s + 1, units, segments);
      if (s >= segments || empty) continue;
      result = first ? sum[s] : add(result, sum[s]);
      first = false;
    }
    return result;
  }
};

}  // namespace tidemill::cuda
