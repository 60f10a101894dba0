// What the blocks of a cluster that draws from a row share: sums and maxima over all their threads.
#pragma once

#include <cooperative_groups.h>

#include "ops/draw/draw.h"

namespace tidemill::cuda {

constexpr int kBlocks = 8;  // of a cluster
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kLaneParts = kBlocks * kWarps / 32;
constexpr int kPivots = 8;
constexpr unsigned kAll = 0xFFFFFFFFu;

struct Sum {
  int count;
  float mass;
};

// One block's.
struct Shared {
  // Of combinations over the cluster: the warps' parts, in turn, and all of them.
  uint64_t parts[2][kPivots][kWarps];
  uint64_t all[kPivots];
  // The first block's has the tokens that may be the first of the race.
  int listed;
  int id[Drawn::kMost];
  float distance[Drawn::kMost];
};

struct Larger {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a < b ? b : a; }
};
struct Add {
  __device__ Sum operator()(Sum a, Sum b) const {
    return {a.count + b.count, __fadd_rn(a.mass, b.mass)};
  }
};
__device__ inline uint64_t shuffled(uint64_t value, int distance) {
  return __shfl_xor_sync(kAll, value, distance);
}
__device__ inline Sum shuffled(Sum value, int distance) {
  return {__shfl_xor_sync(kAll, value.count, distance),
          __shfl_xor_sync(kAll, value.mass, distance)};
}

// Where another block of the cluster has what this one has here. An instruction that stays in its
// place: addresses that are computed long before they are used cost the registers of a third block.
template <typename T>
__device__ T* in_block(T* here, int block) {
  T* there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(here), "r"(block));
  return there;
}

class Cluster {
 public:
  __device__ explicit Cluster(Shared& shared) : shared_(shared) {}

  __device__ int block() const { return static_cast<int>(group_.block_rank()); }
  __device__ void sync() { group_.sync(); }
  __device__ Shared& first() { return *in_block(&shared_, 0); }

  // Every thread gets, in values, the combination of what all threads of the cluster had there.
  template <typename T, int n, typename Combine>
  __device__ void combine(T (&values)[n], const Combine& combined) {
    static_assert(sizeof(T) == sizeof(uint64_t) && n <= kPivots && n <= kWarps);
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    turn_ ^= 1;  // who is one call ahead does not overwrite what others still read
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const T of_warp = over_warp(values[i], combined);
      if (lane == 0) reinterpret_cast<T&>(shared_.parts[turn_][i][warp]) = of_warp;
    }
    group_.sync();
    if (warp < n) {
      T all;
#pragma unroll
      for (int step = 0; step < kLaneParts; ++step) {
        const int part = 32 * step + lane;
        const uint64_t* parts = in_block(shared_.parts[turn_][warp], part / kWarps);
        const T one = reinterpret_cast<const T&>(parts[part % kWarps]);
        all = step == 0 ? one : combined(all, one);
      }
      all = over_warp(all, combined);
      if (lane == 0) reinterpret_cast<T&>(shared_.all[warp]) = all;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < n; ++i) values[i] = reinterpret_cast<const T&>(shared_.all[i]);
  }
  template <typename T, typename Combine>
  __device__ T combine(T value, const Combine& combined) {
    T values[1] = {value};
    combine(values, combined);
    return values[0];
  }

 private:
  template <typename T, typename Combine>
  __device__ static T over_warp(T value, const Combine& combined) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) value = combined(value, shuffled(value, i));
    return value;
  }

  const cooperative_groups::cluster_group group_ = cooperative_groups::this_cluster();
  Shared& shared_;
  int turn_ = 0;
};

}  // namespace tidemill::cuda
