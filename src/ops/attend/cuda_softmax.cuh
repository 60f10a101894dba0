// What kernels of attention do with tiles of keys: scores, online softmax, values.
#pragma once

#include <cmath>

#include "ops/attend/cuda_keys.cuh"

namespace tidemill::cuda {

constexpr float kLog2E = 1.44269504f;

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

// Of eight neighbouring channels, 16 bytes of a query, the pairs that the tensor cores read.
__device__ inline void pairs_of_eight(const uint4& eight, uint32_t (&pair)[4]) {
  pair[0] = __byte_perm(eight.x, eight.z, 0x5410);
  pair[1] = __byte_perm(eight.x, eight.z, 0x7632);
  pair[2] = __byte_perm(eight.y, eight.w, 0x5410);
  pair[3] = __byte_perm(eight.y, eight.w, 0x7632);
}

// kSpans spans of four groups, from first_span on, of the heads of query t as a tile for scores, by
// kWarps warps of which this is `warp`; heads that the model does not have are 0. A lane has eight
// channels in a row of one of two heads: four whole pairs of a group, and what all lanes store at
// once goes to all banks. Before the first store before_stores() is called. If that is a barrier, a
// round's loads are all under way before it: these are not __ldg()s, which might be moved behind.
template <int kDim, int kSpans, int kWarps, typename Work>
__device__ void load_query(const AttendArgs& a, int64_t t, int first_span, int warp, uint8_t* tile,
                           const Work& before_stores) {
  constexpr int kEights = kTile / 8;                                // of heads
  constexpr int kAcross = kWarps > kEights ? kWarps / kEights : 1;  // warps that share one
  constexpr int kOfWarp = kSpans / kAcross;                         // spans
  constexpr int kBlocks = kEights * kAcross / kWarps;               // eights of a warp
  constexpr int kMostPairs = 8 / (kBlocks * kOfWarp);
  constexpr int kPairs = kMostPairs < 4 ? kMostPairs : 4;  // of heads, loaded at once
  static_assert(kOfWarp * kAcross == kSpans && kBlocks * kWarps == kEights * kAcross);
  static_assert(kPairs > 0 && 4 % kPairs == 0);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int k = lane % 4;
  const int span = first_span + warp % kAcross * kOfWarp;
  const int block = warp / kAcross * kBlocks;
  const uint16_t* q = a.q.bf16(t) + span * kSpan + lane / 4 % 4 * kGroup + k * 8;
  uint8_t* to = tile + span * 2 * kPartBytes + lane / 4 % 4 * 4;
#pragma unroll 1
  for (int first = 0; first < 4; first += kPairs) {
    uint4 value[kPairs][kBlocks][kOfWarp];
    const auto for_each = [&](const auto& unit) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
          for (int s = 0; s < kOfWarp; ++s) {
            const int of_eight = first + pair + lane / 16 * 4;
            unit((block + b) * 8 + of_eight, of_eight, s, value[pair][b][s]);
          }
        }
      }
    };
    for_each([&](int head, int, int s, uint4& eight) {
      const auto* from = reinterpret_cast<const uint4*>(q + head * kDim + s * kSpan);
      eight = head < a.heads ? *from : uint4{0, 0, 0, 0};
    });
    if (first == 0) before_stores();
    for_each([&](int head, int of_eight, int s, const uint4& eight) {
      uint32_t pairs[4];
      pairs_of_eight(eight, pairs);
      uint8_t* rows = to + s * 2 * kPartBytes + (head - of_eight) * 128;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<uint32_t*>(rows + i / 2 * kPartBytes + in_part(of_eight, i % 2 * 4 + k)) =
            pairs[i];
      }
    });
  }
}

// The query's products with a tile of keys: those of half of the channels, plus those of the other
// half. s is as wgmma leaves it. A warpgroup calls.
template <int kDim>
__device__ void multiply_query(const uint8_t* q, const uint8_t* keys, float (&s)[32]) {
  const uint64_t a = swizzled_tile(q);
  const uint64_t b = swizzled_tile(keys);
  constexpr int kSteps = kDim / 16;
  float half[2][32];
#pragma unroll
  for (auto& sums : half) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    wgmma_done(sums);  // in registers before the first product
  }
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const int offset = k / (kPart / 16) * (kPartBytes / 16) + k % (kPart / 16) * 2;
    wgmma(half[k / (kSteps / 2)], a + offset, b + offset);
  }
  wgmma_commit();
  wgmma_wait<0>();
#pragma unroll
  for (auto& sums : half) wgmma_done(sums);
#pragma unroll
  for (int i = 0; i < 32; ++i) s[i] = add(half[0][i], half[1][i]);
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

// Online softmax of a row. Probabilities are relative to a reference, which is not the largest
// product so far, but within 2^kSlack of it: then it seldom moves, and sums seldom have to be
// rescaled. Nothing is rounded to fewer bits for that.
constexpr float kSlack = 8;
struct RowSoftmax {
  float reference = -1e30f;
  float sum = 0;  // of this thread's columns
};

// The reference with a tile whose largest product this is. `scale` is that of scores, also to
// powers of two, and undoes kKeyFactor.
__device__ inline float next_reference(float reference, float largest, float scale) {
  return mul(__fsub_rn(largest, reference), scale) > kSlack ? largest : reference;
}

// give(j, pair j of the row's probabilities in bf16); returns the factor of what was summed before.
template <typename Give>
__device__ float soften(const RowProducts& row, float scale, RowSoftmax& softmax,
                        const Give& give) {
  const float reference = next_reference(softmax.reference, row.largest(), scale);
  const float rescale = exp2_fast(mul(__fsub_rn(softmax.reference, reference), scale));
  softmax.reference = reference;
  const float shift = -mul(reference, scale);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float p0 = exp2_fast(__fmaf_rn(row.pair[j][0], scale, shift));
    const float p1 = exp2_fast(__fmaf_rn(row.pair[j][1], scale, shift));
    sum = add(sum, add(p0, p1));
    give(j, bf16_pair(p0, p1));
  }
  softmax.sum = __fmaf_rn(softmax.sum, rescale, sum);
  return rescale;
}

// What the sums of head `head` are multiplied by in the end. Four lanes have its columns.
__device__ inline float last_factor(const AttendArgs& a, int head, float scale,
                                    const RowSoftmax& softmax, bool any) {
  float sum = softmax.sum;
  sum = add(sum, __shfl_xor_sync(~0u, sum, 1));
  sum = add(sum, __shfl_xor_sync(~0u, sum, 2));
  const float sink = exp2_fast(
      __fmaf_rn(softmax.reference, -scale, mul(head < a.heads ? a.sink.data[head] : 0.0f, kLog2E)));
  return any ? mul(inverse(add(sum, sink)), 1.0f / kKeyFactor) : 0.0f;
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

// Which channels the columns of a block of value sums are: columns 8 j + 2 c + h. Lane c of four
// has all of eight neighbouring channels, in units u: i + 4 h (i = 0..3) of them.
// - Where values lie as store_for_values() puts them: eight of each group.
template <int kGroups>
struct GroupColumns {
  static constexpr int kUnits = kGroups;
  static constexpr int kApart = 8;  // the channels of two lanes
  static constexpr int eight(int u, int i) { return value_piece<kGroups>(u, i); }
  static constexpr int channel(int u) { return u * kGroup; }
};
// - Where they lie as for scores: a group of a span.
struct SpanColumns {
  static constexpr int kUnits = 4;
  static constexpr int kApart = kGroup;
  static constexpr int eight(int u, int i) { return i * 4 + u; }
  static constexpr int channel(int u) { return u * 8; }
};

// Of two neighbouring lanes, which have a row of two each, the even one gets both first words and
// the odd one both second words.
__device__ inline void exchange_words(bool odd, uint32_t& first, uint32_t& second) {
  const uint32_t got = __shfl_xor_sync(~0u, odd ? first : second, 1);
  if (odd)
    first = got;
  else
    second = got;
}

// Multiplies the sums of channels `channel` .. by their rows' last factors and writes them.
template <typename Columns, int kColumns>
__device__ void write_values(const AttendArgs& a, int64_t t, int64_t dim, int channel,
                             const float (&factors)[2], const ValueSums<kColumns>& sums) {
  constexpr int kOfBlock = kColumns / ValueSums<kColumns>::kBlocks;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32 % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = warp * 16 + lane / 4 + r * 8;
    uint16_t* to = a.out.bf16(t) + head * dim + channel;
    const auto unit_of = [&](int block, int u) {
      const auto pair = [&](int h, int i) {
        const float low = sums.block[block][Columns::eight(u, i) * 4 + r * 2 + h];
        const float high = sums.block[block][Columns::eight(u, i + 1) * 4 + r * 2 + h];
        return bf16_pair(mul(low, factors[r]), mul(high, factors[r]));
      };
      return uint4{pair(0, 0), pair(0, 2), pair(1, 0), pair(1, 2)};
    };
    const auto write = [&](int block, int lane_of_unit, int u, const uint4& unit) {
      if (head >= a.heads) return;
      *reinterpret_cast<uint4*>(to + block * kOfBlock + lane_of_unit * Columns::kApart +
                                Columns::channel(u)) = unit;
    };
#pragma unroll
    for (int block = 0; block < ValueSums<kColumns>::kBlocks; ++block) {
#pragma unroll
      for (int u = 0; u < Columns::kUnits; u += 2) {
        uint4 first = unit_of(block, u);
        uint4 second = unit_of(block, u + 1);
        if constexpr (Columns::kApart == 8) {
          write(block, lane % 4, u, first);
          write(block, lane % 4, u + 1, second);
        } else {
          // The lane beside it gets one of both units, so that they write 32 bytes in a row.
          const bool odd = lane % 2 != 0;
          exchange_words(odd, first.x, second.x), exchange_words(odd, first.y, second.y);
          exchange_words(odd, first.z, second.z), exchange_words(odd, first.w, second.w);
          write(block, lane % 4 & ~1, u + lane % 2, first);
          write(block, lane % 4 | 1, u + lane % 2, second);
        }
      }
    }
  }
}

}  // namespace tidemill::cuda
