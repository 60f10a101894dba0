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
constexpr int kFewRows = 16;  // of a tile
constexpr int kFewTokens = 8;

// Rows g and g + 8 of a tile, as thread 4 g .. reads them.
template <WeightFormat kFormat>
struct RowPair {
  ThreadRows<kFormat> low;
  ThreadRows<kFormat> high;
};

// A warp's chunks, `begin` to `end` of each job: a tile.
template <WeightFormat kFormat>
class FewStream {
 public:
  static constexpr int kDepth = 6;
  static constexpr int kScales = ThreadRows<kFormat>::kScaled ? 2 : 0;
  static constexpr int kSlotBytes = 32 * (2 * kPieceBytes + kScales * 4);
  static constexpr int kBytes = kDepth * kSlotBytes;  // of a warp

  // `memory`: this warp's. rows_of(job): the tile of job 0 to jobs - 1.
  template <typename RowsOf>
  __device__ FewStream(void* memory, int jobs, int begin, int end, const RowsOf& rows_of)
      : jobs_(begin < end ? jobs : 0), begin_(begin), end_(end) {
    base_ =
        static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + threadIdx.x % 32 * kPieceBytes;
    if (jobs_ > 0) start(rows_of);
    for (int i = 0; i < kDepth; ++i) issue(i, rows_of);
  }

  // The next chunk of the stream; its number is `chunk`.
  template <typename RowsOf>
  __device__ void next(int chunk, Chunk<kFormat>& now, const RowsOf& rows_of) {
    wait_copies<kDepth - 1>();
    const uint32_t slot = base_ + slot_ * kSlotBytes;
    const int shift = ThreadRows<kFormat>::scale_at(chunk) % 4 * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      now.piece[i] = load_shared(slot + i * 32 * kPieceBytes);
      if constexpr (kScales > 0) now.scale[i] = load_shared_word(scale(slot, i)) >> shift & 255u;
    }
    issue(slot_, rows_of);
    slot_ = slot_ + 1 == kDepth ? 0 : slot_ + 1;
  }

 private:
  // Behind the pieces.
  __device__ uint32_t scale(uint32_t slot, int half) const {
    return slot + 2 * 32 * kPieceBytes + half * 128 - threadIdx.x % 32 * (kPieceBytes - 4);
  }
  template <typename RowsOf>
  __device__ void start(const RowsOf& rows_of) {
    rows_ = rows_of(job_);
    rows_.low.pieces += begin_ * kChunkBytes;
    rows_.high.pieces += begin_ * kChunkBytes;
    chunk_ = begin_;
  }
  template <typename RowsOf>
  __device__ void issue(int place, const RowsOf& rows_of) {
    if (job_ < jobs_) {
      const uint32_t slot = base_ + place * kSlotBytes;
      copy_async<16>(slot, rows_.low.pieces);
      copy_async<16>(slot + 32 * kPieceBytes, rows_.high.pieces);
      if constexpr (kScales > 0) {
        const int at = ThreadRows<kFormat>::scale_at(chunk_) & ~3;
        copy_async<4>(scale(slot, 0), rows_.low.scales + at);
        copy_async<4>(scale(slot, 1), rows_.high.scales + at);
      }
      rows_.low.pieces += kChunkBytes;
      rows_.high.pieces += kChunkBytes;
      if (++chunk_ == end_ && ++job_ < jobs_) start(rows_of);
    }
    commit_copies();
  }

  RowPair<kFormat> rows_;
  int jobs_;
  int begin_;
  int end_;
  int chunk_ = 0;
  int job_ = 0;
  int slot_ = 0;
  uint32_t base_;
};

// A thread's activations (layout kRows) for one chunk of eight tokens: those of token lane / 4.
template <WeightFormat kFormat>
struct ChunkTokens {
  static constexpr int kLoads = piece_columns(kFormat) / 8;
  uint4 values[kLoads];

  // `token`: that token's row, where the matrix's columns begin; where there is no such token, of
  // any other.
  __device__ void load(const uint16_t* token, int chunk) {
    const auto* x = reinterpret_cast<const uint4*>(token + (chunk * 4 + threadIdx.x % 4) *
                                                               piece_columns(kFormat));
#pragma unroll
    for (int i = 0; i < kLoads; ++i) values[i] = x[i];
  }
};

// Adds a chunk's products to D of mma().
template <WeightFormat kFormat, bool kLarge>
__device__ __forceinline__ void add_chunk_of(const Chunk<kFormat>& now,
                                             const ChunkTokens<kFormat>& x, float (&acc)[4]) {
#pragma unroll
  for (int step = 0; step < piece_columns(kFormat) / 4; ++step) {
    uint32_t a[4];
    now.fragment(step, a);
    if constexpr (kLarge) now.enlarge(a);
    const uint4& values = x.values[step / 2];
    mma(acc, a, word(values, step % 2 * 2), word(values, step % 2 * 2 + 1));
  }
}

// Adds chunks `begin` to `end` of the stream's present job.
template <WeightFormat kFormat, typename RowsOf>
__device__ __forceinline__ void add_job(FewStream<kFormat>& stream, const RowsOf& rows_of,
                                        const uint16_t* token, int begin, int end,
                                        float (&acc)[4]) {
  __syncwarp();
  ChunkTokens<kFormat> next;
  if (begin < end) next.load(token, begin);
  for (int c = begin; c < end; ++c) {
    const ChunkTokens<kFormat> x = next;
    if (c + 1 < end) next.load(token, c + 1);
    Chunk<kFormat> now;
    stream.next(c, now, rows_of);
    // The whole warp goes one way: mma() is the work of all its threads.
    if (__any_sync(0xFFFFFFFFu, now.large())) {
      add_chunk_of<kFormat, true>(now, x, acc);
    } else {
      add_chunk_of<kFormat, false>(now, x, acc);
    }
  }
}

// Row and token of a thread's sum acc[i].
__device__ inline int row_of_sum(int i) { return threadIdx.x % 32 / 4 + i / 2 * 8; }
__device__ inline int token_of_sum(int i) { return threadIdx.x % 4 * 2 + i % 2; }

// Sums of a tile's segments, one warp each, in shared memory.
struct FewSums {
  static constexpr int kStride = kFewTokens + 1;
  static constexpr int kSegmentFloats = kFewRows * kStride;
  static constexpr int kBytes = kFewWarps * kSegmentFloats * int{sizeof(float)};  // of a block

  float* sums;  // of the first segment
  int segments;
  int units;

  __device__ void put(int segment, const float (&acc)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[segment * kSegmentFloats + row_of_sum(i) * kStride + token_of_sum(i)] = acc[i];
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
