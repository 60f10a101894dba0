#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/early_launch.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda {
namespace {

// One value of each stream, V elements wide; those beyond the last stream are 0.
template <int V>
struct Streams {
  Pack<float, V> at[kMostStreams];
  __device__ void read(const float* h, int64_t width, int64_t streams) {
#pragma unroll
    for (int s = 0; s < kMostStreams; ++s) {
      at[s] = s < streams ? load<V>(h + s * width) : Pack<float, V>{};
    }
  }
};

// One block a token. Its collapsed streams and the weights are in shared memory before the sum of
// squares is there.
template <int V>
__global__ void __launch_bounds__(kMostRowThreads) collapse_norm_kernel(CollapseNormArgs a) {
  allow_next();
  await_previous();
  extern __shared__ float4 shared[];
  const int64_t t = blockIdx.x;
  const int width = static_cast<int>(a.norm.size);
  const int first = V * static_cast<int>(threadIdx.x);
  const int step = V * static_cast<int>(blockDim.x);
  auto* const u = reinterpret_cast<float*>(shared);
  auto* const weights = reinterpret_cast<uint16_t*>(u + padded(width));
  const float* const h = a.h.f32(t);
  float pre[kMostStreams];
#pragma unroll
  for (int s = 0; s < kMostStreams; ++s) pre[s] = s < a.streams ? a.pre.f32(t)[s] : 0.0f;
  for (int d = first; d < width; d += step) {
    Streams<V> streams;
    streams.read(h + d, width, a.streams);
    const auto codes = load<V>(a.norm.data + d);
    Pack<float, V> collapsed;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float total = 0;
#pragma unroll
      for (int s = 0; s < kMostStreams; ++s) {
        if (s < a.streams) total = add(total, mul(pre[s], streams.at[s].at[i]));
      }
      collapsed.at[i] = round_bf16(total);
    }
    store(u + d, collapsed);
    store(weights + d, codes);
    if (a.collapsed.data != nullptr) store(a.collapsed.f32(t) + d, collapsed);
  }
  pad(u, width);
  __syncthreads();
  store_normed<V>(u, weights, width, a.eps, a.x.f32(t));
}

template <int V>
__global__ void expand_kernel(ExpandArgs a, unsigned parts) {
  allow_next();
  await_previous();
  const Place<V> at(parts);
  const int64_t width = a.y.width;
  if (at.k >= width) return;
  float* const h = a.h.f32(at.row) + at.k;
  float comb[kMostStreams][kMostStreams];  // read before h is written, so that nothing waits
  float post[kMostStreams];
#pragma unroll
  for (int j = 0; j < kMostStreams; ++j) {
    post[j] = j < a.streams ? a.post.f32(at.row)[j] : 0.0f;
#pragma unroll
    for (int s = 0; s < kMostStreams; ++s) {
      const bool used = s < a.streams && j < a.streams;
      comb[s][j] = used ? a.comb.f32(at.row)[s * a.streams + j] : 0.0f;
    }
  }
  const auto y = load<V>(a.y.f32(at.row) + at.k);
  Streams<V> streams;
  streams.read(h, width, a.streams);
#pragma unroll
  for (int j = 0; j < kMostStreams; ++j) {
    if (j >= a.streams) return;
    Pack<float, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float mixed = 0;
#pragma unroll
      for (int s = 0; s < kMostStreams; ++s) {
        if (s < a.streams) mixed = add(mixed, mul(comb[s][j], streams.at[s].at[i]));
      }
      out.at[i] = round_bf16(add(mul(post[j], y.at[i]), mixed));
    }
    store(h + j * width, out);
  }
}

template <int V>
__global__ void stream_mean_kernel(StreamMeanArgs a, unsigned parts) {
  const Place<V> at(parts);
  const int64_t width = a.out.width;
  if (at.k >= width) return;
  Streams<V> streams;
  streams.read(a.h.f32(at.row) + at.k, width, a.streams);
  Pack<float, V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    float total = 0;
#pragma unroll
    for (int s = 0; s < kMostStreams; ++s) {
      if (s < a.streams) total = add(total, streams.at[s].at[i]);
    }
    out.at[i] = round_bf16(__fdiv_rn(total, static_cast<float>(a.streams)));
  }
  store(a.out.f32(at.row) + at.k, out);
}

template <int V>
void launch(cudaStream_t stream, const CollapseNormArgs& a) {
  allow_shared<collapse_norm_kernel<V>>(norm_bytes(kMostHidden));
  const unsigned threads = row_threads(blocks_for(a.norm.size, V));
  const int shared = norm_bytes(a.norm.size);
  launch_early(collapse_norm_kernel<V>, blocks_for(a.h.count, 1), threads, shared, stream, a);
}
template <int V>
void launch(cudaStream_t stream, const ExpandArgs& a) {
  const Parts p(a.h.count, a.y.width, V);
  launch_early(expand_kernel<V>, p.blocks, p.threads, 0, stream, a, p.parts);
}
template <int V>
void launch(cudaStream_t stream, const StreamMeanArgs& a) {
  const Parts p(a.h.count, a.out.width, V);
  stream_mean_kernel<V><<<p.blocks, p.threads, 0, stream>>>(a, p.parts);
}

}  // namespace

void collapse_norm(Launch& l, const CollapseNormArgs& a) {
  if (a.h.count == 0) return;
  const bool packs = in_packs(a.h, 4) && in_packs(a.norm, 4) && in_packs(a.x, 4) &&
                     (a.collapsed.data == nullptr || in_packs(a.collapsed, 4));
  packs ? launch<4>(l.stream, a) : launch<1>(l.stream, a);
}

void expand(Launch& l, const ExpandArgs& a) {
  if (a.h.count == 0) return;
  in_packs(a.h, 4) && in_packs(a.y, 4) ? launch<4>(l.stream, a) : launch<1>(l.stream, a);
}

void stream_mean(Launch& l, const StreamMeanArgs& a) {
  if (a.h.count == 0) return;
  in_packs(a.h, 4) && in_packs(a.out, 4) ? launch<4>(l.stream, a) : launch<1>(l.stream, a);
}

}  // namespace tidemill::cuda
