// Where the keys of many tokens lie, tile by tile: one kernel finds it for all, so that another
// need not wait for one number after the other, nor hold what finding takes.
#pragma once

#include "ops/attend/cuda_keys.cuh"
#include "ops/cuda/early_launch.cuh"

namespace tidemill::cuda {

constexpr int kFinders = 4;  // warps

// What is known of a tile.
class TileKeys {
 public:
  __device__ explicit TileKeys(uint32_t bits) : bits_(bits) {}
  __device__ TileKeys(int count, bool window, bool last)
      : bits_(static_cast<uint32_t>(count) | (window ? kWindow : 0) | (last ? kLast : 0)) {}
  // No tile: the block has no more.
  __device__ static TileKeys end() { return TileKeys(kEnd); }
  __device__ int count() const { return static_cast<int>(bits_ & kCount); }  // 0: all of the token
  __device__ bool window() const { return (bits_ & kWindow) != 0; }
  __device__ bool last() const { return (bits_ & kLast) != 0; }  // of its token
  __device__ bool is_end() const { return bits_ == kEnd; }
  __device__ uint32_t bits() const { return bits_; }  // 12 of them

 private:
  static constexpr uint32_t kCount = 0x7F, kWindow = 0x80, kLast = 0x100, kEnd = 0x200;
  uint32_t bits_;
};

// Where a row lies, and what tile it is of: in bits that addresses do not have. Registers are few.
class TileRow {
 public:
  __device__ TileRow(unsigned long long address, TileKeys keys)
      : value_(address | uint64_t{keys.bits()} << kAddressBits) {}
  __device__ TileKeys keys() const {
    return TileKeys(static_cast<uint32_t>(value_ >> kAddressBits));
  }
  __device__ const std::byte* packed() const {
    return reinterpret_cast<const std::byte*>(value_ & ((uint64_t{1} << kAddressBits) - 1));
  }

 private:
  static constexpr int kAddressBits = 52;
  uint64_t value_;
};

// A tile as find_rows_kernel leaves it; see RowAddresses.
struct FoundTile {
  TileRow row[kTile];
};

// found[t * most_tiles + tile]; block t for token t.
__global__ void __launch_bounds__(kFinders * 32)
    find_rows_kernel(AttendArgs a, FoundTile* found, int most_tiles) {
  allow_next();
  const int64_t t = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const KeyTiles tiles(a, t);
  const int count = tiles.count();
  const KeyRows rows(a, t);
  found += t * most_tiles;
  if (count == 0 && threadIdx.x < kTile) {
    found->row[threadIdx.x] = TileRow(0, TileKeys(0, false, true));
  }
#pragma unroll 1
  for (int tile = warp; tile < count; tile += kFinders) {
    const RowAddresses at = find_rows(a, tiles, rows, tile);
    const TileKeys keys(tiles.keys(tile), tile < tiles.of_window(), tile + 1 == count);
    found[tile].row[lane] = TileRow(at.row[0], keys);
    found[tile].row[lane + 32] = TileRow(at.row[1], keys);
  }
}

// A thread's rows of a tile: g and g + 8 of its warp's 16.
struct TileRows {
  TileRow row[2];

  __device__ TileKeys keys() const { return row[0].keys(); }
};

// What tiles a block has, one after the other: which is made, and whose rows are loaded meanwhile.
// That is the next; a tile of the window is loaded in two parts, so it is that one first.
class TileWalk {
 public:
  __device__ TileWalk(const AttendArgs& a, const FoundTile* found, int most_tiles)
      : found_(found),
        tokens_(static_cast<int>(a.q.count)),
        most_tiles_(most_tiles),
        t_(static_cast<int>(blockIdx.x)) {
    load();
  }
  __device__ const TileKeys& keys() const { return keys_; }
  __device__ const TileRows& rows() const { return rows_; }
  __device__ void advance() {
    keys_ = TileKeys(__shfl_sync(~0u, rows_.keys().bits(), 0));
    if (!keys_.window()) look_ahead();
  }
  // When a tile of the window is made: from here on rows are the next one's.
  __device__ void look_ahead() {
    if (keys_.is_end()) return;
    if (keys_.last()) {
      t_ += static_cast<int>(gridDim.x);
      tile_ = 0;
    } else {
      ++tile_;
    }
    load();
  }

 private:
  __device__ void load() {
    if (t_ >= tokens_) {
      rows_ = {TileRow(0, TileKeys::end()), TileRow(0, TileKeys::end())};
      return;
    }
    const FoundTile& tile = found_[int64_t{t_} * most_tiles_ + tile_];
    const int row = static_cast<int>(threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4);
    rows_ = {tile.row[row], tile.row[row + 8]};
  }
  const FoundTile* found_;
  int tokens_;
  int most_tiles_;
  int t_;  // of those rows
  int tile_ = 0;
  TileKeys keys_ = TileKeys::end();
  TileRows rows_ = {TileRow(0, TileKeys::end()), TileRow(0, TileKeys::end())};
};

}  // namespace tidemill::cuda
