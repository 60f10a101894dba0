// The packed rows of a query's keys on their way through a warpgroup that widens them: copied to
// shared memory some steps ahead, so that it does not wait for memory.
#pragma once

#include "ops/attend/cuda_keys.cuh"

namespace tidemill::cuda {

// A step is two copies of 16 bytes of codes by each thread: two groups of entries or one of a
// window row. A thread reads what it copied itself, which needs no barrier.
struct Staged {
  static constexpr int kSteps = 3;  // on their way
  uint4 codes[kSteps][2][kWarpgroup];
  uint32_t scales[kSteps][2][kWarpgroup];
};

// 0 where there is nothing to copy; `from` must be an address nevertheless.
template <int kBytes>
__device__ void copy_async(void* to_shared, const std::byte* from, bool any) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(to_shared));
  const uint32_t bytes = any ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
                 "r"(bytes)
                 : "memory");
  }
}
template <int kAlign>
__device__ void copy_codes(uint4* to, const std::byte* from, bool any) {
#pragma unroll
  for (int at = 0; at < 16; at += kAlign) {
    copy_async<kAlign>(reinterpret_cast<uint8_t*>(to) + at, from + at, any);
  }
}

// All keys of a query, in order. A warpgroup calls. Eight lanes in a row have four rows and two
// neighbouring groups: they read whole sectors and write to all banks.
template <int kDim>
class RowStream {
  static constexpr int kWarpsAcross = kDim / kGroup / 4;   // warps that share the groups of a row
  static constexpr int kRowsApart = 8 * 4 / kWarpsAcross;  // of the groups of a thread
  static constexpr int kUnits = kTile / kRowsApart;        // groups of a thread in a tile
  static_assert(kUnits % 2 == 0 && kRowsApart <= 32);

 public:
  __device__ RowStream(const AttendArgs& a, const KeyTiles& tiles, const KeyRows& rows,
                       Staged& staged)
      : a_(a), tiles_(tiles), rows_(rows), staged_(staged) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x % kWarpgroup / 32);
    group_ = warp % kWarpsAcross * 4 + lane / 8 % 2 * 2 + lane / 4 % 2;
    first_row_ = warp / kWarpsAcross * 8 + lane / 16 * 4 + lane % 4;
    const Numbers first = find_numbers(0);
    const Numbers second = find_numbers(1);
    numbers_ = find_numbers(2);
    at_ = find(0, first);
    next_ = find(1, second);
#pragma unroll 1
    for (stage_ = 0; stage_ < Staged::kSteps; ++stage_) copy();
    stage_ = 0;
  }

  // The next tile, which is `tile`.
  __device__ void widen(int tile, uint8_t* to) {
    if (tile < tiles_.of_window()) {
#pragma unroll 1
      for (int unit = 0; unit < kUnits; ++unit) {
        wait();
        PackedGroup<RowKind::kQ8> packed;
        packed.low = own_codes(0);
        packed.high = own_codes(1);
        packed.scale = own_scales(0) >> group_ % 4 * 8 & 0xFFu;
        copy_next();
        packed.widen(to, first_row_ + unit * kRowsApart, group_);
      }
    } else {
#pragma unroll 1
      for (int unit = 0; unit < kUnits; unit += 2) {
        wait();
        PackedGroup<RowKind::kQ4Entry> packed[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          packed[i].codes = own_codes(i);
          packed[i].scales = own_scales(i) >> group_ % 2 * 16 & 0xFFFFu;
        }
        copy_next();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          packed[i].widen(to, first_row_ + (unit + i) * kRowsApart, group_);
        }
      }
    }
  }

 private:
  struct Numbers {  // of the entries that are keys `lane` and `lane + 32` of a tile
    uint32_t number[2] = {0, 0};
  };

  __device__ int first_key(int tile) const {
    return (tile < tiles_.of_window() ? tile : tile - tiles_.of_window()) * kTile;
  }
  __device__ Numbers find_numbers(int tile) const {
    Numbers found;
    if (tile < tiles_.of_window()) return found;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = static_cast<int>(threadIdx.x % 32) + i * 32;
      if (key < tiles_.keys(tile)) found.number[i] = rows_.entry_number(first_key(tile) + key);
    }
    return found;
  }
  __device__ RowAddresses find(int tile, const Numbers& numbers) const {
    RowAddresses found;
    const bool window = tile < tiles_.of_window();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = static_cast<int>(threadIdx.x % 32) + i * 32;
      const std::byte* row = nullptr;
      if (key < tiles_.keys(tile)) {
        row = window ? rows_.window(a_, first_key(tile) + key) : rows_.entry(a_, numbers.number[i]);
        prefetch(row, window ? kDim + kDim / kScaleBlock : kDim / 2 + kDim / kEntryBlock);
      }
      found.row[i] = reinterpret_cast<unsigned long long>(row);
    }
    return found;
  }
  // Each warp a quarter: copies then find the row in the L2 cache.
  __device__ void prefetch(const std::byte* row, int bytes) const {
    const int at = min(static_cast<int>(threadIdx.x % kWarpgroup / 32) * 128, bytes - 1);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row + at));
  }

  __device__ const std::byte* row_of(int unit) const {
    const int row = first_row_ + unit * kRowsApart;  // less than 32 in all lanes or in none
    return reinterpret_cast<const std::byte*>(
        __shfl_sync(~0u, unit * kRowsApart < 32 ? at_.row[0] : at_.row[1], row % 32));
  }
  // Begins the copies of a step, if there is one.
  __device__ void copy() {
    if (tile_ < tiles_.count()) {
      const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
      const bool window = tile_ < tiles_.of_window();
      const auto* nothing = reinterpret_cast<const std::byte*>(a_.q.f32(0));
      if (window) {
        const std::byte* row = row_of(unit_);
        const bool any = row != nullptr;
        const std::byte* from = any ? row : nothing;
        constexpr int kAlign = kDim % 512 == 0 ? 16 : 4;
        copy_codes<kAlign>(&staged_.codes[stage_][0][thread], from + group_ * 32, any);
        copy_codes<kAlign>(&staged_.codes[stage_][1][thread], from + group_ * 32 + 16, any);
        copy_async<4>(&staged_.scales[stage_][0][thread], from + kDim + group_ / 4 * 4, any);
        unit_ += 1;
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::byte* row = row_of(unit_ + i);
          const bool any = row != nullptr;
          const std::byte* from = any ? row : nothing;
          constexpr int kAlign = kDim % 256 == 0 ? 16 : 8;
          copy_codes<kAlign>(&staged_.codes[stage_][i][thread], from + group_ * 16, any);
          copy_async<4>(&staged_.scales[stage_][i][thread], from + kDim / 2 + group_ / 2 * 4, any);
        }
        unit_ += 2;
      }
      if (unit_ == kUnits) {
        unit_ = 0;
        ++tile_;
        at_ = next_;
        next_ = find(tile_ + 1, numbers_);
        numbers_ = find_numbers(tile_ + 2);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  __device__ void wait() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(Staged::kSteps - 1) : "memory");
  }
  __device__ void copy_next() {
    copy();
    stage_ = stage_ == Staged::kSteps - 1 ? 0 : stage_ + 1;
  }
  __device__ uint4 own_codes(int i) const {
    return staged_.codes[stage_][i][threadIdx.x % kWarpgroup];
  }
  __device__ uint32_t own_scales(int i) const {
    return staged_.scales[stage_][i][threadIdx.x % kWarpgroup];
  }

  const AttendArgs& a_;
  const KeyTiles& tiles_;
  const KeyRows& rows_;
  Staged& staged_;
  int group_;
  int first_row_;
  int stage_ = 0;  // of the step to be widened, and then of the one copied in its place
  int tile_ = 0;   // of the step to be copied
  int unit_ = 0;
  RowAddresses at_;
  RowAddresses next_;  // of the tile after that
  Numbers numbers_;    // and the one after that
};

}  // namespace tidemill::cuda
