// A cluster of blocks draws from a row, which stays in its shared memory.
//
// Everything that decides who may be drawn but for top-p is exact: scaled logits, the order of
// likelihood, counts. Scores and masses are float32 with bounded errors. The first of a race among
// more tokens than are in is the first of those that are in, if it is one of them. So nobody looks
// for the end of top-p: the race is run, and if its first has too many before it in the order of
// likelihood, it is run again among those.
//
// Every loop is bounded before it begins, whatever the numbers in memory are, so that no row, error
// or damage can keep the device for ever: behind its bound a row is left to the host. All threads
// of a cluster take the same way, as what combine() gave them decides it.
#include <cmath>

#include "ops/cuda/launch.h"
#include "ops/draw/cuda_cluster.cuh"

namespace tidemill::cuda {
namespace {

// Of the race. Each has e times fewer tokens than the one before, on average, and fewer yet if
// their weights differ: of 129,280 tokens it takes 12, more than 64 less than once in 10^24.
constexpr int kMostRounds = 64;
// For the end of top-k, in an interval of less than 2^63 orders. A search leaves a ninth of it and
// at most 8 orders; one among 8 finds, so 20 always do.
constexpr int kMostSearches = 24;

// Scores and masses differ by less than this, relatively, from those of the host. Of ex2.approx and
// lg2.approx the PTX manual promises 2^-22; the largest part is what rounding 1 - u to float32 does
// to a logarithm near 0. A token counts as ahead of another, or as in, by twice as much.
constexpr float kError = 0x1p-16f;
// No token farther behind the likeliest than this is first: that one's score is 1 / 22.9 at least,
// and that of the other 2^33 e^-26.1 at most.
constexpr float kNoWinner = 26.1f;

// ---- numbers
__device__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ float log2_approximate(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ float weight_at(float distance) { return exp2_approximate(-1.44269504f * distance); }

// -ln(1 - to_uniform(word))
__device__ float exponential(uint32_t word) {
  const float u = fmaf(static_cast<float>(word), 0x1p-32f, 0x1p-33f);
  const float rest = fmaf(static_cast<float>(~word), 0x1p-32f, 0x1p-33f);  // 1 - u
  const float series = u * fmaf(u, fmaf(u, fmaf(u, 0.25f, 0.333333333f), 0.5f), 1.0f);
  return u < 0x1p-5f ? series : -0.693147181f * log2_approximate(rest);
}

// Larger for the likelier logit, of equal ones for the lower id.
__device__ uint64_t likelihood(float logit, int id) {
  const uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.0f));  // -0 + 0 = 0
  const uint32_t ascending = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ascending} << 32 | ~static_cast<uint32_t>(id);
}
__device__ float logit_of(uint64_t likelihood) {
  const auto ascending = static_cast<uint32_t>(likelihood >> 32);
  return __uint_as_float(ascending >> 31 != 0 ? ascending & 0x7FFFFFFFu : ~ascending);
}
constexpr uint64_t kNoNumber = UINT64_MAX;  // a logit that is not below infinity

// Smaller for the likelier token. Distances, -scaled, are >= 0 or +0: their bits ascend.
__device__ uint64_t order_of(float distance, int id) {
  return uint64_t{__float_as_uint(distance)} << 32 | static_cast<uint32_t>(id);
}

// ---- a block's slice of the row: logits, later distances, infinite where a token is out
struct Slice {
  float4* values;
  int quads;
  int first;  // id

  // body(q, the four values, id of the first of them): every thread has its own quads.
  template <typename Body>
  __device__ void for_each_quad(const Body& body) const {
#pragma unroll 1
    for (int q = static_cast<int>(threadIdx.x); q < quads; q += kThreads) {
      const float4 v = values[q];
      const float quad[4] = {v.x, v.y, v.z, v.w};
      body(q, quad, first + 4 * q);
    }
  }
};

// Fetches the slice; returns the likelihood of its best token of this thread, or kNoNumber.
__device__ uint64_t load(const Slice& slice, const float* row, int width) {
  auto* to = reinterpret_cast<float*>(slice.values);
  float best = -INFINITY;
  int id = 0;
  bool bad = false;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < 4 * slice.quads; i += kThreads) {
    const int k = slice.first + i;
    const float x = k < width ? row[k] : -INFINITY;
    to[i] = x;
    bad |= !(x < INFINITY);
    if (x > best) {  // ascending: the first of equals stays
      best = x;
      id = k;
    }
  }
  return bad ? kNoNumber : likelihood(best, id);
}

// Logits become distances. Returns how many tokens of this thread are in, and their mass.
__device__ Sum scale(const Slice& slice, float largest, float temperature, float farthest) {
  Sum all{};
  slice.for_each_quad([&](int q, const float(&logit)[4], int) {
    float distance[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float d = __fdiv_rn(__fsub_rn(largest, logit[i]), temperature);
      const bool in = d <= farthest;
      distance[i] = in ? d : INFINITY;
      all.count += in;
      all.mass += in ? weight_at(d) : 0.0f;
    }
    slice.values[q] = make_float4(distance[0], distance[1], distance[2], distance[3]);
  });
  return all;
}

// Adds to sums[j] the tokens of [begin, end) that stand before pivots[j], in the order of
// likelihood.
template <int n>
__device__ void measure(const Slice& slice, uint64_t begin, uint64_t end,
                        const uint64_t (&pivots)[n], Sum (&sums)[n]) {
  slice.for_each_quad([&](int, const float(&distance)[4], int id) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint64_t order = order_of(distance[i], id + i);
      if (order < begin || order >= end) continue;
      const float weight = weight_at(distance[i]);
#pragma unroll
      for (int j = 0; j < n; ++j) {
        if (order >= pivots[j]) continue;
        sums[j].count += 1;
        sums[j].mass += weight;
      }
    }
  });
}

// Behind the k likeliest tokens; there are more. `kept` is their sum. 0: there is no such place,
// which cannot be as long as every token has an order of its own.
__device__ uint64_t end_of_top_k(Cluster& cluster, const Slice& slice, float farthest, int k,
                                 Sum& kept) {
  // Fewer than k stand before `begin`, more before `end`.
  uint64_t begin = 0;
  uint64_t end = order_of(farthest, 0) + (uint64_t{1} << 32);
  Sum before{};
  for (int search = 0; search < kMostSearches; ++search) {
    const uint64_t step = end - begin > kPivots ? (end - begin) / (kPivots + 1) : 1;
    uint64_t pivots[kPivots];
    Sum sums[kPivots] = {};
#pragma unroll
    for (int j = 0; j < kPivots; ++j) pivots[j] = begin + step * static_cast<unsigned>(j + 1);
    measure(slice, begin, end, pivots, sums);
    cluster.combine(sums, Add());
    const Sum outside = before;
#pragma unroll
    for (int j = 0; j < kPivots; ++j) {
      const Sum sum = Add()(outside, sums[j]);
      if (sum.count == k) {
        kept = sum;
        return pivots[j];
      }
      if (sum.count < k) {
        begin = pivots[j];
        before = sum;
      } else if (pivots[j] < end) {
        end = pivots[j];
      }
    }
  }
  return 0;
}

// visit(id, distance, score) of every token before `end` that may be the first of the race.
template <typename Visit>
__device__ void race(const Slice& slice, const NoiseKey& key, uint64_t end, const Visit& visit) {
  slice.for_each_quad([&](int, const float(&distance)[4], int id) {
    const float nearest = fminf(fminf(distance[0], distance[1]), fminf(distance[2], distance[3]));
    if (nearest > kNoWinner) return;
    const PhiloxWords words = noise_words(key, static_cast<uint32_t>(id) / 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (order_of(distance[i], id + i) >= end) continue;
      visit(id + i, distance[i],
            weight_at(distance[i]) * reciprocal_approximate(exponential(words[i])));
    }
  });
}

// Lists the tokens before `end` that may be the first of the race. Returns their number, which may
// be larger than the list.
__device__ int list_first(Cluster& cluster, const Slice& slice, const NoiseKey& key, uint64_t end) {
  float own = 0.0f;
  race(slice, key, end, [&](int, float, float score) { own = fmaxf(own, score); });
  Shared& first = cluster.first();
  if (cluster.block() == 0 && threadIdx.x == 0) first.listed = 0;
  const uint64_t best = cluster.combine(uint64_t{__float_as_uint(own)}, Larger());
  const float least = __uint_as_float(static_cast<uint32_t>(best)) * (1.0f - 2 * kError);
  if (own >= least) {  // one thread, nearly always
    race(slice, key, end, [&](int id, float distance, float score) {
      if (score < least) return;
      const int place = atomicAdd(&first.listed, 1);
      if (place >= Drawn::kMost) return;
      first.id[place] = id;
      first.distance[place] = distance;
    });
  }
  cluster.sync();
  return first.listed;
}

// Lists the tokens among which the drawn one is. Returns their number; 0: they are not known.
__device__ int draw_row(Cluster& cluster, const Slice& slice, const DrawRow& how, uint64_t best) {
  if (best == kNoNumber || logit_of(best) == -INFINITY) return 0;
  Shared& first = cluster.first();
  if (how.temperature == 0.0f) {
    if (cluster.block() == 0 && threadIdx.x == 0) {
      first.id[0] = static_cast<int>(~static_cast<uint32_t>(best));
      first.distance[0] = 0.0f;
    }
    return 1;
  }
  const float farthest = fabsf(how.lowest);
  Sum all = cluster.combine(scale(slice, logit_of(best), how.temperature, farthest), Add());
  uint64_t end = order_of(INFINITY, 0);
  if (how.top_k > 0 && how.top_k < all.count) {
    end = end_of_top_k(cluster, slice, farthest, how.top_k, all);
    if (end == 0) return 0;
  }
  for (int round = 0; round < kMostRounds; ++round) {
    const int listed = list_first(cluster, slice, how.key, end);
    if (listed > Drawn::kMost) return 0;
    if (how.top_p >= 1.0f) return listed;
    uint64_t pivots[Drawn::kMost];
    Sum before[Drawn::kMost] = {};
#pragma unroll
    for (int j = 0; j < Drawn::kMost; ++j) {
      pivots[j] = j < listed ? order_of(first.distance[j], first.id[j]) : 0;
    }
    measure(slice, 0, end, pivots, before);
    cluster.combine(before, Add());
    const float target = how.top_p * all.mass;
    const uint64_t last_end = end;
#pragma unroll
    for (int j = 0; j < Drawn::kMost; ++j) {
      if (before[j].mass < target * (1.0f - 2 * kError)) continue;
      if (before[j].mass < target * (1.0f + 2 * kError)) return 0;
      if (pivots[j] < end) end = pivots[j];
    }
    if (end == last_end) return listed;
  }
  return 0;
}

__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, 3)
    draw_kernel(DrawArgs a, int quads) {
  extern __shared__ float4 values[];
  __shared__ Shared shared;
  Cluster cluster(shared);
  const int64_t t = blockIdx.x / kBlocks;
  const Slice slice{values, quads, cluster.block() * quads * 4};
  const DrawRow how = a.rows[t];
  const uint64_t best =
      cluster.combine(load(slice, a.logits.f32(t), static_cast<int>(a.logits.width)), Larger());
  const int count = draw_row(cluster, slice, how, best);
  cluster.sync();  // the list is complete, and nobody reads other blocks' memory any more
  if (cluster.block() != 0 || threadIdx.x != 0) return;
  Drawn drawn{.count = count};
  for (int i = 0; i < count; ++i) {  // by insertion
    int place = i;
    for (; place > 0 && drawn.id[place - 1] > shared.id[i]; --place) {
      drawn.id[place] = drawn.id[place - 1];
      drawn.scaled[place] = drawn.scaled[place - 1];
    }
    drawn.id[place] = shared.id[i];
    drawn.scaled[place] = -shared.distance[i];
  }
  a.drawn[t] = drawn;
}

}  // namespace

void draw(Launch& l, const DrawArgs& a) {
  static_assert(kBlocks * kWarps % 32 == 0, "the lanes of a warp read the parts of all");
  constexpr int64_t kMostShared = 224 << 10;
  static_assert(kMostShared + sizeof(Shared) <= 227 << 10, "a block has no more");
  if (a.logits.count == 0) return;
  const int64_t quads = (a.logits.width + 4 * kBlocks - 1) / (4 * kBlocks);
  const int64_t bytes = quads * static_cast<int64_t>(sizeof(float4));
  if (bytes > kMostShared) {  // nothing is known of any row
    cudaMemsetAsync(a.drawn, 0, static_cast<size_t>(a.logits.count) * sizeof(Drawn), l.stream);
    return;
  }
  static const cudaError_t allowed = cudaFuncSetAttribute(
      draw_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kMostShared));
  static_cast<void>(allowed);
  draw_kernel<<<blocks_for(a.logits.count * kBlocks, 1), kThreads, static_cast<size_t>(bytes),
                l.stream>>>(a, static_cast<int>(quads));
}

}  // namespace tidemill::cuda
