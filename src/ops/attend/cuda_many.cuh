// Attention of many tokens: a block takes one at a time, in tiles of 64 keys. Where rows of keys
// lie was found before, by a kernel of its own. Two pairs of warpgroups have different work:
// - producers hold packed rows of the next tile in registers, widen those of this one a part at a
//   time, store them as values, and multiply them with the query as the product's A: so keys are
//   read from shared memory for the value product only. Each has half of the channels of all, so
//   of the query, too, and sums of its own;
// - consumers add both sums and make them probabilities, each those of half of the heads, which
//   both multiply with the values of half of the channels.
// While consumers have a tile, producers make the next.
#pragma once

#include "ops/attend/cuda_softmax.cuh"
#include "ops/attend/cuda_tiles.cuh"
#include "ops/cuda/bulk_copy.cuh"

namespace tidemill::cuda {

constexpr int kManyDim = 512;
constexpr int kHalfDim = kManyDim / 2;
constexpr int kHalfSpans = kHalfDim / kSpan;
constexpr int kHalfBytes = kTile * kHalfDim * 2;

// Of half of a row.
union RowScales {
  uint16_t of_entries[kHalfSpans][4];  // [span][group]
  uint8_t of_window[kHalfSpans][4];
};

struct ManyShared {
  uint8_t q[2][kHalfBytes];          // of half of the channels each
  uint8_t values[2][2][kHalfBytes];  // [tile % 2][half]
  // Sums of the producers. Probabilities take the place of the first's: rows are bf16 then, and as
  // far apart.
  uint8_t scores[2][kTile * kTile * 4];
  RowScales scales[2][4][16];  // [half][warp][row]
  float factors[2][kTile];     // see exchange()
  TileKeys keys;               // of the tile that was scored
  Barrier scored, used;

  __device__ void init() {
    scored.init(8);
    used.init(8);
    fence_barriers();
  }
};
static_assert(sizeof(ManyShared) <= 227 * 1024);

// All lanes have done what the barrier tells of.
__device__ inline void warp_arrives(Barrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier.arrive();
}
// Of kCount threads that wait at barrier `name`.
template <int kCount>
__device__ void meet(int name) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "n"(kCount) : "memory");
}
constexpr int kProducersMeet = 1;  // and 2: those of each half
constexpr int kConsumersMeet = 3;

// ---- producers

__device__ inline uint32_t word_of(const uint4& words, int i) {  // i is known
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// What a thread has of its two rows: a group of each of both spans of entries, or both halves of
// one of a span of the window. Scales do not fit in: see copy_scales().
struct PackedRows {
  uint4 codes[2][2];  // [span or half][row]
};

// Codes i of them. `span`: of the window.
template <int kHalf>
__device__ void load_codes_of(const TileRows& from, int i, int span, PackedRows& to) {
  if (from.keys().count() == 0) return;
  const int c = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const auto* packed = from.row[r].packed();
    if (from.keys().window()) {
      const int first_group = (kHalf * kHalfSpans + span) * 4;
      to.codes[i][r] = __ldg(reinterpret_cast<const uint4*>(packed + c * 32) + first_group * 2 + i);
    } else {
      const int first_group = (kHalf * kHalfSpans + i) * 4;
      to.codes[i][r] = __ldg(reinterpret_cast<const uint4*>(packed + c * 16) + first_group);
    }
  }
}

// Starts to copy the scales of a warp's rows: 8 bytes of each span of entries, or of both spans of
// the window. They are there after await_scales().
template <int kHalf>
__device__ void copy_scales(const TileRows& from, RowScales (&to)[16]) {
  const int g = static_cast<int>(threadIdx.x % 32 / 4);
  const int r = static_cast<int>(threadIdx.x % 2);
  const int span = static_cast<int>(threadIdx.x % 4 / 2);
  if (from.keys().count() > 0 && (span == 0 || !from.keys().window())) {
    const std::byte* rows[2] = {from.row[0].packed(), from.row[1].packed()};
    const std::byte* packed = r == 0 ? rows[0] : rows[1];
    packed += from.keys().window() ? kManyDim + kHalf * 8 : kManyDim / 2 + kHalf * 16 + span * 8;
    copy_async<8>(static_cast<uint32_t>(__cvta_generic_to_shared(to[g + 8 * r].of_entries[span])),
                  packed);
  }
  commit_copies();
}
__device__ inline void await_scales() {
  wait_copies<0>();
  __syncwarp();
}

// Where this lane has a row of A of the first step go among the values, which lie as for scores:
// registers of A are what is stored. Those of pairs [i][k] and [i][k + 1], k even, go to pieces
// that differ in bits of their number.
__device__ inline uint32_t values_place(const uint8_t* values) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = static_cast<int>(threadIdx.x % kWarpgroup / 32 * 16) + lane % 16;
  return static_cast<uint32_t>(__cvta_generic_to_shared(values)) + in_part(row, lane / 16);
}

// Products of the query and a tile's keys, a quarter of a span (a piece of each thread) at a time.
struct TileProduct {
  static constexpr int kAhead = 2;
  uint32_t a[kAhead][2][4] = {};  // A of two products: some are read while one is made
  float s[32];                    // [key][head]

  // Piece i of a span; pair(r, i, k): of row g + 8 r, pair [i][k]. `to`: see values_place().
  template <typename Pair>
  __device__ void add(int span, int i, const uint8_t* q, uint32_t to, const Pair& pair) {
    const int step = span * 4 + i;
    const int part = step / 2;
    uint32_t(&x)[2][4] = a[step % kAhead];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int k = 0; k < 4; ++k) x[k / 2][k % 2 * 2 + r] = pair(r, i, k);
    }
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      store_matrices((to ^ (i % 2 * 4 + k) * 16) + part * kPartBytes, x[k / 2]);
    }
    const uint64_t b = swizzled_tile(q) + part * (kPartBytes / 16) + i % 2 * 4;
    wgmma_fence();
    if (step == 0) {
      wgmma_first(s, x[0], b);
    } else {
      wgmma(s, x[0], b);
    }
    wgmma(s, x[1], b + 2);
    wgmma_commit();
    wgmma_wait<kAhead - 1>();
    hold(step + 1);
  }
  __device__ void end() {
    wgmma_wait<0>();
    wgmma_done(s);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) hold(i);
  }

 private:
  // Nothing else comes into the registers of this A before this.
  __device__ void hold(int step) {
#pragma unroll
    for (auto& of_product : a[step % kAhead]) {
#pragma unroll
      for (uint32_t& x : of_product) asm volatile("" : "+r"(x));
    }
  }
};

// Scores are given as [head][key], in units of the four keys 16 w + 2 c, + 8, + 1, + 9: what a
// thread needs of 16 as a fragment of A. Units are swizzled: neither side meets a bank twice.
__device__ inline int scores_swizzle(int head) { return head / 2 % 4 * 2 ^ head % 2 * 4; }

__device__ inline void store_scores(const float (&s)[32], uint8_t* scores) {
  const int warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int g = static_cast<int>(threadIdx.x % 32 / 4);
  const int c = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = 2 * c + i;
    const int unit = (4 * warp + g / 2) ^ scores_swizzle(head);
    uint8_t* to = scores + head * (kTile * 4) + unit * 16 + g % 2 * 8;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      *reinterpret_cast<float2*>(to + j * 8 * (kTile * 4)) = {s[4 * j + i], s[4 * j + 2 + i]};
    }
  }
}

// A row of them, both producers' sums.
__device__ inline RowProducts load_scores(const uint8_t (&scores)[2][kTile * kTile * 4], int head) {
  const int c = static_cast<int>(threadIdx.x % 4);
  const int swizzle = scores_swizzle(head % 8);
  RowProducts row;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = head * (kTile * 4) + ((4 * i + c) ^ swizzle) * 16;
    const float4 first = *reinterpret_cast<const float4*>(scores[0] + at);
    const float4 second = *reinterpret_cast<const float4*>(scores[1] + at);
    row.pair[2 * i][0] = add(first.x, second.x);
    row.pair[2 * i + 1][0] = add(first.y, second.y);
    row.pair[2 * i][1] = add(first.z, second.z);
    row.pair[2 * i + 1][1] = add(first.w, second.w);
  }
  return row;
}

__device__ inline void prefetch_query(const AttendArgs& a, int64_t t) {
  const auto bytes = static_cast<uint32_t>(a.q.width * int64_t{sizeof(float)});
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(a.q.f32(t)), "r"(bytes));
}

// Of the channels of half kHalf.
template <int kHalf>
__device__ void produce(const AttendArgs& a, const FoundTile* found, int most_tiles,
                        ManyShared& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int g = static_cast<int>(threadIdx.x % 32 / 4);
  const int c = static_cast<int>(threadIdx.x % 4);
  TileWalk walk(a, found, most_tiles);
  PackedRows packed;
  const auto load = [&](const TileRows& from, int i, int span) {
    load_codes_of<kHalf>(from, i, span, packed);
  };
  RowScales(&scales)[16] = shared.scales[kHalf][warp];
  load(walk.next(), 0, 0);
  load(walk.next(), 1, 0);
  copy_scales<kHalf>(walk.next(), scales);
  walk.advance();
  int64_t t = blockIdx.x;
  bool first = true;  // of a token
#pragma unroll 1
  for (uint32_t number = 0; !walk.keys().is_end(); ++number) {
    const TileKeys tile = walk.keys();
    if (first) {
      load_query<kManyDim, kHalfSpans, 4>(a, t, kHalf * kHalfSpans, warp, shared.q[0], [] {
        meet<kWarpgroup>(kProducersMeet + kHalf);
      });  // all have used the one before
      fence_shared_for_wgmma();
      meet<kWarpgroup>(kProducersMeet + kHalf);
      t += gridDim.x;
      if (threadIdx.x == 0 && t < a.q.count) prefetch_query(a, t);
    }
    const uint32_t to = values_place(shared.values[number % 2][kHalf]);
    TileProduct product;
    const auto load_next_scales = [&] {  // when all lanes have read those of this tile
      __syncwarp();
      copy_scales<kHalf>(walk.next(), scales);
    };
    await_scales();
    if (tile.count() == 0) {
      load(walk.next(), 0, 0);
      load(walk.next(), 1, 0);
      load_next_scales();
    } else if (tile.window()) {
      const TileRows rows = walk.rows();
#pragma unroll
      for (int span = 0; span < kHalfSpans; ++span) {
        uint32_t factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          factor[r] = q8_factor(packed.codes[0][r], packed.codes[1][r],
                                scales[g + 8 * r].of_window[span][c]);
        }
        if (span == kHalfSpans - 1) load_next_scales();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          product.add(span, i, shared.q[kHalf], to, [&](int r, int j, int k) {
            const uint4& codes = packed.codes[k / 2][r];
            return q8_pair(word_of(codes, k % 2 * 2), word_of(codes, k % 2 * 2 + 1), j, factor[r]);
          });
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) load(span == 0 ? rows : walk.next(), i, 1 - span);
      }
      product.end();
    } else {
#pragma unroll
      for (int span = 0; span < kHalfSpans; ++span) {
        uint2 factors[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          factors[r] = q4_factors(scales[g + 8 * r].of_entries[span][c]);
        }
        if (span == kHalfSpans - 1) load_next_scales();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          product.add(span, i, shared.q[kHalf], to, [&](int r, int j, int k) {
            return q4_pair(word_of(packed.codes[span][r], k), j,
                           k < 2 ? factors[r].x : factors[r].y);
          });
        }
        load(walk.next(), span, 0);
      }
      product.end();
    }
    // The tile before has been used: its scores, and the values in whose place the next tile's go.
    shared.used.wait(number % 2 ^ 1);
    if (tile.count() > 0) store_scores(product.s, shared.scores[kHalf]);
    if (kHalf == 0 && threadIdx.x == 0) shared.keys = tile;
    fence_shared_for_wgmma();
    warp_arrives(shared.scored);
    first = tile.last();
    walk.advance();
  }
}

// ---- consumers

// A factor of a row from those who have made it to those who have sums of the row: a thread gives
// one and gets those of its two rows. What all did before is done then.
__device__ inline void exchange(float given, int head, uint32_t& number, ManyShared& shared,
                                float (&got)[2]) {
  float* factors = shared.factors[number++ % 2];  // while some still read those before
  if (threadIdx.x % 4 == 0) factors[head] = given;
  fence_shared_for_wgmma();
  meet<2 * kWarpgroup>(kConsumersMeet);
#pragma unroll
  for (int r = 0; r < 2; ++r) got[r] = factors[(head & ~8) + 8 * r];
}

// Probabilities of rows g + 8 half of each warp's 16, values of the channels of half `half`.
__device__ inline void consume(const AttendArgs& a, float scale, ManyShared& shared, int half) {
  const int warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int g = static_cast<int>(threadIdx.x % 32 / 4);
  const int head = warp * 16 + half * 8 + g;
  constexpr int kEightRows = 8 * kTile * 4;  // of scores, and from there on of probabilities
  uint8_t* p = shared.scores[0] + head / 8 * kEightRows + threadIdx.x % 4 * 4;
  constexpr uint64_t kFurtherApart = uint64_t{(kEightRows - 1024) / 16} << 32;
  uint32_t number = 0;
  uint32_t exchanged = 0;
  float factors[2];
  for (int64_t t = blockIdx.x; t < a.q.count; t += gridDim.x) {
    RowSoftmax softmax;
    ValueSums<kHalfDim> sums;
    bool any = false;
    bool last = false;
#pragma unroll 1
    for (; !last; ++number) {
      shared.scored.wait(number % 2);
      const TileKeys keys = shared.keys;
      last = keys.last();
      if (keys.count() > 0) {
        any = true;
        RowProducts row = load_scores(shared.scores, head);
        __syncwarp();  // all have read those eight rows
        row.hide_absent(keys.count());
        const float rescale = soften(row, scale, softmax, [&](int j, uint32_t two) {
          *reinterpret_cast<uint32_t*>(p + in_part(g, j)) = two;
        });
        exchange(rescale, head, exchanged, shared, factors);
        rescale_sums(sums, factors[0], factors[1]);
        const uint64_t all = swizzled_tile(shared.scores[0]) + kFurtherApart;
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const uint64_t v = transposed_tile(shared.values[number % 2][half] + n * 2 * kPartBytes);
#pragma unroll
          for (int i = 0; i < kTile / 16; ++i) {
            wgmma<1>(sums.block[n], all + 2 * i, v + i * kValueStep);
          }
        }
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (auto& block : sums.block) wgmma_done(block);
      }
      warp_arrives(shared.used);
    }
    exchange(last_factor(a, head, scale, softmax, any), head, exchanged, shared, factors);
    write_values<SpanColumns>(a, t, kManyDim, half * kHalfDim, factors, sums);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    many_kernel(AttendArgs a, float scale, const FoundTile* found, int most_tiles) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<ManyShared*>(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  await_previous();
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / kWarpgroup), 0);  // uniform
  if (warpgroup < 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 96;");
    if (warpgroup == 0) {
      produce<0>(a, found, most_tiles, shared);
    } else {
      produce<1>(a, found, most_tiles, shared);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    consume(a, scale, shared, warpgroup - 2);
  }
}

}  // namespace tidemill::cuda
