// Products of weights with few tokens, at the speed at which weights arrive. A warp has tiles of 16
// rows, one after the other, and of these one segment of the columns. Every thread copies its own
// pieces of weights into its own part of shared memory, some chunks ahead and on across tiles, so
// that reading never waits for multiplying.
#pragma once

#include "ops/cuda/activations.cuh"
#include "ops/cuda/bulk_copy.cuh"
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
  static constexpr int kBytes = kDepth * kSlotBytes;  // of a warp

  // `memory`: this warp's. rows_of(job): the tile of job 0 to jobs - 1.
  template <typename RowsOf>
  __device__ FewStream(void* memory, int jobs, int begin, int end, const RowsOf& rows_of)
      : jobs_(begin < end ? jobs : 0), begin_(begin), end_(end) {
    first_ =
        static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + threadIdx.x % 32 * kPieceBytes;
    asm volatile("" : "+r"(first_));  // computed once
    if (jobs_ > 0) start(rows_of);
    for (int i = 0; i < kDepth; ++i) issue(first_ + i * kSlotBytes, rows_of);
    slot_ = first_;
  }

  // The next pair of the stream; its first is number `chunk`.
  template <typename RowsOf>
  __device__ void next(int chunk, Chunk<kFormat> (&now)[2], const RowsOf& rows_of) {
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
        const int shift = ThreadRows<kFormat>::scale_at(chunk + i / 2) % 4 * 8;
        now[i / 2].scale[i % 2] = words[i / 2][i % 2] >> shift & 255u;
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
  __device__ void start(const RowsOf& rows_of) {
    rows_ = rows_of(job_);
    rows_.low += begin_ * kChunkBytes;
    rows_.high += begin_ * kChunkBytes;
    chunk_ = begin_;
  }
  template <typename RowsOf>
  __device__ void issue(uint32_t slot, const RowsOf& rows_of) {
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
  uint32_t first_;  // slot
  uint32_t slot_;   // whose turn it is
};

// Where a thread finds the activations (layout kRows) of token lane / 4 of each eight, at the
// matrix's first column; where there is no such token, of any other.
template <int kGroups>
struct TokenRows {
  const uint16_t* row[kGroups];

  template <WeightFormat kFormat>
  __device__ uint4 load(int group, int chunk, int eight) const {
    const auto* x = reinterpret_cast<const uint4*>(row[group] + (chunk * 4 + threadIdx.x % 4) *
                                                                    piece_columns(kFormat));
    return x[eight];
  }
};

// Adds a pair of chunks' products, or the first's alone, to D of mma() for each eight tokens.
template <WeightFormat kFormat, bool kLarge, int kGroups>
__device__ __forceinline__ void add_pair(const Chunk<kFormat> (&now)[2], bool two,
                                         const uint4 (&early)[2][piece_columns(kFormat) / 8],
                                         const TokenRows<kGroups>& tokens, int chunk,
                                         float (&acc)[kGroups][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i > 0 && !two) break;
#pragma unroll
    for (int eight = 0; eight < piece_columns(kFormat) / 8; ++eight) {
      uint4 x[kGroups];
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        x[n] = n == 0 ? early[i][eight] : tokens.template load<kFormat>(n, chunk + i, eight);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t a[4];
        now[i].fragment(2 * eight + half, a);
        if constexpr (kLarge) now[i].enlarge(a);
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          mma(acc[n], a, word(x[n], 2 * half), word(x[n], 2 * half + 1));
        }
      }
    }
  }
}

// Adds chunks `begin` to `end` of the stream's present job.
template <WeightFormat kFormat, int kGroups, typename RowsOf>
__device__ __forceinline__ void add_job(FewStream<kFormat>& stream, const RowsOf& rows_of,
                                        const TokenRows<kGroups>& tokens, int begin, int end,
                                        float (&acc)[kGroups][4]) {
  __syncwarp();
  for (int c = begin; c < end; c += 2) {
    const bool two = c + 1 < end;
    uint4 early[2][piece_columns(kFormat) / 8];  // of the first eight, while weights are waited for
#pragma unroll
    for (int i = 0; i < piece_columns(kFormat) / 8; ++i) {
      early[0][i] = tokens.template load<kFormat>(0, c, i);
      early[1][i] = tokens.template load<kFormat>(0, two ? c + 1 : c, i);
    }
    Chunk<kFormat> now[2];
    stream.next(c, now, rows_of);
    // The whole warp goes one way: mma() is the work of all its threads.
    if (__any_sync(0xFFFFFFFFu, now[0].large() || (two && now[1].large()))) {
      add_pair<kFormat, true>(now, two, early, tokens, c, acc);
    } else {
      add_pair<kFormat, false>(now, two, early, tokens, c, acc);
    }
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
    float result = 0;
    bool first = true;
    for (int s = 0; s < segments; ++s) {
      if (segment_begin(s, units, segments) == segment_begin(s + 1, units, segments)) continue;
      const float sum = sums[s * kSegmentFloats + row * kStride + token];
      result = first ? sum : add(result, sum);
      first = false;
    }
    return result;
  }
};

}  // namespace tidemill::cuda
