// Keys of a query as tensor cores read them: 64 packed rows at a time, widened to bf16, times
// kKeyFactor. Both formats' values are bf16 values, so this rounds nothing (but of window rows
// smaller than q8_scale() makes them).
//
// A tile is 64 rows (keys, or heads of the query) in parts of 64 channels: [part][row][64 bf16],
// swizzled as swizzled_tile() wants. Channels are permuted so that a thread which widens a group of
// 32 channels of a row has what it needs of both kinds of products. Group c of four neighbouring
// ones has, as pairs that lie 16 bits apart in a packed row, channels 8 k + i and 8 k + i + 4
// (i, k = 0..3). These are
// - of scores, where channels are what is summed over, positions 32 i + 8 k + 2 c and one more:
//   the thread's registers of A, were the row one of A;
// - of values, the k-th pair of piece i (16 bytes) of the group: the sums of a thread that has
//   columns 2 k and 2 k + 1 of each eight are then channels 8 k .. 8 k + 7.
#pragma once

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_core.cuh"

namespace tidemill::cuda {

constexpr int kTile = 64;                      // keys multiplied at once
constexpr int kGroup = 32;                     // channels that a thread widens at once
constexpr int kSpan = 4 * kGroup;              // of four
constexpr int kPart = 64;                      // channels of a swizzled row of 128 bytes
constexpr int kPartBytes = kTile * kPart * 2;  // of a tile
constexpr int kWarpgroup = 128;
constexpr int kThreads = 4 * kWarpgroup;  // of a block
constexpr float kKeyFactor = 0x1p-9f;     // then an entry's scale and a bias of 2^126 are one bf16

// Bytes of row `row` of a part, from a piece of 16 on.
__device__ inline int in_part(int row, int piece) { return row * 128 + (piece ^ row % 8) * 16; }
// Where a tile for scores has a pair of a group.
__device__ inline int score_offset(int row, int group, int i, int k) {
  return (group / 4 * 2 + i / 2) * kPartBytes + in_part(row, i % 2 * 4 + k) + group % 4 * 4;
}
// Columns of values are those of blocks of kGroups groups (2 or 4): which eight of a block's are
// piece i of a group.
template <int kGroups>
__device__ constexpr int value_piece(int group, int i) {
  return i / 2 * (kGroups * 2) + group * 2 + i % 2;
}
template <int kGroups>
__device__ inline int value_offset(int row, int group, int i) {
  const int piece = value_piece<kGroups>(group, i);
  return piece / 8 * kPartBytes + in_part(row, piece % 8);
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
    return entry_row(a, selected_[j]);
  }
  __device__ const std::byte* entry_row(const AttendArgs& a, int32_t entry) const {
    const auto number = static_cast<uint32_t>(entry);
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

// Pairs [i][k] of a group go to a tile.
__device__ inline void store_for_scores(const uint32_t (&pairs)[4][4], int row, int group,
                                        uint8_t* tile) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      *reinterpret_cast<uint32_t*>(tile + score_offset(row, group, i, k)) = pairs[i][k];
    }
  }
}
template <int kGroups>
__device__ inline void store_for_values(const uint32_t (&pairs)[4][4], int row, int group,
                                        uint8_t* tile) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<uint4*>(tile + value_offset<kGroups>(row, group, i)) = {
        pairs[i][0], pairs[i][1], pairs[i][2], pairs[i][3]};
  }
}

// Bits of a where mask has them, else of b.
__device__ inline uint32_t choose(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(result) : "r"(mask), "r"(a), "r"(b));
  return result;
}
// Codes i and i + 4 of eight. Codes of E2M1 whose magnitudes are where bf16 has its lowest exponent
// bits and its highest bit of the fraction are the values times 2^-126, subnormal ones too. Signs
// are six bits further from them there than in a code. One multiplication moves both; of the last
// two pairs both move at once, with the same registers for what is moved.
__device__ inline uint32_t q4_pair(uint32_t codes, int i, uint32_t factor) {
  uint32_t moved;
  if (i < 2) {
    moved = (codes & 0x000F000Fu << 4 * i) * (0x1040u >> 4 * i);
  } else {
    const uint32_t apart = choose(0x88008800u, codes, codes >> 6);
    moved = i == 2 ? apart << 4 : apart;
  }
  return mul_bf16x2(moved & 0x81C081C0u, factor);
}
// The factors of two neighbouring scales; each is that of 16 channels.
__device__ inline uint2 q4_factors(uint32_t scales) {
  constexpr uint32_t kBias = 0x7B807B80u;    // 2^120: E4M3 in a bf16's place is times 2^-120
  constexpr uint32_t kFactor = 0x7A007A00u;  // 2^126 * kKeyFactor
  const uint32_t both = __byte_perm(scales, 0, 0x4140);
  const uint32_t pair = (both << 8 & 0x80008000u) | (both << 4 & 0x07F007F0u);
  uint32_t factors = mul_bf16x2(mul_bf16x2(pair, kBias), kFactor);
  if ((((scales & 0x7F7Fu) + 0x0101u) & 0x8080u) != 0) factors = 0x7FC07FC0u;
  return {__byte_perm(factors, 0, 0x1010), __byte_perm(factors, 0, 0x3232)};
}

// Codes i of two words of four. E4M3 in a bf16's place is the value times 2^-120; the scale is a
// second product because it may be too large to be one factor with 2^120.
__device__ inline uint32_t q8_pair(uint32_t low, uint32_t high, int i, uint32_t factor) {
  constexpr uint32_t kBias = 0x7B807B80u;  // 2^120
  const uint32_t codes = __byte_perm(low, high, i << 4 | (i + 4) << 12);
  const uint32_t pair = (codes & 0x80008000u) | (codes >> 4 & 0x07F007F0u);
  return mul_bf16x2(mul_bf16x2(pair, kBias), factor);
}
// Of a group's codes. One of NaN would be a number where q8_pair() puts it, so it makes the scale
// NaN: as in a row with a NaN, no sum over it is a number.
__device__ inline uint32_t q8_factor(const uint4& low, const uint4& high, uint32_t scale) {
  uint32_t nan = 0;
#pragma unroll
  for (const uint32_t w : {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}) {
    nan |= ((w & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u;
  }
  return nan != 0 ? 0x7FC07FC0u : both_halves(mul(e8m0_to_float(scale), kKeyFactor));
}

// A group of a packed row.
template <RowKind kKind>
struct PackedGroup;

template <>
struct PackedGroup<RowKind::kQ4Entry> {
  uint4 codes;
  uint32_t scales;  // of 16 channels each

  template <int kDim>
  __device__ void load(const std::byte* row, int group) {
    codes = load_codes < kDim % 256 == 0 ? 16 : 8 > (row + group * 16);
    scales = __ldg(reinterpret_cast<const uint16_t*>(row + kDim / 2) + group);
  }
  __device__ void widen(uint32_t (&pairs)[4][4]) const {  // [i][k]
    const uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};
    const uint2 factors = q4_factors(scales);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pairs[i][k] = q4_pair(word[k], i, k < 2 ? factors.x : factors.y);
      }
    }
  }
};

template <>
struct PackedGroup<RowKind::kQ8> {
  uint4 low;
  uint4 high;
  uint32_t scale;

  template <int kDim>
  __device__ void load(const std::byte* row, int group) {
    constexpr int kAlign = kDim % 512 == 0 ? 16 : 4;
    low = load_codes<kAlign>(row + group * 32);
    high = load_codes<kAlign>(row + group * 32 + 16);
    scale = __ldg(reinterpret_cast<const uint8_t*>(row + kDim) + group);
  }
  __device__ void widen(uint32_t (&pairs)[4][4]) const {
    const uint32_t word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const uint32_t factor = q8_factor(low, high, scale);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i][k] = q8_pair(word[2 * k], word[2 * k + 1], i, factor);
    }
  }
};

// Where the packed rows of keys `lane` and `lane + 32` of a tile lie. Behind the last key: the
// first again, since what is multiplied by 0 must be a number.
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
    const int lane = static_cast<int>(threadIdx.x % 32) + i * 32;
    const int key = first + (lane < keys ? lane : 0);
    found.row[i] =
        reinterpret_cast<unsigned long long>(window ? rows.window(a, key) : rows.entry(a, key));
  }
  return found;
}

// kWarps warps widen kWidth channels of a tile of rows of kDim channels, from group first_group on:
// store(row, group - first_group, pairs). Between the first loads and their use other_work() is
// called. Lanes 8 i .. 8 i + 7 hold eight rows in turn: the low bits of their rows differ, so they
// write to all banks.
template <RowKind kKind, int kDim, int kWidth, int kWarps, typename Work, typename Store>
__device__ void widen_rows(const RowAddresses& rows, int first_group, const Work& other_work,
                           const Store& store) {
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
      packed[i].template load<kDim>(reinterpret_cast<const std::byte*>(at), first_group + group);
    }
    if (first == 0) other_work();
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      uint32_t pairs[4][4];
      packed[i].widen(pairs);
      store(first_row + (first + i) * kRowsApart, group, pairs);
    }
  }
}

// kWarps warps widen kWidth channels of a tile, from group first_group on; see widen_rows().
template <int kDim, int kWidth, int kWarps, typename Work, typename Store>
__device__ void widen_tile(const RowAddresses& rows, bool window, int first_group,
                           const Work& other_work, const Store& store) {
  if (window) {
    widen_rows<RowKind::kQ8, kDim, kWidth, kWarps>(rows, first_group, other_work, store);
  } else {
    widen_rows<RowKind::kQ4Entry, kDim, kWidth, kWarps>(rows, first_group, other_work, store);
  }
}

}  // namespace tidemill::cuda
