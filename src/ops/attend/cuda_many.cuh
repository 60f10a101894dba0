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
  RowScales scales[2][kTile];  // [half][row]
  float factors[2][kTile];     // see exchange()
  TileKeys keys;               // of the tile that was scored
  Barrier scored, used;

  __device__ void init() {
    scored.init(2 * kWarpgroup);
    used.init(2 * kWarpgroup);
    fence_barriers();
  }
};
static_assert(sizeof(ManyShared) <= 227 * 1024);

// Every thread tells what it has done, and waits for what it needs: no lane does for its warp,
// whose order with the others' accesses nobody could check. Warps go on as one.
__device__ inline void arrive(Barrier& barrier) {
  barrier.arrive();
  __syncwarp();
}
__device__ inline void await(const Barrier& barrier, uint32_t parity) {
  barrier.wait(parity);
  __syncwarp();
}
// Of kCount threads that wait at barrier `name`.
template <int kCount>
__device__ void meet(int name) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "n"(kCount) : "memory");
}
constexpr int kProducersMeet = 1;  // and 2: those of each half
constexpr int kConsumersMeet = 3;

// ---- producers

// threadIdx.x, read anew: what follows from it is not kept in a register, of which there are few.
__device__ inline uint32_t thread_anew() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// What a thread has of its two rows: a group of each of both spans of entries, or both halves of
// one of a span of the window. Scales do not fit in: see copy_scales().
struct PackedRows {
  uint4 codes[2][2];  // [span or half][row]

  // Of entries: the next two pieces of each group come to where the first were.
  __device__ void next_pieces(int span) {
#pragma unroll
    for (uint4& words : codes[span]) {
      words = {words.x >> 8, words.y >> 8, words.z >> 8, words.w >> 8};
    }
  }
};

// Codes i of them. `span`: of the window.
template <int kHalf>
__device__ void load_codes_of(const TileRows& from, int i, int span, PackedRows& to) {
  if (from.keys().count() == 0) return;
  const auto c = static_cast<uint32_t>(threadIdx.x % 4);
  const uint32_t at = from.keys().window() ? c * 32 + (kHalf * kHalfSpans + span) * kSpan + i * 16
                                           : c * 16 + (kHalf * kHalfSpans + i) * (kSpan / 2);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    to.codes[i][r] = __ldg(reinterpret_cast<const uint4*>(from.row[r].packed() + at));
  }
}

// Starts to copy the scales of a warp's rows: 8 bytes of each span of entries, or of both spans of
// the window. They are there after await_scales().
template <int kHalf>
__device__ void copy_scales(const TileRows& from, RowScales (&to)[kTile]) {
  const uint32_t thread = thread_anew();
  const uint32_t r = thread % 2;
  const uint32_t span = thread % 4 / 2;
  if (from.keys().count() > 0 && (span == 0 || !from.keys().window())) {
    const std::byte* rows[2] = {from.row[0].packed(), from.row[1].packed()};
    const std::byte* packed = r == 0 ? rows[0] : rows[1];
    packed += from.keys().window() ? kManyDim + kHalf * 8 : kManyDim / 2 + kHalf * 16 + span * 8;
    auto& place = to[thread % kWarpgroup / 32 * 16 + thread % 32 / 4 + 8 * r].of_entries[span];
    copy_async<8>(static_cast<uint32_t>(__cvta_generic_to_shared(place)), packed);
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
  const auto thread = static_cast<int>(thread_anew());
  const int lane = thread % 32;
  const int row = thread % kWarpgroup / 32 * 16 + lane % 16;
  return static_cast<uint32_t>(__cvta_generic_to_shared(values)) + in_part(row, lane / 16);
}

// Products of the query and a tile's keys, a quarter of a span (a piece of each thread) at a time.
// Between add() and end() no register of an A may be written, and only straight code is sure of
// that: in a loop, the next piece would be made where the A of one that still runs lies. So a loop
// has two pieces, then end(). It is not unrolled: else more is widened at once than registers hold,
// and what is put aside for that comes back through the scoreboard that keys are loaded through.
struct TileProduct {
  float s[32] = {};  // [key][head]

  __device__ TileProduct() { wgmma_done(s); }  // in registers before the first product
  // pair(r, k): of row g + 8 r, pair k of the piece. `to`: see values_place().
  template <typename Pair>
  __device__ void add(int step, const uint8_t* q, uint32_t to, const Pair& pair) {
    const int part = step / 2;
    const int piece = step % 2 * 4;
    uint32_t x[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int k = 0; k < 4; ++k) x[k / 2][k % 2 * 2 + r] = pair(r, k);
    }
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      store_matrices((to ^ (piece + k) * 16) + part * kPartBytes, x[k / 2]);
    }
    const uint64_t b = swizzled_tile(q) + part * (kPartBytes / 16) + piece;
    wgmma_fence();
    wgmma(s, x[0], b);
    wgmma(s, x[1], b + 2);
    wgmma_commit();
  }
  __device__ void end() {
    wgmma_wait<0>();
    wgmma_done(s);
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
  const auto bytes = static_cast<uint32_t>(a.q.width * int64_t{sizeof(uint16_t)});
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(a.q.bf16(t)), "r"(bytes));
}

// Of the channels of half kHalf.
template <int kHalf>
__device__ void produce(const AttendArgs& a, const FoundTile* found, int most_tiles,
                        ManyShared& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int row = warp * 16 + static_cast<int>(threadIdx.x % 32 / 4);
  const int c = static_cast<int>(threadIdx.x % 4);
  TileWalk walk(a, found, most_tiles);
  PackedRows packed;
  const auto load = [&](const TileRows& from, int i, int span) {
    load_codes_of<kHalf>(from, i, span, packed);
  };
  RowScales(&scales)[kTile] = shared.scales[kHalf];
  load(walk.rows(), 0, 0);
  load(walk.rows(), 1, 0);
  copy_scales<kHalf>(walk.rows(), scales);
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
    await_scales();
    if (tile.count() == 0) {
      load(walk.rows(), 0, 0);
      load(walk.rows(), 1, 0);
    } else if (tile.window()) {
#pragma unroll
      for (int span = 0; span < kHalfSpans; ++span) {
        uint32_t factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          factor[r] = q8_factor(packed.codes[0][r], packed.codes[1][r],
                                scales[row + 8 * r].of_window[span][c]);
        }
#pragma unroll 1
        for (int two = 0; two < 4; two += 2) {
#pragma unroll
          for (int i = two; i < two + 2; ++i) {
            product.add(span * 4 + i, shared.q[kHalf], to, [&](int r, int k) {
              const uint4& codes = packed.codes[k / 2][r];
              return q8_pair(word(codes, k % 2 * 2), word(codes, k % 2 * 2 + 1), i, factor[r]);
            });
          }
          product.end();
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) load(walk.rows(), i, 1 - span);
        if (span == 0) walk.look_ahead();
      }
    } else {
#pragma unroll
      for (int span = 0; span < kHalfSpans; ++span) {
        uint2 factors[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          factors[r] = q4_factors(scales[row + 8 * r].of_entries[span][c]);
        }
#pragma unroll 1
        for (int two = 0; two < 4; two += 2) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            product.add(span * 4 + two + i, shared.q[kHalf], to, [&](int r, int k) {
              return q4_pair(word(packed.codes[span][r], k), i,
                             k < 2 ? factors[r].x : factors[r].y);
            });
          }
          packed.next_pieces(span);
          product.end();
        }
        load(walk.rows(), span, 0);
      }
    }
    __syncwarp();  // all have read this tile's scales
    copy_scales<kHalf>(walk.rows(), scales);
    walk.advance();
    // The tile before has been used: its scores, and the values in whose place the next tile's go.
    await(shared.used, number % 2 ^ 1);
    if (tile.count() > 0) store_scores(product.s, shared.scores[kHalf]);
    if (kHalf == 0 && threadIdx.x == 0) shared.keys = tile;
    fence_shared_for_wgmma();
    arrive(shared.scored);
    first = tile.last();
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
      await(shared.scored, number % 2);
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
      arrive(shared.used);
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
