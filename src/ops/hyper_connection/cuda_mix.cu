// hc_mix on tensor cores. A float32 weight is the sum of three bf16, a stream's value is one, so 24
// rows of fn are 72 rows of bf16 whose products with the streams are exact, as in float32.
//
// Order of a sum: 64 columns are a warp's, added by the instruction in steps of 16, for each of the
// three terms apart; the terms are added, then four warps in turn (a part), four parts in turn (a
// slice), and the slices in turn. Few tokens have a block for each part, many one for each slice:
// the same sums, more blocks or less to write.
#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/early_launch.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_core.cuh"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda {
namespace {

constexpr int kStreams = 4;
constexpr int kFnRows = (2 + kStreams) * kStreams;
constexpr int kSums = kFnRows + 1;  // and the sum of squares
constexpr int kTokens = 8;          // of one instruction
constexpr int kSteps = 4;           // of a warp, 16 columns each
constexpr int kWarpColumns = 16 * kSteps;
constexpr int kPartWarps = 4;
constexpr int kSliceParts = 4;
constexpr int kSliceColumns = kWarpColumns * kPartWarps * kSliceParts;

// The high halves of two floats: the floats themselves where they are bf16 values.
__device__ uint32_t high_halves(float a, float b) {
  return __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x7632);
}
__device__ float without_high_half(float a) {
  return __fsub_rn(a, __uint_as_float(__float_as_uint(a) & 0xFFFF0000u));
}

// Eight rows of fn times 16 columns: of row lane / 4, four columns from 4 (lane % 4). Which column
// the instruction takes a value for does not matter, as the streams are handed out alike.
struct Weights {
  uint32_t term[3][2];
  __device__ void split(float4 w) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      term[i][0] = high_halves(w.x, w.y);
      term[i][1] = high_halves(w.z, w.w);
      w = {without_high_half(w.x), without_high_half(w.y), without_high_half(w.z),
           without_high_half(w.w)};
    }
  }
};

// Eight rows above eight others.
__device__ void multiply(float (&d)[4], const uint32_t (&top)[2], const uint32_t (&bottom)[2],
                         const uint32_t (&x)[2]) {
  const uint32_t a[4] = {top[0], bottom[0], top[1], bottom[1]};
  mma(d, a, x[0], x[1]);
}

template <int kParts>
struct Shape {
  static constexpr int kWarps = kParts * kPartWarps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kColumns = kWarps * kWarpColumns;
  static constexpr int kStages = 5;  // of the streams on their way
  static constexpr int kPitch = kTokens + 1;
  static constexpr int kWarpSums = kSums * kPitch;
  static constexpr int kShared = kStages * kSteps * kThreads * int{sizeof(float4)} +
                                 2 * kWarps * kWarpSums * int{sizeof(float)};
};

// sums[x][t] of the columns of block x: the products of fn's rows with the streams of token t, then
// the sum of their squares. Block y has its share of the tokens; weights stay in registers.
template <int kParts>
__global__ void __launch_bounds__(Shape<kParts>::kThreads)
    sums_kernel(const float* fn, Rows h, float* sums) {
  allow_next();
  using S = Shape<kParts>;
  extern __shared__ float4 ring[];
  auto* const results = reinterpret_cast<float*>(ring + S::kStages * kSteps * S::kThreads);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(threadIdx.x) % 32 / 4;  // of eight, and the token of eight
  const int quarter = static_cast<int>(threadIdx.x) % 4;
  const int64_t column = int64_t{blockIdx.x} * S::kColumns + warp * kWarpColumns + 4 * quarter;
  const unsigned tiles = static_cast<unsigned>((h.count + kTokens - 1) / kTokens);
  const int begin = static_cast<int>(tiles * blockIdx.y / gridDim.y);
  const int end = static_cast<int>(tiles * (blockIdx.y + 1) / gridDim.y);

  // A thread fetches what it reads itself, so that only results need barriers.
  const auto stage = [&](int tile) {
    return ring + (tile - begin) % S::kStages * (kSteps * S::kThreads) + threadIdx.x;
  };
  const auto fetch = [&](int tile) {
    if (tile < end) {
      const float* const from = h.f32(min(int64_t{tile} * kTokens + row, h.count - 1)) + column;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        __pipeline_memcpy_async(stage(tile) + s * S::kThreads, from + 16 * s, sizeof(float4));
      }
    }
    __pipeline_commit();
  };
  float4 loaded[kSteps][3];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      loaded[s][i] =
          *reinterpret_cast<const float4*>(fn + (8 * i + row) * h.width + column + 16 * s);
    }
  }
  Weights w[kSteps][3];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int i = 0; i < 3; ++i) w[s][i].split(loaded[s][i]);
  }

  await_previous();
  for (int i = 0; i < S::kStages - 1; ++i) fetch(begin + i);
  for (int tile = begin; tile < end; ++tile) {
    fetch(tile + S::kStages - 1);
    __pipeline_wait_prior(S::kStages - 1);
    float d[5][4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const float4 values = stage(tile)[s * S::kThreads];
      const uint32_t x[2] = {high_halves(values.x, values.y), high_halves(values.z, values.w)};
#pragma unroll
      for (int i = 0; i < 3; ++i) multiply(d[i], w[s][0].term[i], w[s][1].term[i], x);
      multiply(d[3], w[s][2].term[0], x, x);  // below: tokens times tokens, squares on the diagonal
      multiply(d[4], w[s][2].term[1], w[s][2].term[2], x);
    }
    float* const all = results + (tile - begin) % 2 * (S::kWarps * S::kWarpSums);
    float* const mine = all + warp * S::kWarpSums;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 2 * quarter + i;
      mine[row * S::kPitch + token] = add(d[0][i], add(d[1][i], d[2][i]));
      mine[(8 + row) * S::kPitch + token] = add(d[0][2 + i], add(d[1][2 + i], d[2][2 + i]));
      mine[(16 + row) * S::kPitch + token] = add(d[3][i], add(d[4][i], d[4][2 + i]));
      if (row == token) mine[kFnRows * S::kPitch + token] = d[3][2 + i];
    }
    __syncthreads();  // the other half of the results is free behind the next one
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * kSums; i += S::kThreads) {
      const int64_t t = int64_t{tile} * kTokens + i / kSums;
      if (t >= h.count) break;
      const float* const from = all + i % kSums * S::kPitch + i / kSums;
      float total = 0;
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        float part = from[p * kPartWarps * S::kWarpSums];
#pragma unroll
        for (int n = 1; n < kPartWarps; ++n) {
          part = add(part, from[(p * kPartWarps + n) * S::kWarpSums]);
        }
        total = p == 0 ? part : add(total, part);
      }
      sums[(blockIdx.x * h.count + t) * kSums + i % kSums] = total;
    }
  }
}

__device__ float reciprocal(float x) {  // within one unit in the last place
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Rows and columns in turn divided by their sums, from the exponentials on
// (hyper_connection/reference.cpp). One thread has the matrix: nothing is exchanged.
__device__ void sinkhorn(float (&c)[kStreams][kStreams], int64_t iterations, float eps) {
  const auto divide_rows = [&](float more) {
#pragma unroll
    for (int i = 0; i < kStreams; ++i) {
      const float total = add(add(c[i][0], c[i][1]), add(c[i][2], c[i][3]));
      const float factor = reciprocal(add(total, more));
#pragma unroll
      for (int j = 0; j < kStreams; ++j) c[i][j] = mul(c[i][j], factor);
    }
  };
  const auto divide_columns = [&] {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const float total = add(add(c[0][j], c[1][j]), add(c[2][j], c[3][j]));
      const float factor = reciprocal(add(total, eps));
#pragma unroll
      for (int i = 0; i < kStreams; ++i) c[i][j] = mul(c[i][j], factor);
    }
  };
  divide_rows(0);
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) c[i][j] = add(c[i][j], eps);
  }
  divide_columns();
#pragma unroll 1
  for (int64_t iteration = 1; iteration < iterations; ++iteration) {
    divide_rows(eps);
    divide_columns();
  }
}

constexpr int64_t kMostColumns = kStreams * kMostHidden;  // whose slices have room

// A thread adds a slice's kPieces pieces of a sum, a warp the slices of a token, and when it has
// the exponentials, a thread goes on. Few tokens, whose sums are in pieces, have a block each.
constexpr int kMixThreads = 256;
constexpr int mix_tokens(int pieces) { return pieces == 1 ? kMixThreads / 32 : 1; }
template <int kPieces>
__global__ void __launch_bounds__(kMixThreads)
    mix_kernel(HcMixArgs a, F32Vector base, F32Vector scale, const float* sums) {
  allow_next();
  await_previous();
  constexpr int kElements = kStreams * kStreams;
  constexpr int kMixTokens = mix_tokens(kPieces);
  extern __shared__ float slice_sums[];
  __shared__ float exponentials[kMixTokens][kElements + 1];
  const int64_t first = int64_t{blockIdx.x} * kMixTokens;
  const int tokens = static_cast<int>(min(int64_t{kMixTokens}, a.h.count - first));
  const int slices = static_cast<int>(a.h.width / kSliceColumns);
  const int width = tokens * kSums;
#pragma unroll 4
  for (int k = static_cast<int>(threadIdx.x); k < slices * width; k += kMixThreads) {
    const float* const from = sums + first * kSums + k % width;
    float piece[kPieces];
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      piece[p] = from[(int64_t{k / width} * kPieces + p) * a.h.count * kSums];
    }
#pragma unroll
    for (int p = 1; p < kPieces; ++p) piece[0] = add(piece[0], piece[p]);
    slice_sums[k] = piece[0];
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int i = static_cast<int>(threadIdx.x) % 32;
  const int64_t t = first + warp;
  if (warp < tokens) {
    float sum = 0;
#pragma unroll 10
    for (int s = 0; s < slices; ++s) {
      sum = add(sum, slice_sums[s * width + warp * kSums + min(i, kSums - 1)]);
    }
    const float squares = __shfl_sync(0xFFFFFFFFu, sum, kFnRows);
    const float mean = __fdiv_rn(squares, static_cast<float>(a.h.width));
    const float r = __fdiv_rn(1.0f, __fsqrt_rn(add(mean, a.norm_eps)));
    const int kind = min(i / kStreams, 2);
    const int at = min(i, kFnRows - 1);
    const float mixed = add(mul(mul(sum, r), scale.data[kind]), base.data[at]);
    float largest = fmaxf(mixed, __shfl_xor_sync(0xFFFFFFFFu, mixed, 1));  // of four neighbours
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
    if (kind == 0) {
      a.pre.f32(t)[i] = add(canonical_sigmoid(mixed), a.hc_eps);
    } else if (kind == 1) {
      a.post.f32(t)[i - kStreams] = mul(2.0f, canonical_sigmoid(mixed));
    } else if (i < kFnRows) {
      exponentials[warp][i - 2 * kStreams] = canonical_exp(__fsub_rn(mixed, largest));
    }
  }
  __syncthreads();
  const int token = static_cast<int>(threadIdx.x);
  if (token >= tokens) return;
  float c[kStreams][kStreams];
#pragma unroll
  for (int n = 0; n < kElements; ++n) {
    c[n / kStreams][n % kStreams] = exponentials[token][n];
  }
  sinkhorn(c, a.sinkhorn_iterations, a.hc_eps);
#pragma unroll
  for (int n = 0; n < kElements; ++n) {
    a.comb.f32(first + token)[n] = c[n / kStreams][n % kStreams];
  }
}

template <int kParts>
void launch(Launch& l, const HcMixArgs& a) {
  using S = Shape<kParts>;
  constexpr int64_t kMostShares = 6;  // with 20 slices, a block a multiprocessor
  const HcWeights& w = *a.weights;
  const int64_t blocks = a.h.width / S::kColumns;
  auto* sums = static_cast<float*>(
      l.products.take(blocks * a.h.count * kSums * int64_t{sizeof(float)}, l.stream));
  if (sums == nullptr) return;
  allow_shared<sums_kernel<kParts>>(S::kShared);
  const int64_t shares = std::min<int64_t>(blocks_for(a.h.count, kTokens), kMostShares);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(shares));
  launch_early(sums_kernel<kParts>, grid, S::kThreads, S::kShared, l.stream,
               static_cast<const float*>(w.fn.data), a.h, sums);
  constexpr int kPieces = kSliceParts / kParts;
  constexpr int kMixTokens = mix_tokens(kPieces);
  const auto mix_bytes =
      static_cast<int>(a.h.width / kSliceColumns * kMixTokens * kSums * int64_t{sizeof(float)});
  launch_early(mix_kernel<kPieces>, blocks_for(a.h.count, kMixTokens), kMixThreads, mix_bytes,
               l.stream, a, w.base, w.scale, sums);
}

}  // namespace

void hc_mix(Launch& l, const HcMixArgs& a) {
  if (a.h.count == 0) return;
  const Matrix& fn = a.weights->fn;
  const bool fast = !l.plain && a.streams == kStreams && fn.format == WeightFormat::kF32 &&
                    fn.rows == kFnRows && fn.cols == a.h.width && a.h.width % kSliceColumns == 0 &&
                    a.h.width <= kMostColumns && in_packs(a.h, 4) && in_packs(fn, sizeof(float), 4);
  if (!fast) return plain::hc_mix(l, a);
  constexpr int64_t kFewTokens = 512;
  a.h.count <= kFewTokens ? launch<1>(l, a) : launch<kSliceParts>(l, a);
}

}  // namespace tidemill::cuda
