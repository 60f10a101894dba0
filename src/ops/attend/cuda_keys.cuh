// Keys of a query as tensor cores read them: 64 packed rows at a time, widened to bf16 in shared
// memory, times kKeyFactor. Both formats' values are bf16 values, so this rounds nothing (but of
// window rows smaller than q8_scale() makes them).
//
// A tile is 64 rows (keys, or heads of the query) in parts of 64 channels: [part][row][64 bf16],
// swizzled as swizzled_tile() wants. Channels are permuted inside each group of 32, the same for
// keys and queries: position 8 b + 2 c + h of a group holds its channel 8 c + b + 4 h. Then two
// codes that lie 16 bits apart in a packed row are neighbours, and the sums that a thread gets of
// a value product are 8 channels in a row.
#pragma once

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_core.cuh"

namespace tidemill::cuda {

constexpr int kTile = 64;                      // keys multiplied at once
constexpr int kGroup = 32;                     // channels that a thread widens at once
constexpr int kPart = 64;                      // channels of a swizzled row of 128 bytes
constexpr int kPartBytes = kTile * kPart * 2;  // of a tile
constexpr int kWarpgroup = 128;
constexpr int kThreads = 4 * kWarpgroup;  // of a block
constexpr float kKeyFactor = 0x1p-9f;     // then an entry's scale and a bias of 2^126 are one bf16

// Where piece `piece` (16 bytes: four pairs of positions 8 piece ..) of group `group` lies in a
// tile.
__device__ inline int piece_offset(int row, int group, int piece) {
  const int place = (group % 2 * 4 + piece) ^ (row % 8);
  return group / 2 * kPartBytes + row * 128 + place * 16;
}

// Entries of query t before the first -1. A warp calls.
__device__ inline int count_entries(const AttendArgs& a, int64_t t) {
  if (a.entries.format.width == 0) return 0;
  constexpr int kLoads = 8;  // in flight
  const int32_t* selected = a.selected + t * a.topk;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int topk = static_cast<int>(a.topk);
#pragma unroll 1
  for (int first = 0; first < topk; first += 32 * kLoads) {
    int32_t value[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + 32 * i + lane;
      value[i] = at < topk ? selected[at] : -1;
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const uint32_t ends = __ballot_sync(~0u, value[i] < 0);
      if (ends != 0) return first + 32 * i + __ffs(static_cast<int>(ends)) - 1;
    }
  }
  return topk;
}

// How the keys of a query are divided: tiles of window positions, then tiles of selected entries.
struct KeyTiles {
  int window = 0;
  int entries = 0;

  __device__ KeyTiles(const AttendArgs& a, int64_t t)
      : window(static_cast<int>(a.window_end[t] - a.window_begin[t])),
        entries(count_entries(a, t)) {}
  __device__ int of_window() const { return (window + kTile - 1) / kTile; }
  __device__ int count() const { return of_window() + (entries + kTile - 1) / kTile; }
  __device__ int keys(int tile) const {
    const int left =
        tile < of_window() ? window - tile * kTile : entries - (tile - of_window()) * kTile;
    return min(left, kTile);
  }
};

// Where the packed rows of a query's keys lie. Divisions are of 32 bits where they are many.
class KeyRows {
 public:
  __device__ KeyRows(const AttendArgs& a, int64_t t) {
    const int64_t s = a.sequence[t];
    const int64_t begin = a.window_begin[t];
    const int64_t start = a.step_start[s];
    fresh_from_ = begin < start ? start - begin : 0;
    fresh_ = a.fresh + (a.step_row[s] + begin - start) * a.window_format.bytes();
    ring_ = a.ring_base + a.ring_add + a.ring_offset[s];
    ring_row_ = static_cast<uint32_t>(begin % a.ring_rows);
    if (a.entries.format.width == 0) return;
    selected_ = a.selected + t * a.topk;
    table_ = a.entries.table + a.entries.table_begin[s];
  }
  __device__ const std::byte* window(const AttendArgs& a, int j) const {
    const int64_t bytes = a.window_format.width + a.window_format.width / kScaleBlock;
    if (j >= fresh_from_) return fresh_ + j * bytes;
    const uint32_t row =
        (ring_row_ + static_cast<uint32_t>(j)) % static_cast<uint32_t>(a.ring_rows);
    return ring_ + row * bytes;
  }
  __device__ const std::byte* entry(const AttendArgs& a, int j) const {
    const auto number = static_cast<uint32_t>(selected_[j]);
    const auto per_block = static_cast<uint32_t>(a.entries.rows_per_block);
    const int64_t bytes = a.entries.format.width / 2 + a.entries.format.width / kEntryBlock;
    return a.entries.base + table_[number / per_block] * a.entries.block_bytes + a.entries.offset +
           number % per_block * bytes;
  }

 private:
  int64_t fresh_from_;
  const std::byte* fresh_;  // where the first key would be, were it of this step
  const std::byte* ring_;
  uint32_t ring_row_;  // of the first key
  const int32_t* selected_ = nullptr;
  const int32_t* table_ = nullptr;
};

// ---- widening
__device__ inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
__device__ inline uint32_t both_halves(float bf16_value) {
  return __byte_perm(__float_as_uint(bf16_value), 0, 0x3232);
}

// 16 bytes of a packed row, whose rows begin at multiples of kAlign bytes.
template <int kAlign>
__device__ uint4 load_codes(const std::byte* from) {
  if constexpr (kAlign == 16) {
    return __ldg(reinterpret_cast<const uint4*>(from));
  } else if constexpr (kAlign == 8) {
    const auto* at = reinterpret_cast<const uint2*>(from);
    const uint2 low = __ldg(at);
    const uint2 high = __ldg(at + 1);
    return {low.x, low.y, high.x, high.y};
  } else {
    const auto* at = reinterpret_cast<const uint32_t*>(from);
    return {__ldg(at), __ldg(at + 1), __ldg(at + 2), __ldg(at + 3)};
  }
}

// A group of a packed row.
template <RowKind kKind>
struct PackedGroup;

template <>
struct PackedGroup<RowKind::kQ4Entry> {
  uint4 codes = {0, 0, 0, 0};
  uint32_t scales = 0;  // of 16 channels each

  template <int kDim>
  __device__ void load(const std::byte* row, int group) {
    codes = load_codes < kDim % 256 == 0 ? 16 : 8 > (row + group * 16);
    scales = __ldg(reinterpret_cast<const uint16_t*>(row + kDim / 2) + group);
  }
  // Codes of E2M1 in a bf16's place are the values times 2^-126 (subnormal ones too).
  __device__ void widen(uint8_t* tile, int row, int group) const {
    constexpr float kBias = 0x1p126f * kKeyFactor;
    const uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};
    const uint32_t scale[2] = {both_halves(mul(e4m3_to_float(scales & 0xFFu), kBias)),
                               both_halves(mul(e4m3_to_float(scales >> 8), kBias))};
    uint32_t out[4][4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint32_t w = word[c];
      const uint32_t pair[4] = {
          (w << 12 & 0x80008000u) | (w << 6 & 0x01C001C0u),
          (w << 8 & 0x80008000u) | (w << 2 & 0x01C001C0u),
          (w << 4 & 0x80008000u) | (w >> 2 & 0x01C001C0u),
          (w & 0x80008000u) | (w >> 6 & 0x01C001C0u),
      };
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        out[b][c] = mul_bf16x2(pair[b], scale[c / 2]);
      }
    }
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      *reinterpret_cast<uint4*>(tile + piece_offset(row, group, b)) = {out[b][0], out[b][1],
                                                                       out[b][2], out[b][3]};
    }
  }
};

template <>
struct PackedGroup<RowKind::kQ8> {
  uint4 low = {0, 0, 0, 0};
  uint4 high = {0, 0, 0, 0};
  uint32_t scale = 0;

  template <int kDim>
  __device__ void load(const std::byte* row, int group) {
    constexpr int kAlign = kDim % 512 == 0 ? 16 : 4;
    low = load_codes<kAlign>(row + group * 32);
    high = load_codes<kAlign>(row + group * 32 + 16);
    scale = __ldg(reinterpret_cast<const uint8_t*>(row + kDim) + group);
  }
  // E4M3 in a bf16's place is the value times 2^-120; the scale is a second product because it may
  // be too large to be one factor with 2^120. A code of NaN would be a number there, so it makes
  // the group's scale NaN: as in a row with a NaN, no sum over it is a number.
  __device__ void widen(uint8_t* tile, int row, int group) const {
    constexpr uint32_t kBias = 0x7B807B80u;  // 2^120
    const uint32_t word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    uint32_t nan = 0;
#pragma unroll
    for (const uint32_t w : word) nan |= ((w & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u;
    const uint32_t factor =
        nan != 0 ? 0x7FC07FC0u : both_halves(mul(e8m0_to_float(scale), kKeyFactor));
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      uint32_t out[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const uint32_t codes = __byte_perm(word[2 * c], word[2 * c + 1], b << 4 | (b + 4) << 12);
        const uint32_t pair = (codes & 0x80008000u) | (codes & 0x7F007F00u) >> 4;
        out[c] = mul_bf16x2(mul_bf16x2(pair, kBias), factor);
      }
      *reinterpret_cast<uint4*>(tile + piece_offset(row, group, b)) = {out[0], out[1], out[2],
                                                                       out[3]};
    }
  }
};

// Where the packed rows of keys `lane` and `lane + 32` of a tile lie; 0 behind the last key.
struct RowAddresses {
  unsigned long long row[2];
};

__device__ inline RowAddresses find_rows(const AttendArgs& a, const KeyTiles& tiles,
                                         const KeyRows& rows, int tile) {
  RowAddresses found;
  const int keys = tiles.keys(tile);
  const bool window = tile < tiles.of_window();
  const int first = (window ? tile : tile - tiles.of_window()) * kTile;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int key = static_cast<int>(threadIdx.x % 32) + i * 32;
    const std::byte* row = nullptr;
    if (key < keys) row = window ? rows.window(a, first + key) : rows.entry(a, first + key);
    found.row[i] = reinterpret_cast<unsigned long long>(row);
  }
  return found;
}

// kWarps warps widen kWidth channels of a tile of rows of kDim channels, from group first_group on;
// rows that are not there become 0. Between the first loads and their use other_work() is called,
// before the first write ready(). Lanes 8 i .. 8 i + 7 hold eight rows in turn: the low bits of
// their rows differ, so they write to all banks.
template <RowKind kKind, int kDim, int kWidth, int kWarps, typename Work, typename Ready>
__device__ void widen_rows(const RowAddresses& rows, int first_group, uint8_t* tile,
                           const Work& other_work, const Ready& ready) {
  constexpr int kGroups = kWidth / kGroup;
  constexpr int kOfWarp = kGroups < 4 ? kGroups : 4;  // groups of a row in a warp
  constexpr int kRowsOfWarp = 32 / kOfWarp;
  constexpr int kWarpsAcross = kGroups / kOfWarp;
  constexpr int kRowsApart = kRowsOfWarp * (kWarps / kWarpsAcross);  // of the groups of a thread
  constexpr int kUnits = kTile / kRowsApart;                         // groups of a thread
  constexpr int kMostLoads = kKind == RowKind::kQ8 ? 4 : 8;          // in flight
  constexpr int kLoads = kUnits < kMostLoads ? kUnits : kMostLoads;
  static_assert(kWarps % kWarpsAcross == 0 && kUnits * kRowsApart == kTile && kRowsOfWarp <= 16);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32 % kWarps);
  const int group = warp % kWarpsAcross * kOfWarp + lane / kRowsOfWarp;
  const int first_row = warp / kWarpsAcross * kRowsOfWarp + lane % kRowsOfWarp;
#pragma unroll
  for (int first = 0; first < kUnits; first += kLoads) {
    PackedGroup<kKind> packed[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = first_row + (first + i) * kRowsApart;  // less than 32 in all lanes or in none
      const unsigned long long at =
          __shfl_sync(~0u, row < 32 ? rows.row[0] : rows.row[1], row % 32);
      if (at != 0) {
        packed[i].template load<kDim>(reinterpret_cast<const std::byte*>(at), first_group + group);
      }
    }
    if (first == 0) {
      other_work();
      ready();
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      packed[i].widen(tile, first_row + (first + i) * kRowsApart, group);
    }
  }
}

// kWarps warps widen kWidth channels of a tile, from group first_group on; see widen_rows().
template <int kDim, int kWidth, int kWarps, typename Work, typename Ready>
__device__ void widen_tile(const RowAddresses& rows, bool window, int first_group, uint8_t* to,
                           const Work& other_work, const Ready& ready) {
  if (window) {
    widen_rows<RowKind::kQ8, kDim, kWidth, kWarps>(rows, first_group, to, other_work, ready);
  } else {
    widen_rows<RowKind::kQ4Entry, kDim, kWidth, kWarps>(rows, first_group, to, other_work, ready);
  }
}

// 0, as far as the compiler does not know: added to what a loop's addresses begin with, it keeps
// them from being computed before the loop, where there are no registers for them.
__device__ inline int unknown_zero() {
  int zero = 0;
  asm volatile("" : "+r"(zero));
  return zero;
}

// Barriers of a block, beside that of __syncthreads (0).
__device__ inline void wait_at(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void arrive_at(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace tidemill::cuda
