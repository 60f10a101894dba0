// Keys of the indexer on their way from the cache to tensor cores: each warp has copies of its next
// 32 always on the way, reads 16 of them as they lie there and widens them to bf16, as the rows of
// a product of 64 by its warpgroup.
//
// Widening is exact: scales are taken relative to the largest of the row, which multiplies the
// score in the end, so that every code has its place in bf16.
#pragma once

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/bulk_copy.cuh"
#include "ops/index_select/cuda_index.h"

namespace tidemill::cuda {

constexpr int kKeyBytes = kIndexDim / 2 + kIndexDim / kScaleBlock;
constexpr int kKeySteps = kIndexDim / 16;  // products of 16
constexpr int kKeyWarps = 8;
constexpr int kPieceKeys = 32;  // of a warp's copy
constexpr int kPieces = 2;      // of a warp in shared memory

// What all warps of a block of threads read: entries of the cache, or of a pool's blocks.
struct KeyRun {
  const int32_t* table;  // of the sequence
  const int32_t* pool;   // null: of the cache
  int visible;
  int count;  // entries there are
};

struct KeyStage {
  alignas(16) uint8_t keys[kKeyWarps][kPieces][kPieceKeys * kKeyBytes];
  Barrier copied[kKeyWarps][kPieces];

  // By all threads, before a barrier of all.
  __device__ void init(const KeyRun& run) {
    const int lane = threadIdx.x % 32;
    if (lane >= kPieces) return;
    copied[threadIdx.x / 32][lane].init(run.pool == nullptr ? 1 : kPieceKeys / kPoolBlock);
    fence_barriers();
  }
};

// The four threads of a row share it: thread c has its elements 32 c .. (one scale block, 16 bytes
// of codes) of rows l / 4 and l / 4 + 8 of 16. Word v of the codes becomes the registers of steps
// 2 v and 2 v + 1; its elements p and p + 4 share one. So the products' column that meets element
// k = 32 c + 8 v + p + 4 e is this.
__device__ inline int column_of(int k) {
  const int c = k / 32;
  const int v = k % 32 / 8;
  const int p = k % 4;
  const int e = k % 8 / 4;
  return 16 * (2 * v + p / 2) + 8 * (p % 2) + 2 * c + e;
}

__device__ inline uint32_t multiply_pair(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// A thread's part of 16 keys as they lie in the cache.
struct KeyCodes {
  uint32_t codes[2][4];
  uint32_t scales[2];  // of the whole row
};

// What a warp reads: its piece of every 256 entries.
class KeyStream {
 public:
  static constexpr int kStep = kKeyWarps * kPieceKeys;

  // Copies begin; the barriers of `stage` are there.
  __device__ KeyStream(KeyStage& stage, const PagedRows& pages, const KeyRun& run, int begin,
                       int end)
      : stage_(stage),
        pages_(pages),
        run_(run),
        warpgroup_(begin + static_cast<int>(threadIdx.x) / 128 * (4 * kPieceKeys)),
        end_(end) {
    find(0);
    for (int i = 0; i < kPieces; ++i) start(i);
  }
  // A warpgroup's warps read equally many.
  __device__ bool more() const { return warpgroup_ + taken_ * kStep < end_; }
  // Of the next piece, its first entry.
  __device__ int first() const { return warpgroup_ + taken_ * kStep + warp() % 4 * kPieceKeys; }
  __device__ void wait() const {
    stage_.copied[warp()][taken_ % kPieces].wait(taken_ / kPieces & 1);
  }
  // Keys 16 half .. of it.
  __device__ KeyCodes read(int half) const {
    const int lane = threadIdx.x % 32;
    const auto* row = reinterpret_cast<const uint32_t*>(stage_.keys[warp()][taken_ % kPieces]) +
                      (16 * half + lane / 4) * (kKeyBytes / 4);
    KeyCodes out;
#pragma unroll
    for (int r = 0; r < 2; ++r, row += 8 * (kKeyBytes / 4)) {
#pragma unroll
      for (int v = 0; v < 4; ++v) out.codes[r][v] = row[lane % 4 * 4 + v];
      out.scales[r] = row[kIndexDim / 8];
    }
    return out;
  }
  // After its last use.
  __device__ void next() {
    __syncwarp();
    start(taken_ + kPieces);
    ++taken_;
  }

 private:
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }

  // As one copy, or one for each block of the pool, each by a thread of its own.
  __device__ int rows() const { return run_.pool == nullptr ? kPieceKeys : kPoolBlock; }
  __device__ bool copies(int i) const {
    return static_cast<int>(threadIdx.x) % 32 * rows() < kPieceKeys &&
           warpgroup_ + i * kStep < end_;
  }
  __device__ int page_shift() const { return 31 - __clz(static_cast<int>(pages_.rows_per_block)); }

  // Where this thread's part of piece i lies. Asked for long before start(), so nobody waits.
  __device__ void find(int i) {
    if (!copies(i)) return;
    const int lane = threadIdx.x % 32;
    entry_ = warpgroup_ + i * kStep + warp() % 4 * kPieceKeys + lane * rows();
    if (run_.pool != nullptr) {
      const int block = run_.pool[min(entry_, run_.count - 1) / kPoolBlock];
      entry_ = max(block, 0) * kPoolBlock;
    }
    entry_ = min(entry_, run_.visible - 1) & -rows();  // behind the end: any
    page_ = run_.table[entry_ >> page_shift()];
  }
  // The copy of piece i, which was found last, and finds the next.
  __device__ void start(int i) {
    if (copies(i)) {
      const int row = entry_ & ((1 << page_shift()) - 1);
      const std::byte* from =
          pages_.base + pages_.offset + int64_t{page_} * pages_.block_bytes + row * kKeyBytes;
      // As far as the sequence has them; 4 rows are a multiple of 16 bytes.
      const auto bytes =
          static_cast<uint32_t>(min(rows(), (run_.visible - entry_ + 3) / 4 * 4) * kKeyBytes);
      Barrier& copied = stage_.copied[warp()][i % kPieces];
      const int lane = threadIdx.x % 32;
      copied.arrive_expecting(bytes);
      bulk_copy(stage_.keys[warp()][i % kPieces] + lane * rows() * kKeyBytes, from, bytes, copied);
    }
    find(i + 1);
    __syncwarp();
  }

  KeyStage& stage_;
  const PagedRows& pages_;
  const KeyRun run_;
  const int warpgroup_;  // its first entry
  const int end_;
  int taken_ = 0;
  int entry_ = 0;  // of the next copy, the first
  int page_ = 0;   // and its block of the cache
};

// E2M1 codes, magnitudes moved to where bf16 has its lowest exponent bits and its highest bit of
// the fraction, are their values times 2^-126, subnormal ones too. `shift` is of the pair of codes;
// one multiplication moves them there and their signs to the front.
__device__ inline uint32_t widen_pair(uint32_t codes, int shift, uint32_t factor) {
  const uint32_t moved = (codes & 0x000F000Fu << shift) * (0x1040u >> shift);
  return multiply_pair(moved & 0x81C081C0u, factor);
}
// Returns the largest scales of both rows.
__device__ inline uint2 widen(const KeyCodes& in, uint32_t (&a)[kKeySteps][4]) {
  uint32_t largest[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t s = in.scales[r];
    largest[r] = max(max(s & 255u, s >> 8 & 255u), max(s >> 16 & 255u, s >> 24));
    const int below = static_cast<int>(largest[r] - (s >> threadIdx.x % 4 * 8 & 255u));
    const uint32_t factor = static_cast<uint32_t>(max(253 - below, 0)) * 0x00800080u;
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const uint32_t low = in.codes[r][v];
      const uint32_t high = low >> 8;
      a[2 * v][r] = widen_pair(low, 0, factor);
      a[2 * v][2 + r] = widen_pair(low, 4, factor);
      a[2 * v + 1][r] = widen_pair(high, 0, factor);
      a[2 * v + 1][2 + r] = widen_pair(high, 4, factor);
    }
  }
  return {largest[0], largest[1]};
}

}  // namespace tidemill::cuda
