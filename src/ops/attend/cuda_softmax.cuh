// What kernels of attention do with tiles of keys: scores, online softmax, values.
#pragma once

#include <cmath>

#include "ops/attend/cuda_keys.cuh"

namespace tidemill::cuda {

constexpr float kLog2E = 1.44269504f;

__device__ inline uint32_t bf16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// 2^x within 2^-22, 0 below 2^-126; p is rounded to bf16 afterwards.
__device__ inline float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// Within an ulp; what it is a factor of is rounded to bf16 afterwards.
__device__ inline float inverse(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The heads of query t as a tile, by kWarps warps of which this is `warp`; heads that the model
// does not have are 0.
template <int kDim, int kWarps>
__device__ void load_query(const AttendArgs& a, int64_t t, int warp, uint8_t* tile) {
  constexpr int kSpan = 128;  // channels that a warp loads at once
  constexpr int kLoads = 8;
  constexpr int kUnits = kTile * kDim / kSpan / kWarps;
  static_assert(kUnits % kLoads == 0);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool odd = lane % 2 != 0;  // channels 8 c + 4 ..: the upper halves of pairs
  const float* q = a.q.f32(t);
#pragma unroll 1
  for (int first = 0; first < kUnits; first += kLoads) {
    float4 value[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int unit = warp + (first + i) * kWarps;
      const int head = unit / (kDim / kSpan);
      const int channel = unit % (kDim / kSpan) * kSpan + lane * 4;
      value[i] = head < a.heads ? __ldg(reinterpret_cast<const float4*>(q + head * kDim + channel))
                                : float4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int unit = warp + (first + i) * kWarps;
      const int head = unit / (kDim / kSpan);
      const int group = (unit % (kDim / kSpan) * kSpan + lane * 4) / kGroup;
      const uint32_t first_two = bf16_pair(value[i].x, value[i].y);
      const uint32_t last_two = bf16_pair(value[i].z, value[i].w);
      const uint32_t got = __shfl_xor_sync(~0u, odd ? first_two : last_two, 1);
      const uint32_t low = odd ? got : first_two;
      const uint32_t high = odd ? last_two : got;
      const int piece = odd ? 2 : 0;
      const int word = lane % 8 / 2 * 4;
      *reinterpret_cast<uint32_t*>(tile + piece_offset(head, group, piece) + word) =
          __byte_perm(low, high, 0x5410);
      *reinterpret_cast<uint32_t*>(tile + piece_offset(head, group, piece + 1) + word) =
          __byte_perm(low, high, 0x7632);
    }
  }
}

// The query's products with a tile of keys; s is as wgmma leaves it. A warpgroup calls.
template <int kDim>
__device__ void multiply_query(const uint8_t* q, const uint8_t* keys, float (&s)[32]) {
#pragma unroll
  for (float& sum : s) sum = 0;
  const uint64_t a = swizzled_tile(q);
  const uint64_t b = swizzled_tile(keys);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    const int offset = k / (kPart / 16) * (kPartBytes / 16) + k % (kPart / 16) * 2;
    wgmma(s, a + offset, b + offset);
  }
  wgmma_commit();
  wgmma_wait<0>();
}

// Products with keys behind the last become less than all others.
__device__ inline void hide_absent(float (&s)[32], int keys) {
  if (keys == kTile) return;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int column = i / 4 * 8 + static_cast<int>(threadIdx.x % 4) * 2 + i % 2;
    if (column >= keys) s[i] = -INFINITY;
  }
}

// The largest product of the first or second row (head) that a thread has some of.
__device__ inline float largest_of(const float (&s)[32], int r) {
  float largest = -INFINITY;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    largest = fmaxf(largest, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
  }
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
  return fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
}

// Online softmax of these two rows.
struct alignas(16) Softmax {
  float largest[2] = {-1e30f, -1e30f};  // of the products
  float sum[2] = {0, 0};                // of this thread's columns
};

// From those that softened a tile to those that add its values.
struct alignas(1024) Softened {
  uint8_t p[kTile * kTile * 2];  // [head][key] bf16, swizzled
  float2 rescale[kWarpgroup];    // factors of a thread's sums so far
  Softmax softmax[kWarpgroup];
};

// `scale` is that of scores, also to powers of two, and undoes kKeyFactor. Afterwards the writes to
// shared memory need a fence for wgmma.
__device__ inline void soften(const float (&s)[32], float scale, Softmax& softmax, Softened& to) {
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
  float rescale[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float largest = fmaxf(softmax.largest[r], largest_of(s, r));
    rescale[r] = exp2_fast(mul(__fsub_rn(softmax.largest[r], largest), scale));
    softmax.largest[r] = largest;
    const float shift = -mul(largest, scale);
    float sum = 0;
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * r;
    uint8_t* p = to.p + row * 128 + thread % 4 * 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float p0 = exp2_fast(__fmaf_rn(s[4 * j + 2 * r], scale, shift));
      const float p1 = exp2_fast(__fmaf_rn(s[4 * j + 2 * r + 1], scale, shift));
      sum = add(sum, add(p0, p1));
      *reinterpret_cast<uint32_t*>(p + (j ^ (row % 8)) * 16) = bf16_pair(p0, p1);
    }
    softmax.sum[r] = __fmaf_rn(softmax.sum[r], rescale[r], sum);
  }
  to.rescale[thread] = {rescale[0], rescale[1]};
  to.softmax[thread] = softmax;
}

// As swizzled_tile, of rows that are the product's K: its columns go on in the next parts.
__device__ inline uint64_t transposed_tile(const void* tile) {
  constexpr uint64_t kPartsApart = uint64_t{kPartBytes / 16 - 1} << 16;
  return swizzled_tile(tile) + kPartsApart;
}

// Sums of kColumns channels, as registers of a warpgroup's products of 128 at most: one product of
// 256 needs more registers than a block of 512 threads may begin with.
template <int kColumns>
struct ValueSums {
  static constexpr int kBlocks = (kColumns + 127) / 128;
  static constexpr int kRegisters = kColumns / kBlocks / 2;
  float block[kBlocks][kRegisters];
  __device__ ValueSums() {
#pragma unroll
    for (auto& registers : block) {
#pragma unroll
      for (float& value : registers) value = 0;
    }
  }
};

// sums = sums * rescale + p * (a tile's channels from `values` on).
template <int kColumns>
__device__ void add_values(ValueSums<kColumns>& sums, const Softened& softened,
                           const uint8_t* values) {
  constexpr int kBlocks = ValueSums<kColumns>::kBlocks;
  constexpr int kRegisters = ValueSums<kColumns>::kRegisters;
  auto& out = sums.block;
  const float2 of_rows = softened.rescale[threadIdx.x % kWarpgroup];
  const float rescale[2] = {of_rows.x, of_rows.y};
  if (__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) out[n][i] = mul(out[n][i], rescale[i / 2 % 2]);
    }
  }
  const uint64_t p = swizzled_tile(softened.p);
  wgmma_fence();
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    const uint64_t v = transposed_tile(values + n * (kRegisters / 32) * kPartBytes);
#pragma unroll
    for (int i = 0; i < kTile / 16; ++i) {
      wgmma<1>(out[n], p + 2 * i, v + i * (16 * 128 / 16));
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
}

// Divides the sums of channels `channel` .. by the denominator and writes them.
template <int kColumns>
__device__ void write_values(const AttendArgs& a, int64_t t, int64_t dim, int channel, float scale,
                             const Softmax& softmax, const ValueSums<kColumns>& sums, bool any) {
  constexpr int kGroups = ValueSums<kColumns>::kRegisters / 16;  // of a block
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32 % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = warp * 16 + lane / 4 + r * 8;
    float sum = softmax.sum[r];
    sum = add(sum, __shfl_xor_sync(~0u, sum, 1));
    sum = add(sum, __shfl_xor_sync(~0u, sum, 2));
    if (head >= a.heads) continue;
    const float sink =
        exp2_fast(__fmaf_rn(softmax.largest[r], -scale, mul(a.sink.data[head], kLog2E)));
    const float factor = any ? mul(inverse(add(sum, sink)), 1.0f / kKeyFactor) : 0.0f;
    float* to = a.out.f32(t) + head * dim + channel + lane % 4 * 8;
#pragma unroll
    for (int group = 0; group < kColumns / kGroup; ++group) {
      const float* of_group = sums.block[group / kGroups] + group % kGroups * 16;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float value[4];
#pragma unroll
        for (int b = 0; b < 4; ++b) {
          value[b] = round_bf16(mul(of_group[b * 4 + r * 2 + h], factor));
        }
        *reinterpret_cast<float4*>(to + group * kGroup + h * 4) = {value[0], value[1], value[2],
                                                                   value[3]};
      }
    }
  }
}

}  // namespace tidemill::cuda
