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

// Four channels of a head, as a tile for scores has them: `value` is of channels 4 lane .. of a
// span of four groups. A warp calls. Neighbouring lanes have the two halves of four pairs.
__device__ inline void store_query(const float4& value, int head, int span, uint8_t* tile) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool odd = lane % 2 != 0;
  const uint32_t first_two = bf16_pair(value.x, value.y);
  const uint32_t last_two = bf16_pair(value.z, value.w);
  const uint32_t got = __shfl_xor_sync(~0u, odd ? first_two : last_two, 1);
  const uint32_t low = odd ? got : first_two;
  const uint32_t high = odd ? last_two : got;
  // Even lanes store i = 0 and 1, odd lanes 3 and 2: at once to all banks.
  const int i = odd ? 3 : 0;
  const int group = span * 4 + lane / 8;
  const int k = lane / 2 % 4;
  *reinterpret_cast<uint32_t*>(tile + score_offset(head, group, i, k)) =
      __byte_perm(low, high, odd ? 0x7632 : 0x5410);
  *reinterpret_cast<uint32_t*>(tile + score_offset(head, group, i ^ 1, k)) =
      __byte_perm(low, high, odd ? 0x5410 : 0x7632);
}

// The heads of query t as a tile, by kWarps warps of which this is `warp`; heads that the model
// does not have are 0.
template <int kDim, int kWarps>
__device__ void load_query(const AttendArgs& a, int64_t t, int warp, uint8_t* tile) {
  constexpr int kSpan = 4 * kGroup;  // channels that a warp loads at once
  constexpr int kUnits = kTile * kDim / kSpan / kWarps;
  constexpr int kLoads = kUnits < 8 ? kUnits : 8;
  static_assert(kUnits % kLoads == 0);
  const int lane = static_cast<int>(threadIdx.x % 32);
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
      store_query(value[i], unit / (kDim / kSpan), unit % (kDim / kSpan), tile);
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
  wgmma_done(s);
}

// A thread's products in one of its two rows (heads): those of columns (keys) 8 j + 2 (lane % 4)
// and one more.
struct RowProducts {
  float pair[8][2];

  // Row r of what wgmma leaves.
  static __device__ RowProducts of(const float (&s)[32], int r) {
    RowProducts row;
#pragma unroll
    for (int i = 0; i < 16; ++i) row.pair[i / 2][i % 2] = s[i / 2 * 4 + r * 2 + i % 2];
    return row;
  }
  // Products with keys behind the last become less than all others.
  __device__ void hide_absent(int keys) {
    if (keys == kTile) return;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int column = i / 2 * 8 + static_cast<int>(threadIdx.x % 4) * 2 + i % 2;
      if (column >= keys) pair[i / 2][i % 2] = -INFINITY;
    }
  }
  // Of the whole row.
  __device__ float largest() const {
    float result = -INFINITY;
#pragma unroll
    for (const auto& two : pair) result = fmaxf(result, fmaxf(two[0], two[1]));
    result = fmaxf(result, __shfl_xor_sync(~0u, result, 1));
    return fmaxf(result, __shfl_xor_sync(~0u, result, 2));
  }
};

// Online softmax of a thread's two rows. Probabilities are relative to a reference, which is not
// the largest product so far, but within 2^kSlack of it: then it seldom moves, and sums seldom have
// to be rescaled. Nothing is rounded to fewer bits for that.
constexpr float kSlack = 8;
struct alignas(16) Softmax {
  float reference[2] = {-1e30f, -1e30f};
  float sum[2] = {0, 0};  // of this thread's columns
};

// The reference with a tile whose largest product this is. `scale` is that of scores, also to
// powers of two, and undoes kKeyFactor.
__device__ inline float next_reference(float reference, float largest, float scale) {
  return mul(__fsub_rn(largest, reference), scale) > kSlack ? largest : reference;
}

// give(j, pair j of the probabilities of row r in bf16); returns the factor of what was summed
// before.
template <typename Give>
__device__ float soften(const RowProducts& row, int r, float scale, Softmax& softmax,
                        const Give& give) {
  const float reference = next_reference(softmax.reference[r], row.largest(), scale);
  const float rescale = exp2_fast(mul(__fsub_rn(softmax.reference[r], reference), scale));
  softmax.reference[r] = reference;
  const float shift = -mul(reference, scale);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float p0 = exp2_fast(__fmaf_rn(row.pair[j][0], scale, shift));
    const float p1 = exp2_fast(__fmaf_rn(row.pair[j][1], scale, shift));
    sum = add(sum, add(p0, p1));
    give(j, bf16_pair(p0, p1));
  }
  softmax.sum[r] = __fmaf_rn(softmax.sum[r], rescale, sum);
  return rescale;
}

// As swizzled_tile, of rows that are the product's K: its columns go on in the next parts.
__device__ inline uint64_t transposed_tile(const void* tile) {
  constexpr uint64_t kPartsApart = uint64_t{kPartBytes / 16 - 1} << 16;
  return swizzled_tile(tile) + kPartsApart;
}

constexpr int kValueStep = 16 * 128 / 16;  // to the next 16 keys

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

template <int kColumns>
__device__ void rescale_sums(ValueSums<kColumns>& sums, float first_row, float second_row) {
  if (!__any_sync(~0u, first_row != 1.0f || second_row != 1.0f)) return;
#pragma unroll
  for (auto& registers : sums.block) {
#pragma unroll
    for (int i = 0; i < ValueSums<kColumns>::kRegisters; ++i) {
      registers[i] = mul(registers[i], i / 2 % 2 == 0 ? first_row : second_row);
    }
  }
}

// Divides the sums of channels `channel` .. by the denominator and writes them.
template <int kColumns>
__device__ void write_values(const AttendArgs& a, int64_t t, int64_t dim, int channel, float scale,
                             const Softmax& softmax, const ValueSums<kColumns>& sums, bool any) {
  constexpr int kGroups = ValueSums<kColumns>::kRegisters / 16;  // of a block
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32 % 4);
  const bool odd = lane % 2 != 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = warp * 16 + lane / 4 + r * 8;
    float sum = softmax.sum[r];
    sum = add(sum, __shfl_xor_sync(~0u, sum, 1));
    sum = add(sum, __shfl_xor_sync(~0u, sum, 2));
    const bool there = head < a.heads;
    const float sink = exp2_fast(
        __fmaf_rn(softmax.reference[r], -scale, mul(there ? a.sink.data[head] : 0.0f, kLog2E)));
    const float factor = any ? mul(inverse(add(sum, sink)), 1.0f / kKeyFactor) : 0.0f;
    // A thread has eight channels in a row of each group. Of the lane beside it it gets four that
    // make what both write at once 32 bytes in a row.
    float* to = a.out.f32(t) + head * dim + channel + lane % 4 / 2 * 16 + (odd ? 4 : 0);
#pragma unroll
    for (int group = 0; group < kColumns / kGroup; ++group) {
      const float* of_block = sums.block[group / kGroups];
      uint32_t pair[2][2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const float* low = of_block + value_piece<kGroups>(group % kGroups, i) * 4 + r * 2 + h;
          const float* high =
              of_block + value_piece<kGroups>(group % kGroups, i + 1) * 4 + r * 2 + h;
          pair[h][i / 2] = bf16_pair(mul(*low, factor), mul(*high, factor));
        }
      }
      uint32_t first[2];
      uint32_t second[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t got = __shfl_xor_sync(~0u, odd ? pair[0][i] : pair[1][i], 1);
        first[i] = odd ? got : pair[0][i];
        second[i] = odd ? pair[1][i] : got;
      }
      if (!there) continue;
      *reinterpret_cast<uint4*>(to + group * kGroup) = {first[0] << 16, first[0] & 0xFFFF0000u,
                                                        first[1] << 16, first[1] & 0xFFFF0000u};
      *reinterpret_cast<uint4*>(to + group * kGroup + 8) = {
          second[0] << 16, second[0] & 0xFFFF0000u, second[1] << 16, second[1] & 0xFFFF0000u};
    }
  }
}

}  // namespace tidemill::cuda
