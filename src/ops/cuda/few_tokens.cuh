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

// A tile as a thread reads it: its pieces of rows g and g + 8, and a warp's scales, of which four
// chunks have a word per row and chunk (FP4; thread 2 r + c those of row r, chunks 2 c and 2 c + 1)
// or one per eight rows and chunk (FP8; thread 2 c + h those of half h).
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
      scales = rows.scales + (rows.row + lane / 2 % 8) * (columns / 32) + lane % 2 * 8;
    } else if constexpr (kFormat == WeightFormat::kFp8Block) {
      const EightRows& rows = lane % 2 == 0 ? first : second;
      scales = rows.scales + rows.row / 32 * (columns / 32);
    }
  }
};

constexpr int kFewDepth = 2;
constexpr int kDeep = 3;  // where no warp has a second tile, so that more is there at the start
constexpr int few_blocks(int depth) { return depth == kDeep ? 2 : 3; }  // of a multiprocessor

// A warp's chunks, `begin` to `end` of each job: a tile. Four of them, 256 bytes of a row, are
// copied at once, kDepth times ahead; they are taken in pairs. Of a job's last ones some may be
// missing.
template <WeightFormat kFormat, int kDepth = kFewDepth>
class FewStream {
 public:
  static constexpr bool kFp4 = kFormat == WeightFormat::kFp4Row;
  static constexpr bool kScaled = ThreadRows<kFormat>::kScaled;
  static constexpr int kChunks = 4;  // of a slot
  static constexpr int kPairBytes = 4 * 32 * kPieceBytes;
  static constexpr int kScales = 2 * kPairBytes;  // where they lie: behind the pieces
  static constexpr int kSlotBytes = kScales + (kFp4 ? 256 : kScaled ? 32 : 0);
  static constexpr int kBytes = kDepth * kSlotBytes;  // of a warp

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

  // The next pair of the stream; `last`: of its job.
  template <typename RowsOf>
  __device__ void next(Chunk<kFormat> (&now)[2], bool last, RowsOf& rows_of) {
    if (pair_ == 0) {
      wait_copies<kDepth - 1>();
      __syncwarp();  // scales that other threads have copied
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      now[i / 2].piece[i % 2] = load_shared(piece(slot_ + pair_ * kPairBytes, i));
    }
    if constexpr (kScaled) {
      const uint32_t scales = slot_ - threadIdx.x % 32 * kPieceBytes + kScales;
      uint32_t words[2][2];  // of chunk, half
      if constexpr (kFp4) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint2 both =
              load_shared_words(scales + threadIdx.x % 32 / 4 * 16 + half * 128 + pair_ * 8);
          words[0][half] = both.x;
          words[1][half] = both.y;
        }
      } else {
        const uint4 all = load_shared(scales + pair_ * 16);
        words[0][0] = all.x, words[0][1] = all.y, words[1][0] = all.z, words[1][1] = all.w;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        now[i / 2].scale[i % 2] = __byte_perm(words[i / 2][i % 2], 0, byte_[i / 2]);
      }
    }
    if (pair_ == 0 && !last) {
      pair_ = 1;
      return;
    }
    pair_ = 0;
    __syncwarp();  // all have read what is overwritten now
    issue(slot_, rows_of);
    slot_ += kSlotBytes;
    if (slot_ == first_ + kBytes) slot_ = first_;
  }

 private:
  // Of both rows of a pair's first chunk, then of its second; or of a slot's, by both pairs.
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
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (chunk_ + i >= end_) continue;
        copy_async<16>(piece(slot, 2 * i), rows_.low + i * kChunkBytes);
        copy_async<16>(piece(slot, 2 * i + 1), rows_.high + i * kChunkBytes);
      }
      const int lane = threadIdx.x % 32;
      const uint32_t scales = slot - lane * kPieceBytes + kScales;
      if constexpr (kFp4) {
        const int chunk = chunk_ + lane % 2 * 2;
        const uint8_t* from = rows_.scales + 4 * chunk_;
        if (chunk + 1 < end_ && reinterpret_cast<uintptr_t>(from) % 8 == 0) {
          copy_async<8>(scales + lane * 8, from);
        } else {
          if (chunk < end_) copy_async<4>(scales + lane * 8, from);
          if (chunk + 1 < end_) copy_async<4>(scales + lane * 8 + 4, from + 4);
        }
      } else if constexpr (kScaled) {
        const int chunk = chunk_ + lane / 2;
        if (lane < 2 * kChunks && chunk < end_) {
          copy_async<4>(scales + lane * 4, rows_.scales + (2 * chunk & ~3));
        }
      }
      rows_.low += kChunks * kChunkBytes;
      rows_.high += kChunks * kChunkBytes;
      chunk_ += kChunks;
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
  int pair_ = 0;      // of the slot
  uint32_t byte_[2];  // which of a word is the scale of a pair's chunk, as __byte_perm selects it
  uint32_t first_;    // slot
  uint32_t slot_;     // whose turn it is
};

// Where a thread finds the activations (layout kRows) of token lane / 4 of eight, of its piece of
// the present chunk; where there is no such token, of any other.
template <WeightFormat kFormat>
struct TokenRows {
  static constexpr int kEights = piece_columns(kFormat) / 8;
  static constexpr int kEarly = kEights > 2 ? 1 : 2;  // chunks for which there are registers

  const uint4* piece;

  // A token's row, chunk `chunk` on.
  __device__ void set(const uint16_t* row, int chunk) {
    piece = reinterpret_cast<const uint4*>(row) + int64_t{chunk} * 4 * kEights + threadIdx.x % 4;
  }
  __device__ uint4 load(int chunks_on, int eight) const {
    return piece[(chunks_on * kEights + eight) * 4];
  }
  __device__ void advance(int chunks) { piece += chunks * 4 * kEights; }
};

// Adds products of chunk `kChunk` of a pair to D of mma().
template <int kChunk, bool kLarge, WeightFormat kFormat>
__device__ __forceinline__ void add_chunk(const Chunk<kFormat>& now,
                                          const uint4 (&early)[2][piece_columns(kFormat) / 8],
                                          const TokenRows<kFormat>& tokens, float (&acc)[4]) {
#pragma unroll
  for (int eight = 0; eight < piece_columns(kFormat) / 8; ++eight) {
    const bool is_early = kChunk < TokenRows<kFormat>::kEarly;
    const uint4 x = is_early ? early[kChunk][eight] : tokens.load(kChunk, eight);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[4];
      now.fragment(2 * eight + half, a);
      if constexpr (kLarge) now.enlarge(a);
      mma(acc, a, word(x, 2 * half), word(x, 2 * half + 1));
    }
  }
}

// Adds a job of the stream, of so many chunks; `tokens` are at its first.
template <WeightFormat kFormat, int kDepth, typename RowsOf>
__device__ __forceinline__ void add_job(FewStream<kFormat, kDepth>& stream, RowsOf& rows_of,
                                        TokenRows<kFormat> tokens, int chunks, float (&acc)[4]) {
  constexpr int kEights = piece_columns(kFormat) / 8;
  __syncwarp();
#pragma unroll 1
  for (; chunks > 0; chunks -= 2) {
    const bool two = chunks > 1;
    uint4 early[2][kEights];  // while weights are waited for
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      early[0][i] = tokens.load(0, i);
      if (TokenRows<kFormat>::kEarly > 1) early[1][i] = tokens.load(two ? 1 : 0, i);
    }
    Chunk<kFormat> now[2];
    stream.next(now, chunks <= 2, rows_of);
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
struct FewSums {
  static constexpr int kStride = kGroupTokens + 1;
  static constexpr int kSegmentFloats = kFewRows * kStride;
  static constexpr int kBytes = kFewWarps * kSegmentFloats * int{sizeof(float)};  // of a block

  float* sums;  // of the first segment
  int segments;
  int units;

  __device__ void put(int segment, const float (&acc)[4]) const {
    float* to = sums + segment * kSegmentFloats;
#pragma unroll
    for (int i = 0; i < 4; ++i) to[row_of_sum(i) * kStride + token_of_sum(i)] = acc[i];
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
