// Products of weights with many tokens, at the speed of the tensor cores: a block has 256 rows and
// up to kTileTokens tokens. Two warpgroups, 128 rows each, widen weights in registers and multiply
// them with blocks of activations that one more thread brings to shared memory. Weights come as in
// few_tokens.cuh: every thread copies its own pieces, some chunks ahead. The next columns are
// widened while the present ones are multiplied.
//
// Bits: every sum adds its products in the same order as few_tokens.cuh.
#pragma once

#include <cstddef>

#include "ops/cuda/activations.cuh"
#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/tensor_core.cuh"
#include "ops/cuda/weights.cuh"

namespace tidemill::cuda {

constexpr int kManyRows = 256;
constexpr int kManyWorkers = 256;
constexpr int kManyThreads = kManyWorkers + 128;  // registers are handed over by warpgroups

// kSegmented: has room for the sums of segments, and less for what is on its way.
template <bool kSegmented>
struct ManyShared {
  static constexpr int kStages = kSegmented ? 3 : 8;
  static constexpr int kRing = kSegmented ? 3 : 5;
  static constexpr int kStride = kManyRows + 4;  // of a token's results: no bank conflicts

  // Sums of the segments so far, a column per thread.
  float totals[kSegmented ? kManyRows * kTileTokens : 256];
  uint8_t block[kStages][kTileTokens * kLineBytes];
  uint4 weights[kRing][4][kManyWorkers];  // pieces on their way, a column per thread
  Barrier full[kStages];
  Barrier empty[kStages];

  // Results [token][row], where sums, blocks and weights were once all have been read.
  __device__ float* results() { return totals; }

  __device__ static ManyShared& get() {
    extern __shared__ uint8_t memory[];
    const auto address = reinterpret_cast<uintptr_t>(memory);
    return *reinterpret_cast<ManyShared*>((address + 1023) & ~uintptr_t{1023});
  }
  static constexpr int bytes() { return int{sizeof(ManyShared)} + 1023; }

  // By all threads; ends with a barrier.
  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        full[s].init(1);
        empty[s].init(kManyWorkers / 32);
      }
      fence_barriers();
    }
    __syncthreads();
  }

  // By one thread: blocks `begin` to `end` of the first `tokens` tokens of a tile of activations.
  __device__ void bring(const uint8_t* tile, int begin, int end, int tokens) {
    const auto bytes = static_cast<uint32_t>(tokens * kLineBytes);
    int stage = 0;
    uint32_t parity = 1;
    for (int b = begin; b < end; ++b) {
      empty[stage].wait(parity);
      full[stage].arrive_expecting(bytes);
      bulk_copy(block[stage], tile + int64_t{b} * kTileTokens * kLineBytes, bytes, full[stage]);
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  }
};
static_assert(ManyShared<true>::bytes() <= 227 << 10 && ManyShared<false>::bytes() <= 227 << 10);

// The registers of a block of kManyThreads, divided anew: 168 a thread at the start.
__device__ inline void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); }
__device__ inline void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }

__device__ inline void sync_workers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kManyWorkers) : "memory");
}

// A thread's chunks `first` to `last` of two tiles of rows of a matrix of so many columns.
template <WeightFormat kFormat, int kRing>
class ManyStream {
 public:
  __device__ ManyStream(uint4 (&ring)[kRing][4][kManyWorkers], const ThreadRows<kFormat> (&rows)[2],
                        int64_t columns, int first, int last)
      : ring_(static_cast<uint32_t>(__cvta_generic_to_shared(&ring[0][0][threadIdx.x]))),
        eight_rows_(static_cast<int>(8 * ThreadRows<kFormat>::row_bytes(columns))),
        eight_scales_(static_cast<int>(columns / 32 * 8)),
        next_(first),
        last_(last) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      pieces_[m] = rows[m].pieces + first * kChunkBytes;
      scales_[m] = rows[m].scales;
    }
#pragma unroll
    for (int i = 0; i < kRing; ++i) issue(i);
    load_scales(first);
  }

  // Chunks in order.
  __device__ void take(int chunk, Chunk<kFormat> (&now)[2]) {
    wait_copies<kRing - 1>();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      now[i / 2].piece[i % 2] = load_shared(address(slot_, i));
      now[i / 2].scale[i % 2] = scale_[i / 2][kFp4 ? i % 2 : 0];
    }
    issue(slot_);
    slot_ = slot_ + 1 == kRing ? 0 : slot_ + 1;
    if (chunk + 1 < last_) load_scales(chunk + 1);
  }

 private:
  static constexpr bool kFp4 = ThreadRows<kFormat>::kFp4;

  __device__ uint32_t address(int slot, int piece) const {
    return ring_ + (slot * 4 + piece) * (kManyWorkers * kPieceBytes);
  }
  __device__ void issue(int slot) {
    if (next_ < last_) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        copy_async<16>(address(slot, i), pieces_[i / 2] + i % 2 * eight_rows_);
      }
      pieces_[0] += kChunkBytes;
      pieces_[1] += kChunkBytes;
      ++next_;
    }
    commit_copies();
  }
  __device__ void load_scales(int chunk) {
    if constexpr (ThreadRows<kFormat>::kScaled) {
      const int at = ThreadRows<kFormat>::scale_at(chunk);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        scale_[m][0] = __ldg(scales_[m] + at);
        if constexpr (kFp4) scale_[m][1] = __ldg(scales_[m] + at + eight_scales_);
      }
    }
  }

  const uint8_t* pieces_[2];
  const uint8_t* scales_[2];
  uint32_t ring_;
  int eight_rows_;
  int eight_scales_;
  int slot_ = 0;
  int next_;
  int last_;
  uint8_t scale_[2][2] = {};
};

// Which segments of a row a block adds up.
struct Segments {
  int all;
  int first;
  int last;

  __device__ int begin(int segment, int units) const { return segment_begin(segment, units, all); }
};

// Rows of tile m (0, 1) of 64 of this warpgroup times kTokens tokens. acc[m] is D of wgmma();
// rows[m]: the 16 of this warp in tile m.
template <WeightFormat kFormat, int kTokens, bool kSegmented>
__device__ __forceinline__ void multiply_many(ManyShared<kSegmented>& shared,
                                              const ThreadRows<kFormat> (&rows)[2], int64_t columns,
                                              const Segments& segments,
                                              float (&acc)[2][kTokens / 2]) {
  using Shared = ManyShared<kSegmented>;
  constexpr int kChunks = unit_columns(kFormat) / chunk_columns(kFormat);
  constexpr int kTogether = 2;  // instructions between two waits
  constexpr int kPartsOfChunk = chunk_columns(kFormat) / 16 / kTogether;
  constexpr int kPartsOfBlock = kBlockColumns / 16 / kTogether;
  constexpr int kParts = kChunks * kPartsOfChunk;  // of a unit
  static_assert(kParts % 2 == 0 && kParts % kPartsOfBlock == 0);
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) acc[0][i] = acc[1][i] = 0;
  const auto units = static_cast<int>(columns / unit_columns(kFormat));
  const int end_unit = segments.begin(segments.last, units);
  int unit = segments.begin(segments.first, units);
  if (unit == end_unit) return;
  ManyStream<kFormat, Shared::kRing> stream(shared.weights, rows, columns, unit * kChunks,
                                            end_unit * kChunks);
  Chunk<kFormat> now[2];
  uint32_t a[2][2][kTogether][4];  // two parts, in turn
  const auto widen = [&](int part, uint32_t(&to)[2][kTogether][4]) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) now[m].fragment(part * kTogether + i, to[m][i]);
    }
    if (now[0].large() || now[1].large()) {
#pragma unroll
      for (int i = 0; i < 2 * kTogether; ++i) now[i % 2].enlarge(to[i % 2][i / 2]);
    }
  };
  stream.take(unit * kChunks, now);
  widen(0, a[0]);
  int stage = 0;
  uint32_t parity = 0;
  float* totals = shared.totals + threadIdx.x;
  bool only = true;  // no segment's sum before
  for (int segment = segments.first; segment < segments.last; ++segment) {
    const int end = kSegmented ? segments.begin(segment + 1, units) : end_unit;
    if (unit == end) continue;
    if (!only) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) acc[0][i] = acc[1][i] = 0;
    }
    for (; unit < end; ++unit) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (part % kPartsOfBlock == 0) shared.full[stage].wait(parity);
        const uint64_t b =
            swizzled_tile(shared.block[stage]) + part % kPartsOfBlock * (2 * kTogether);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          wgmma(acc[0], a[part % 2][0][i], b + 2 * i);
          wgmma(acc[1], a[part % 2][1][i], b + 2 * i);
        }
        wgmma_commit();
        const int next = (part + 1) % kParts;
        if (next > 0 || unit + 1 < end_unit) {
          if (next % kPartsOfChunk == 0) {
            stream.take(unit * kChunks + (part + 1) / kPartsOfChunk, now);
          }
          widen(next % kPartsOfChunk, a[next % 2]);
        }
        wgmma_wait<0>();
        if (part % kPartsOfBlock == kPartsOfBlock - 1) {
          if (threadIdx.x % 32 == 0) shared.empty[stage].arrive();
          if (++stage == Shared::kStages) stage = 0, parity ^= 1;
        }
      }
    }
    wgmma_done(acc[0]);
    wgmma_done(acc[1]);
    if constexpr (kSegmented) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        float& total = totals[i * kManyWorkers];
        float& sum = acc[i / (kTokens / 2)][i % (kTokens / 2)];
        if (!only) sum = add(total, sum);
        if (unit < end_unit) total = sum;
      }
    }
    only = false;
  }
}

// Puts values that lie like acc[m] into results[token][row], rows of `m` from `row` on. Between two
// barriers of the workers.
template <int kTokens, bool kSegmented>
__device__ void put_results(ManyShared<kSegmented>& shared, const float (&values)[kTokens / 2],
                            int row) {
  const int lane = threadIdx.x % 32;
  row += threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
    shared.results()[token * ManyShared<kSegmented>::kStride + row + i % 4 / 2 * 8] = values[i];
  }
}

}  // namespace tidemill::cuda
