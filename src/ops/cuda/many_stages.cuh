// What a block that multiplies weights with many tokens (many_tokens.cuh) has in shared memory, and
// how weights and activations get there: rings of stages with barriers, filled by warps that do not
// multiply.
#pragma once

#include "ops/cuda/activations.cuh"
#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/weights.cuh"

namespace tidemill::cuda {

// What the warps do that do not multiply.
enum class Helper { kBringsActivations, kBringsWeights, kStores, kNone };

// Warpgroups of a block that multiply, tiles of 64 rows that each of them has, and how many parts
// of 16 columns are widened ahead of the one that is multiplied next. One warp stores, or, where
// there is something to work out, a warpgroup of its own.
template <int kGroupsOf, int kTilesOf, int kAheadOf = 1, bool kOwnStorers = false>
struct ManyShape {
  static constexpr int kGroups = kGroupsOf;
  static constexpr int kTiles = kTilesOf;
  static constexpr int kAhead = kAheadOf;
  static constexpr int kRows = 64 * kGroups * kTiles;
  static constexpr int kFragments = kRows / 16;
  static constexpr int kWorkers = 128 * kGroups;
  static constexpr int kStorers = kOwnStorers ? 128 : 32;
  static constexpr int kThreads = kWorkers + (kOwnStorers ? 256 : 128);
  static constexpr int kFirstStorer = kThreads - kStorers;

  // The registers of a block, divided anew by warpgroups: workers take what the others give.
  static constexpr int kOthers = kOwnStorers ? 2 : 1;  // warpgroups
  static constexpr int kFew = kThreads == 384 ? 40 : 48;
  static constexpr int kOfStorers = kOwnStorers ? 80 : 0;
  static constexpr int kEqual = 512 / (kGroups + kOthers) / 8 * 8;
  static constexpr int kMany = (kEqual * (kGroups + kOthers) - kFew - kOfStorers) / kGroups / 8 * 8;

  __device__ static bool multiplies() { return threadIdx.x < kWorkers; }
  __device__ static void take_registers() {
    if constexpr (kGroups > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMany));
  }
  // By a warpgroup of storers; then by the others. Their ways do not meet again: behind that the
  // compiler would count on the fewest registers that there are.
  __device__ static void give_storers_registers() {
    if constexpr (kOwnStorers) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kOfStorers));
    }
  }
  __device__ static void give_registers() {
    if constexpr (kGroups > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kFew));
  }
  // Which of the other warps this is.
  __device__ static Helper helper() {
    if (threadIdx.x >= kFirstStorer) return Helper::kStores;
    const int warp = (threadIdx.x - kWorkers) / 32;
    return warp == 0  ? Helper::kBringsActivations
           : warp < 3 ? Helper::kBringsWeights
                      : Helper::kNone;
  }
  // The place of fragment m of the worker's warp among all of the block.
  __device__ static int fragment(int worker, int m) {
    return (worker / 128 * kTiles + m) * 4 + worker % 128 / 32;
  }
};

// Whose turn it is in a ring of stages.
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;

  template <int kStages>
  __device__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  template <int kStages>
  __device__ int before() const {
    return stage == 0 ? kStages - 1 : stage - 1;
  }
};

// Where a block's rows lie: fragments of 16 rows of one matrix, at places g and g + 8 neighbours;
// or of 8 rows of each of two matrices, in the order in which kFormat pairs columns.
template <WeightFormat kFormat, bool kNeighbours>
struct BlockRows {
  static constexpr int kRows = kNeighbours ? 16 : 8;  // of a fragment, in a matrix

  const void* data[kNeighbours ? 1 : 2];
  const uint8_t* scales[kNeighbours ? 1 : 2];
  int64_t columns;
  int64_t row;    // the first
  int fragments;  // as many as there are: the last one stands for those that would follow

  __device__ static int row_at(int g) {
    return kNeighbours ? 2 * g : column_of_pair<kFormat>(g / 2, g % 2);
  }
};

// Blocks of up to kTokens tokens and chunks of weights on their way, and what workers put aside, in
// kKept vectors of a thread.
template <typename ShapeOf, int kTokens, int kStagesOf, int kRingOf, int kKept = 0>
struct ManyShared {
  using Shape = ShapeOf;
  using Base = ManyShared;
  static constexpr int kStages = kStagesOf;
  static constexpr int kRing = kRingOf;
  static constexpr int kBringers = 64;  // of weights
  // From one token's kept rows to the next: neighbours' begin in different banks.
  static constexpr int kResultBytes = Shape::kRows * 2 + 16;

  uint8_t block[kStages][kTokens * kLineBytes];
  uint4 pieces[kRing][Shape::kFragments][2][32];  // of rows g and g + 8, as lanes have them
  uint2 scales[kRing][Shape::kFragments][8];      // words that have those of the chunk
  uint4 kept[kKept > 0 ? kKept : 1][kKept > 0 ? Shape::kWorkers : 1];
  Barrier full[kStages];
  Barrier empty[kStages];
  Barrier full_weights[kRing];
  Barrier empty_weights[kRing];
  Barrier results;  // lie in `kept`
  Barrier stored;   // they no longer do

  // By all threads; ends with a barrier. Every thread that reads or writes arrives for itself: what
  // one lane says for its warp after __syncwarp() is 1 to 3 % slower.
  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        full[s].init(1);
        empty[s].init(Shape::kWorkers);
      }
      for (int s = 0; s < kRing; ++s) {
        full_weights[s].init(kBringers);
        empty_weights[s].init(Shape::kWorkers);
      }
      results.init(Shape::kWorkers);
      stored.init(Shape::kStorers);
      fence_barriers();
    }
    __syncthreads();
  }

  // By one thread: blocks `begin` to `end` of a tile of activations of so many lines, of which
  // `tokens` are wanted.
  __device__ void bring(RingPlace& at, const uint8_t* tile, int lines, int begin, int end,
                        int tokens) {
    const auto bytes = static_cast<uint32_t>(tokens * kLineBytes);
    for (int b = begin; b < end; ++b) {
      empty[at.stage].wait(at.parity ^ 1);
      full[at.stage].arrive_expecting(bytes);
      bulk_copy(block[at.stage], tile + int64_t{b} * lines * kLineBytes, bytes, full[at.stage]);
      at.advance<kStages>();
    }
  }

  // The same of two tiles, `apart` bytes from each other, each of kTileTokens lines.
  __device__ void bring_two(RingPlace& at, const uint8_t* tile, int64_t apart, int begin, int end,
                            int tokens) {
    constexpr uint32_t kBlock = kTileTokens * kLineBytes;
    const auto bytes = static_cast<uint32_t>(tokens * kLineBytes);
    for (int b = begin; b < end; ++b) {
      empty[at.stage].wait(at.parity ^ 1);
      full[at.stage].arrive_expecting(bytes);
      const uint8_t* from = tile + int64_t{b} * kBlock;
      bulk_copy(block[at.stage], from, min(bytes, kBlock), full[at.stage]);
      if (bytes > kBlock) {
        bulk_copy(block[at.stage] + kBlock, from + apart, bytes - kBlock, full[at.stage]);
      }
      at.advance<kStages>();
    }
  }

  // By the two warps that bring weights: chunks `begin` to `end` of a block's rows, each warp half
  // of the fragments.
  template <WeightFormat kFormat, bool kNeighbours>
  __device__ void bring(RingPlace& at, const BlockRows<kFormat, kNeighbours>& rows, int begin,
                        int end) {
    using Rows = BlockRows<kFormat, kNeighbours>;
    constexpr bool kFp4 = ThreadRows<kFormat>::kFp4;
    constexpr int kMine = Shape::kFragments / 2;
    const int lane = threadIdx.x % 32;
    const int first = (threadIdx.x - Shape::kWorkers) / 32 == 1 ? 0 : kMine;
    const int last = rows.fragments - 1;
    const int64_t row_bytes = ThreadRows<kFormat>::row_bytes(rows.columns);
    const auto* data = static_cast<const uint8_t*>(rows.data[0]) +
                       (rows.row + Rows::row_at(lane / 4)) * row_bytes + lane % 4 * kPieceBytes +
                       int64_t{begin} * kChunkBytes;
    int64_t to_second = row_bytes;
    if constexpr (!kNeighbours) {
      to_second =
          static_cast<const uint8_t*>(rows.data[1]) - static_cast<const uint8_t*>(rows.data[0]);
    }
    // Of scales a lane copies those of one row in two fragments: rows at places g, then g + 8.
    const uint8_t* scales = rows.scales[0];
    if constexpr (!kNeighbours) scales = lane % 2 == 0 ? rows.scales[0] : rows.scales[1];
    const int64_t row_scales = rows.columns / 32;
    const auto scale_row = static_cast<int>(rows.row % 32) + Rows::row_at(lane % 16 / 2) +
                           (kNeighbours && kFp4 ? lane % 2 : 0);
    scales += (kFp4 ? rows.row / 32 * 32 : rows.row / 32) * row_scales;
    uint32_t offset[kMine];  // bytes from the first fragment
    uint32_t scale_offset[kMine / 2];
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      offset[i] = static_cast<uint32_t>(min(first + i, last) * Rows::kRows * row_bytes);
    }
#pragma unroll
    for (int i = 0; i < kMine / 2; ++i) {
      const int row = scale_row + min(first + 2 * i + lane / 16, last) * Rows::kRows;
      scale_offset[i] = static_cast<uint32_t>((kFp4 ? row : row / 32) * row_scales);
    }
#pragma unroll 1
    for (int chunk = begin; chunk < end; ++chunk) {
      empty_weights[at.stage].wait(at.parity ^ 1);
      const auto to =
          static_cast<uint32_t>(__cvta_generic_to_shared(&pieces[at.stage][first][0][lane]));
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        asm volatile("" : "+r"(offset[i]));  // no pointers instead: there are few registers
        const uint8_t* from = data + offset[i];
        copy_async<16>(to + i * int{sizeof(pieces[0][0])}, from);
        copy_async<16>(to + i * int{sizeof(pieces[0][0])} + int{sizeof(pieces[0][0][0])},
                       from + to_second);
      }
      if constexpr (ThreadRows<kFormat>::kScaled) {
        const auto words =
            static_cast<uint32_t>(__cvta_generic_to_shared(&this->scales[at.stage][first])) +
            lane * int{sizeof(uint32_t)};
        const uint8_t* from = scales + (kFp4 ? 4 * chunk : 2 * chunk & ~3);
#pragma unroll
        for (int i = 0; i < kMine / 2; ++i) {
          asm volatile("" : "+r"(scale_offset[i]));
          copy_async<4>(words + i * 2 * int{sizeof(this->scales[0][0])}, from + scale_offset[i]);
        }
      }
      full_weights[at.stage].arrive_copied();
      data += kChunkBytes;
      at.advance<kRing>();
    }
  }
};

// The block's, aligned as wgmma() wants it; its size.
template <typename Shared>
__device__ Shared& shared_of_block() {
  extern __shared__ uint8_t memory[];
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return *reinterpret_cast<Shared*>((address + 1023) & ~uintptr_t{1023});
}
template <typename Shared>
constexpr int shared_bytes() {
  static_assert(sizeof(Shared) + 1023 <= 227 << 10);
  return int{sizeof(Shared)} + 1023;
}

}  // namespace tidemill::cuda
