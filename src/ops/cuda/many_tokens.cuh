// Products of weights with many tokens, at the speed of the tensor cores. Warpgroups have 64 rows
// each of kTiles tiles: they widen weights in registers and multiply them with blocks of
// activations. Four more warps do what would keep them from it: they bring activations and weights
// to shared memory, some chunks ahead and on into a block's next job, and store results while the
// next job is multiplied. The next columns are widened while the present ones are multiplied.
//
// Bits: every sum adds its products in the same order as few_tokens.cuh.
#pragma once

#include "ops/cuda/many_stages.cuh"
#include "ops/cuda/wgmma_sizes.cuh"

namespace tidemill::cuda {

// Which segments of a row a job adds up.
struct Segments {
  int all;
  int first;
  int last;

  __device__ int begin(int segment, int units) const { return segment_begin(segment, units, all); }
  template <WeightFormat kFormat>
  __device__ int first_chunk(int units) const {
    return begin(first, units) * (unit_columns(kFormat) / chunk_columns(kFormat));
  }
  template <WeightFormat kFormat>
  __device__ int last_chunk(int units) const {
    return begin(last, units) * (unit_columns(kFormat) / chunk_columns(kFormat));
  }
};

// Where a worker is in the rings; the parity of the next results' phase.
struct WorkerPlace {
  RingPlace block;
  RingPlace chunk;
  uint32_t results = 0;
};

// The next chunk of weights; it is number `chunk` of its rows. By a worker.
template <WeightFormat kFormat, bool kOneScale, typename Shared>
__device__ __forceinline__ void take_chunk(Shared& shared, RingPlace& at, int chunk,
                                           Chunk<kFormat> (&now)[Shared::Shape::kTiles]) {
  const int lane = threadIdx.x % 32;
  shared.full_weights[at.stage].wait(at.parity);
#pragma unroll
  for (int m = 0; m < Shared::Shape::kTiles; ++m) {
    const int fragment = Shared::Shape::fragment(threadIdx.x, m);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      now[m].piece[i] = load_shared(static_cast<uint32_t>(
          __cvta_generic_to_shared(&shared.pieces[at.stage][fragment][i][lane])));
    }
    if constexpr (ThreadRows<kFormat>::kScaled) {
      const uint2 words = load_shared_words(static_cast<uint32_t>(
          __cvta_generic_to_shared(&shared.scales[at.stage][fragment][lane / 4])));
      const uint32_t byte = 0x4440 + ThreadRows<kFormat>::scale_at(chunk) % 4;
      now[m].scale[0] = __byte_perm(words.x, 0, byte);
      now[m].scale[1] = kOneScale ? now[m].scale[0] : __byte_perm(words.y, 0, byte);
    }
  }
  shared.empty_weights[at.stage].arrive();
  at.template advance<Shared::kRing>();
}

// What multiplies a chunk's codes: of rows g and g + 8, and the rest of large scales.
template <WeightFormat kFormat, int kTiles, bool kOneScale>
struct ChunkScales {
  static constexpr int kScales = kOneScale ? 1 : 2;
  uint32_t factor[kTiles][kScales];
  bool large = false;

  __device__ void of(const Chunk<kFormat> (&now)[kTiles]) {
    bool any = false;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      any |= now[m].large();
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        factor[m][i] = Scale<kFormat>(now[m].scale[i]).factor;
        asm volatile("" : "+r"(factor[m][i]));  // not worked out again for every part
      }
    }
    large = __any_sync(0xFFFFFFFFu, any);
  }
};

// The next job: a warpgroup's rows times kTokens tokens. acc[m] is D of wgmma(). kSegmented:
// several segments; sums of those before are held in kHeld registers and in shared.kept. kOneScale:
// rows g and g + 8 have the same.
template <WeightFormat kFormat, int kTokens, bool kSegmented, bool kOneScale = false,
          typename Shared>
__device__ __forceinline__ void multiply_many(Shared& shared, WorkerPlace& at, int units,
                                              const Segments& segments,
                                              float (&acc)[Shared::Shape::kTiles][kTokens / 2]) {
  constexpr int kTiles = Shared::Shape::kTiles;
  constexpr int kAhead = Shared::Shape::kAhead;
  constexpr int kStages = Shared::kStages;
  constexpr int kSums = kTiles * kTokens / 2;
  constexpr int kHeld = kSegmented ? 48 : 1;
  constexpr int kChunks = unit_columns(kFormat) / chunk_columns(kFormat);
  constexpr int kPartsOfChunk = chunk_columns(kFormat) / 16;
  constexpr int kPartsOfBlock = kBlockColumns / 16;
  constexpr int kParts = kChunks * kPartsOfChunk;  // of a unit
  static_assert(kParts % (2 * kAhead) == 0 && kParts % kPartsOfBlock == 0);
  static_assert(kAhead <= kPartsOfBlock && kAhead < kParts && kAhead <= kPartsOfChunk);
  constexpr bool kScaled = ThreadRows<kFormat>::kScaled;
  const auto sum = [&](int i) -> float& { return acc[i / (kTokens / 2)][i % (kTokens / 2)]; };
  const auto clear = [&] {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum(i) = 0;
  };
  clear();
  const int end_unit = segments.begin(segments.last, units);
  int unit = segments.begin(segments.first, units);
  if (unit == end_unit) return;
  Chunk<kFormat> now[kTiles];
  // Parts in turn: kAhead that are multiplied, kAhead that wait for it.
  uint32_t a[2 * kAhead][kTiles][4];
  ChunkScales<kFormat, kTiles, kOneScale> scales;
  const auto widen = [&](int part) {
    auto& to = a[part % (2 * kAhead)];
    if constexpr (!kScaled) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) now[m].fragment(part % kPartsOfChunk, to[m]);
    } else {
      if (part % kPartsOfChunk == 0) scales.of(now);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t codes =
              codes_of_pair<kFormat>(now[m].piece[i % 2], 2 * (part % kPartsOfChunk) + i / 2);
          to[m][i] = multiply_bf16x2(codes, scales.factor[m][kOneScale ? 0 : i % 2]);
        }
      }
      if (__builtin_expect(scales.large, 0)) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) now[m].enlarge(to[m]);
      }
    }
  };
  const auto take = [&](int of_unit, int part) {
    take_chunk<kFormat, kOneScale>(shared, at.chunk, of_unit * kChunks + part / kPartsOfChunk, now);
  };
  // What is not widened is what instructions read, so the next chunk is taken before they begin.
  const auto take_before = [&](int of_unit, int part) {
    if (kScaled && part % kPartsOfChunk == 0) take(of_unit, part);
  };
  const auto take_after = [&](int of_unit, int part) {
    if (kScaled || part % kPartsOfChunk != kPartsOfChunk - 1) return;
    if (part + 1 < kParts) {
      take(of_unit, part + 1);
    } else if (of_unit + 1 < end_unit) {
      take(of_unit + 1, 0);
    }
  };
  take(unit, 0);
#pragma unroll
  for (int part = 0; part < kAhead; ++part) {
    widen(part);
    take_after(unit, part);
  }
  float held[kHeld] = {};
  bool only = true;  // no segment's sum before
  for (int segment = segments.first; segment < segments.last; ++segment) {
    const int begin = unit;
    const int end = kSegmented ? segments.begin(segment + 1, units) : end_unit;
    if (unit == end) continue;
    if (!only) clear();
    for (; unit < end; ++unit) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (part % kPartsOfBlock == 0) shared.full[at.block.stage].wait(at.block.parity);
        const uint64_t b = swizzled_tile(shared.block[at.block.stage]) + part % kPartsOfBlock * 2;
        wgmma_fence();
#pragma unroll
        for (int m = 0; m < kTiles; ++m) wgmma(acc[m], a[part % (2 * kAhead)][m], b);
        wgmma_commit();
        const int next = (part + kAhead) % kParts;
        const int of_unit = unit + (part + kAhead) / kParts;
        const bool more = of_unit < end_unit;
        if (more) take_before(of_unit, next);
        wgmma_wait<kAhead>();  // parts up to kAhead before
        if (part % kPartsOfBlock == kAhead - 1 && (part >= kPartsOfBlock || unit > begin)) {
          shared.empty[at.block.template before<kStages>()].arrive();
        }
        if (part % kPartsOfBlock == kPartsOfBlock - 1) at.block.template advance<kStages>();
        if (more) {
          widen(next);
          take_after(of_unit, next);
        }
      }
    }
    wgmma_wait<0>();
    shared.empty[at.block.template before<kStages>()].arrive();
#pragma unroll
    for (int m = 0; m < kTiles; ++m) wgmma_done(acc[m]);
    if constexpr (kSegmented) {
      static_assert(kSums > kHeld && (kSums - kHeld) % 4 == 0);
      constexpr int kPut = (kSums - kHeld) / 4;
      if (!only) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) sum(i) = add(held[i], sum(i));
#pragma unroll
        for (int i = 0; i < kPut; ++i) {
          const auto total = *reinterpret_cast<const float4*>(&shared.kept[i][threadIdx.x]);
          const int s = kHeld + 4 * i;
          sum(s) = add(total.x, sum(s));
          sum(s + 1) = add(total.y, sum(s + 1));
          sum(s + 2) = add(total.z, sum(s + 2));
          sum(s + 3) = add(total.w, sum(s + 3));
        }
      }
      if (unit < end_unit) {
        shared.stored.wait(at.results ^ 1);  // results of the job before
#pragma unroll
        for (int i = 0; i < kHeld; ++i) held[i] = sum(i);
#pragma unroll
        for (int i = 0; i < kPut; ++i) {
          const int s = kHeld + 4 * i;
          *reinterpret_cast<float4*>(&shared.kept[i][threadIdx.x]) = {sum(s), sum(s + 1),
                                                                      sum(s + 2), sum(s + 3)};
        }
      }
    }
    only = false;
  }
}

// Two results as one pair of bf16; they stay results until here (what the compiler moved ahead of
// the last instruction would hold that up).
__device__ inline uint32_t result_pair(float low, float high) {
  uint32_t pair;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Results as pairs of bf16, those of places g and g + 8 together, `changed`: in vector v * kTiles
// + m tokens 16 v + 2 (lane % 4), the next one, and both of those 8 further.
template <int kTokens, typename Shared, typename Changed>
__device__ __forceinline__ void keep_results(Shared& shared,
                                             const float (&acc)[Shared::Shape::kTiles][kTokens / 2],
                                             const Changed& changed) {
#pragma unroll
  for (int v = 0; v < kTokens / 16; ++v) {
#pragma unroll
    for (int m = 0; m < Shared::Shape::kTiles; ++m) {
      const auto two = [&](int i) {
        return changed(result_pair(acc[m][8 * v + i], acc[m][8 * v + i + 2]));
      };
      shared.kept[v * Shared::Shape::kTiles + m][threadIdx.x] = {two(0), two(1), two(4), two(5)};
    }
  }
}

// The same as rows of tokens, shared.kResultBytes apart, for store_rows().
template <int kTokens, typename Shared, typename Changed>
__device__ __forceinline__ void keep_rows(Shared& shared,
                                          const float (&acc)[Shared::Shape::kTiles][kTokens / 2],
                                          const Changed& changed) {
  constexpr int kBytes = Shared::kResultBytes;
  static_assert(kTokens * kBytes <= sizeof(shared.kept));
  const int lane = threadIdx.x % 32;
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared.kept)) +
                  lane % 4 * 2 * kBytes + lane / 4 * 4;
#pragma unroll
  for (int m = 0; m < Shared::Shape::kTiles; ++m) {
    const uint32_t row = to + Shared::Shape::fragment(threadIdx.x, m) * 32;
#pragma unroll
    for (int i = 0; i < kTokens / 2; i += 4) {
#pragma unroll
      for (int next = 0; next < 2; ++next) {
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(row + (2 * i + next) * kBytes),
                     "r"(changed(result_pair(acc[m][i + next], acc[m][i + next + 2])))
                     : "memory");
      }
    }
  }
  fence_writes();
}

// By a worker, around keep_results() or keep_rows().
template <typename Shared>
__device__ void await_stored(Shared& shared, const WorkerPlace& at) {
  shared.stored.wait(at.results ^ 1);
}
template <typename Shared>
__device__ void hand_over(Shared& shared, WorkerPlace& at) {
  shared.results.arrive();
  at.results ^= 1;
}

// By those that store, around what they do with a job's results.
template <typename Shared>
__device__ void await_results(Shared& shared, uint32_t& parity) {
  shared.results.wait(parity);
  parity ^= 1;
}

// By the warp that stores: kept rows of so many tokens, each `bytes` to to_of(token).
template <typename Shared, typename ToOf>
__device__ __forceinline__ void store_rows(Shared& shared, uint32_t& parity, int tokens,
                                           uint32_t bytes, const ToOf& to_of) {
  await_results(shared, parity);
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(shared.kept));
  for (int t = threadIdx.x % 32; t < tokens; t += 32) {
    bulk_store(to_of(t), from + t * Shared::kResultBytes, bytes);
  }
  bulk_read();
  shared.stored.arrive();
}

// The same as float32.
template <typename Shared, typename ToOf>
__device__ __forceinline__ void store_wide_rows(Shared& shared, uint32_t& parity, int tokens,
                                                int rows, const ToOf& to_of) {
  await_results(shared, parity);
  const auto* from = reinterpret_cast<const uint8_t*>(shared.kept);
  for (int row = threadIdx.x % 32 * 4; row < rows; row += 128) {
#pragma unroll 4
    for (int t = 0; t < tokens; ++t) {
      const uint2 four = *reinterpret_cast<const uint2*>(from + t * Shared::kResultBytes + row * 2);
      *reinterpret_cast<float4*>(to_of(t) + row) = {
          __uint_as_float(four.x << 16), __uint_as_float(four.x & 0xFFFF0000u),
          __uint_as_float(four.y << 16), __uint_as_float(four.y & 0xFFFF0000u)};
    }
  }
  shared.stored.arrive();
}

// Row of a block's fragment m of a worker, the first of two neighbours: then a store of both fills
// a sector with its neighbours.
template <typename Shape>
__device__ int row_in_block(int thread, int m) {
  return Shape::fragment(thread, m) * 16 + thread % 32 / 4 * 2;
}

}  // namespace tidemill::cuda
