// Attention of many tokens: a block takes one at a time. Its warpgroups have different work, and
// tiles of 64 keys go from one to the next:
// - helpers find the rows of coming tiles (one warp) and fetch the query (the others);
// - producers hold packed rows of the next tile in registers, widen those of this one a part at a
//   time, store them as values, and multiply them with the query as the product's A: so keys are
//   read from shared memory for the value product only;
// - two warpgroups of consumers make the scores probabilities, both of all heads, which leaves them
//   in registers as A of the value product; each adds up the values of half of the channels.
#pragma once

#include "ops/attend/cuda_softmax.cuh"
#include "ops/cuda/bulk_copy.cuh"

namespace tidemill::cuda {

constexpr int kManyDim = 512;
constexpr int kSpan = 4 * kGroup;         // channels that four threads widen of a row
constexpr int kSpans = kManyDim / kSpan;  // those of two are a consumer's
constexpr int kQueryPart = kManyDim / 2;  // channels of the query that are fetched at once
constexpr int kFound = 4;                 // tiles found ahead
constexpr int kFetchWarps = 3;

// What the finder knows of a tile. Without keys: of a token that has none, or behind the last one.
struct TileKeys {
  int keys;
  bool window;
  bool first;  // of its token
  bool last;
  bool end;  // no tile
};

struct FoundTile {
  unsigned long long row[kTile];  // addresses; see RowAddresses
  TileKeys keys;
};

struct ManyShared {
  uint8_t q[kTile * kManyDim * 2];
  // A tile's values, in stage (its number in the block) % 2. The halves of a token's query come, as
  // they lie in memory, through the stages of its first two tiles.
  uint8_t values[2][kTile * kManyDim * 2];
  uint8_t scores[kTile * kTile * 4];
  FoundTile found[kFound];
  TileKeys scored_keys;
  int first_tile;  // number of the next token's

  Barrier tile_found[kFound], tile_taken[kFound];
  Barrier query_landed[2], query_there[2], query_used;
  Barrier scored, scores_read;
  Barrier values_used[2][kSpans];

  __device__ void init() {
    for (int i = 0; i < kFound; ++i) tile_found[i].init(1), tile_taken[i].init(4);
    for (int i = 0; i < 2; ++i) {
      query_landed[i].init(1), query_there[i].init(kFetchWarps);
      for (Barrier& used : values_used[i]) used.init(4);
    }
    query_used.init(4);
    scored.init(4);
    scores_read.init(8);
    fence_barriers();
  }
};

// All lanes have done what the barrier tells of.
__device__ inline void warp_arrives(Barrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier.arrive();
}

// ---- helpers

// Numbers of the selected entries that are keys `lane` and `lane + 32` of a tile.
struct EntryNumbers {
  int32_t number[2] = {-1, -1};

  __device__ EntryNumbers(const AttendArgs& a, int64_t t, int tile) {
    if (a.entries.format.width == 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = tile * kTile + static_cast<int>(threadIdx.x % 32) + i * 32;
      if (at < a.topk) number[i] = __ldg(a.selected + t * a.topk + at);
    }
  }
  // Before the first -1.
  __device__ int count() const {
    const uint32_t ends[2] = {__ballot_sync(~0u, number[0] < 0), __ballot_sync(~0u, number[1] < 0)};
    if (ends[0] != 0) return __ffs(static_cast<int>(ends[0])) - 1;
    return ends[1] != 0 ? 31 + __ffs(static_cast<int>(ends[1])) : kTile;
  }
};

__device__ inline void find_tiles(const AttendArgs& a, ManyShared& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int number = 0;
  const auto post = [&](const RowAddresses& rows, const TileKeys& keys) {
    FoundTile& found = shared.found[number % kFound];
    shared.tile_taken[number % kFound].wait(number / kFound % 2 ^ 1);
    found.row[lane] = rows.row[0];
    found.row[lane + 32] = rows.row[1];
    if (lane == 0) found.keys = keys;
    warp_arrives(shared.tile_found[number % kFound]);
    ++number;
  };
  for (int64_t t = blockIdx.x; t < a.q.count; t += gridDim.x) {
    EntryNumbers numbers(a, t, 0);  // of the next tile of entries
    const KeyRows rows(a, t);
    const int window = static_cast<int>(a.window_end[t] - a.window_begin[t]);
    int entries = numbers.count();  // of them
    int first_key = 0;
    int tile = 0;  // of entries
    do {
      TileKeys keys{0, first_key < window, first_key == 0 && tile == 0, false, false};
      RowAddresses found{};
      if (keys.window) {
        keys.keys = min(window - first_key, kTile);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = lane + i * 32 < keys.keys ? lane + i * 32 : 0;
          found.row[i] = reinterpret_cast<unsigned long long>(rows.window(a, first_key + key));
        }
        first_key += kTile;
      } else if (entries > 0) {
        keys.keys = entries;
        const EntryNumbers next(a, t, ++tile);
        const int32_t first = __shfl_sync(~0u, numbers.number[0], 0);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int32_t entry = lane + i * 32 < entries ? numbers.number[i] : first;
          found.row[i] = reinterpret_cast<unsigned long long>(rows.entry_row(a, entry));
        }
        entries = entries < kTile ? 0 : next.count();
        numbers = next;
      }
      keys.last = first_key >= window && entries == 0;
      post(found, keys);
    } while (first_key < window || entries > 0);
  }
  post(RowAddresses{}, TileKeys{0, false, false, false, true});
}

__device__ inline void prefetch_query(const AttendArgs& a, int64_t t) {
  const auto bytes = static_cast<uint32_t>(a.q.width * int64_t{sizeof(float)});
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(a.q.f32(t)), "r"(bytes));
}

// By kFetchWarps warps, of which this is `warp`.
__device__ inline void fetch_queries(const AttendArgs& a, ManyShared& shared, int warp) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int heads = static_cast<int>(a.heads);
  constexpr int kBytes = kQueryPart * 4;  // of a head
  uint32_t parity = 0;
  for (int64_t t = blockIdx.x; t < a.q.count; t += gridDim.x, parity ^= 1) {
    int first_tile = 0;
    if (t != blockIdx.x) {
      shared.query_used.wait(parity ^ 1);
      first_tile = shared.first_tile;
    }
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int stage = (first_tile + half) % 2;
      uint8_t* landing = shared.values[stage];
      if (warp == 0) {
        for (const Barrier& used : shared.values_used[stage]) {
          used.wait((first_tile + half) / 2 % 2 ^ 1);
        }
        if (lane == 0) shared.query_landed[half].arrive_expecting(heads * kBytes);
        __syncwarp();
        for (int head = lane; head < heads; head += 32) {
          bulk_copy(landing + head * kBytes, a.q.f32(t) + head * kManyDim + half * kQueryPart,
                    kBytes, shared.query_landed[half]);
        }
        if (half == 1 && lane == 0 && t + gridDim.x < a.q.count) prefetch_query(a, t + gridDim.x);
      }
      shared.query_landed[half].wait(parity);
      constexpr int kOfHead = kQueryPart / kSpan;
#pragma unroll 4
      for (int unit = warp; unit < heads * kOfHead; unit += kFetchWarps) {
        const int head = unit / kOfHead;
        const int span = unit % kOfHead;
        const auto* from = reinterpret_cast<const float4*>(landing + head * kBytes) + span * 32;
        store_query(from[lane], head, half * kOfHead + span, shared.q);
      }
      fence_shared_for_wgmma();
      warp_arrives(shared.query_there[half]);
    }
  }
}

// ---- producers

__device__ inline uint32_t word_of(const uint4& words, int i) {  // i is known
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// What a thread has of rows g and g + 8 of its warp's 16 keys: all of two rows of entries, or half
// of two of the window.
struct PackedRows {
  uint4 codes[kSpans][2];
  uint32_t scales[kSpans][2];
};

// Unit u of them: a thread's group of a span of entries, or half of one of the window.
__device__ inline void load_unit(PackedRows& to, int u, const FoundTile& from, int half) {
  if (from.keys.keys == 0) return;
  const int row = static_cast<int>(threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4);
  const int c = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const auto* packed = reinterpret_cast<const std::byte*>(from.row[row + 8 * r]);
    if (!from.keys.window) {
      to.codes[u][r] = __ldg(reinterpret_cast<const uint4*>(packed + c * 16) + u * 4);
      to.scales[u][r] =
          __ldg(reinterpret_cast<const uint16_t*>(packed + kManyDim / 2 + c * 2) + u * 4);
    } else {
      packed += half * (kManyDim / 2);
      to.codes[u][r] = __ldg(reinterpret_cast<const uint4*>(packed + c * 32) + u / 2 * 8 + u % 2);
      if (u % 2 != 0) continue;
      packed -= half * (kManyDim / 2 - 8);
      to.scales[u][r] = __ldg(reinterpret_cast<const uint8_t*>(packed + kManyDim + c) + u * 2);
    }
  }
}

// Products of the query and a tile's keys, a quarter of a span (a piece of each thread) at a time.
struct TileProduct {
  static constexpr int kAhead = 2;
  uint32_t a[kAhead][2][4] = {};  // A of two products: some are read while one is made
  float s[32] = {};               // [key][head]

  // Piece i of a span; pair(r, i, k): of row g + 8 r, pair [i][k]. `to` is where a tile of values
  // has pieces of even and of odd i.
  template <typename Pair>
  __device__ void add(int span, int i, const uint8_t* q, uint8_t* const (&to)[2],
                      const Pair& pair) {
    const int step = span * 4 + i;
    const int part = step / 2;
    uint32_t(&x)[2][4] = a[step % kAhead];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int k = 0; k < 4; ++k) x[k / 2][k % 2 * 2 + r] = pair(r, i, k);
      *reinterpret_cast<uint4*>(to[i % 2] + part * kPartBytes + r * 8 * 128) = {
          x[0][r], x[0][2 + r], x[1][r], x[1][2 + r]};
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

// Row r of them.
__device__ inline RowProducts load_scores(const uint8_t* scores, int r) {
  const int warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int g = static_cast<int>(threadIdx.x % 32 / 4);
  const int c = static_cast<int>(threadIdx.x % 4);
  const int swizzle = scores_swizzle(g);
  const uint8_t* from = scores + (warp * 16 + r * 8 + g) * (kTile * 4);
  RowProducts row;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 unit = *reinterpret_cast<const float4*>(from + ((4 * i + c) ^ swizzle) * 16);
    row.pair[2 * i][0] = unit.x;
    row.pair[2 * i + 1][0] = unit.y;
    row.pair[2 * i][1] = unit.z;
    row.pair[2 * i + 1][1] = unit.w;
  }
  return row;
}

__device__ inline void produce(ManyShared& shared) {
  const int row = static_cast<int>(threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4);
  const int c = static_cast<int>(threadIdx.x % 4);
  const int piece[2] = {in_part(row, 2 * c), in_part(row, 2 * c + 1)};
  TileProduct product;
  PackedRows packed;
  const auto find = [&](int number) -> const FoundTile& {
    shared.tile_found[number % kFound].wait(number / kFound % 2);
    return shared.found[number % kFound];
  };
#pragma unroll
  for (int u = 0; u < kSpans; ++u) load_unit(packed, u, find(0), 0);
  uint32_t token = 0;  // parity
#pragma unroll 1
  for (int number = 0; !shared.found[number % kFound].keys.end; ++number) {
    const int stage = number % 2;
    const FoundTile& tile = shared.found[number % kFound];
    const FoundTile& next = find(number + 1);
    uint8_t* const to[2] = {shared.values[stage] + piece[0], shared.values[stage] + piece[1]};
    const auto begin_span = [&](int span) {
      if (tile.keys.first && span % 2 == 0) shared.query_there[span / 2].wait(token);
      shared.values_used[stage][span].wait(number / 2 % 2 ^ 1);
    };
    if (tile.keys.keys == 0) {
#pragma unroll
      for (int u = 0; u < kSpans; ++u) begin_span(u), load_unit(packed, u, next, 0);
    } else if (tile.keys.window) {
#pragma unroll
      for (int span = 0; span < kSpans; ++span) {
        begin_span(span);
        const int u = span % 2 * 2;
        uint32_t factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          factor[r] = q8_factor(packed.codes[u][r], packed.codes[u + 1][r], packed.scales[u][r]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          product.add(span, i, shared.q, to, [&](int r, int j, int k) {
            const uint4& codes = packed.codes[u + k / 2][r];
            return q8_pair(word_of(codes, k % 2 * 2), word_of(codes, k % 2 * 2 + 1), j, factor[r]);
          });
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (span < 2) {
            load_unit(packed, u + i, tile, 1);
          } else {
            load_unit(packed, u + i, next, 0);
          }
        }
      }
      product.end();
    } else {
#pragma unroll
      for (int u = 0; u < kSpans; ++u) {
        begin_span(u);
        uint2 factors[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) factors[r] = q4_factors(packed.scales[u][r]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          product.add(u, i, shared.q, to, [&](int r, int j, int k) {
            return q4_pair(word_of(packed.codes[u][r], k), j, k < 2 ? factors[r].x : factors[r].y);
          });
        }
        load_unit(packed, u, next, 0);
      }
      product.end();
    }
    shared.scores_read.wait(number % 2 ^ 1);
    const bool last = tile.keys.last;
    if (tile.keys.keys > 0) store_scores(product.s, shared.scores);
    if (threadIdx.x % kWarpgroup == 0) {
      shared.scored_keys = tile.keys;
      if (last) shared.first_tile = number + 1;
    }
    fence_shared_for_wgmma();
    warp_arrives(shared.scored);
    warp_arrives(shared.tile_taken[number % kFound]);
    if (last) {
      warp_arrives(shared.query_used);
      token ^= 1;
    }
  }
}

// ---- consumers

// Of the channels of half `half`.
__device__ inline void consume(const AttendArgs& a, float scale, ManyShared& shared, int half) {
  int number = 0;
  for (int64_t t = blockIdx.x; t < a.q.count; t += gridDim.x) {
    Softmax softmax;
    ValueSums<kManyDim / 2> sums;
    bool any = false;
    bool last = false;
#pragma unroll 1
    for (; !last; ++number) {
      const int stage = number % 2;
      Barrier* used = shared.values_used[stage] + half * 2;
      shared.scored.wait(number % 2);
      const TileKeys keys = shared.scored_keys;
      last = keys.last;
      if (keys.keys == 0) {  // all of the token
        warp_arrives(shared.scores_read);
        warp_arrives(used[0]);
        warp_arrives(used[1]);
        continue;
      }
      any = true;
      uint32_t p[kTile / 16][4];  // A of products of 16 keys
      float rescale[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {  // one at a time: there are no registers for both
        asm volatile("" ::: "memory");
        RowProducts row = load_scores(shared.scores, r);
        if (r == 1) warp_arrives(shared.scores_read);
        row.hide_absent(keys.keys);
        rescale[r] = soften(row, r, scale, softmax,
                            [&](int j, uint32_t two) { p[j / 2][j % 2 * 2 + r] = two; });
      }
      rescale_sums(sums, rescale[0], rescale[1]);
      wgmma_fence();
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint64_t v = transposed_tile(shared.values[stage] + (half * 4 + n * 2) * kPartBytes);
#pragma unroll
        for (int i = 0; i < kTile / 16; ++i) {
          wgmma<1>(sums.block[n], p[i], v + i * kValueStep);
        }
        wgmma_commit();
      }
      wgmma_wait<1>();
      warp_arrives(used[0]);
      wgmma_wait<0>();
      warp_arrives(used[1]);
#pragma unroll
      for (auto& block : sums.block) wgmma_done(block);
#pragma unroll
      for (auto& of_keys : p) {
#pragma unroll
        for (uint32_t& x : of_keys) asm volatile("" : "+r"(x));
      }
    }
    write_values(a, t, kManyDim, half * (kManyDim / 2), scale, softmax, sums, any);
  }
}

__global__ void __launch_bounds__(kThreads, 1) many_kernel(AttendArgs a, float scale) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<ManyShared*>(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);  // known to be uniform
  if (warp < 4) {
    produce(shared);
  } else if (warp < 12) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 176;");
    consume(a, scale, shared, warp / 4 - 1);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    if (warp == 12) {
      find_tiles(a, shared);
    } else {
      fetch_queries(a, shared, warp - 13);
    }
  }
}

}  // namespace tidemill::cuda
