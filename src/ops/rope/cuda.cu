#include <algorithm>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/early_launch.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda {
namespace {

constexpr int64_t kThreads = 128;

__global__ void rope_table_kernel(RopeTableArgs a) {
  const int64_t half = a.table.width / 2;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= a.table.count * half) return;
  float* row = a.table.f32(i / half) + i % half;
  // In double, rounded once: the correctly rounded value in all but a few of 10^8 cases.
  const double angle = mul(static_cast<float>(a.position[i / half]), a.frequencies[i % half]);
  double sine;
  double cosine;
  sincos(angle, &sine, &cosine);
  row[0] = static_cast<float>(cosine);
  row[half] = static_cast<float>(sine);
}

__device__ float widened(float x) { return x; }
__device__ float widened(uint16_t x) { return bf16_to_float(x); }
__device__ void narrow(float x, float& to) { to = x; }
__device__ void narrow(float x, uint16_t& to) {
  to = static_cast<uint16_t>(__float_as_uint(x) >> 16);
}

// P pairs a thread, of elements T. Threads of a block: pairs of a head (x), heads (y); `parts`
// blocks share a row.
template <int P, typename T>
__global__ void rope_kernel(RopeArgs a, unsigned parts) {
  allow_next();
  await_previous();
  const int64_t t = blockIdx.x / parts;
  const int64_t head = blockIdx.x % parts * blockDim.y + threadIdx.y;
  if (head >= a.heads) return;
  const int64_t half = a.table.width / 2;
  const float* const table = a.table.f32(t);
  T* const x =
      static_cast<T*>(a.x.data) + t * a.x.stride + (head + 1) * (a.x.width / a.heads) - 2 * half;
  for (int64_t pair = threadIdx.x * P; pair < half; pair += blockDim.x * P) {
    const auto cosine = load<P>(table + pair);
    const auto sine = load<P>(table + half + pair);
    Pack<T, P> pairs[2] = {load<P>(x + 2 * pair), load<P>(x + 2 * pair + P)};
#pragma unroll
    for (int i = 0; i < P; ++i) {
      const float c = cosine.at[i];
      const float s = a.inverse ? -sine.at[i] : sine.at[i];
      T& first = pairs[2 * i / P].at[2 * i % P];
      T& second = pairs[(2 * i + 1) / P].at[(2 * i + 1) % P];
      const float x0 = widened(first);
      const float x1 = widened(second);
      narrow(round_bf16(__fsub_rn(mul(x0, c), mul(x1, s))), first);
      narrow(round_bf16(add(mul(x0, s), mul(x1, c))), second);
    }
    store(x + 2 * pair, pairs[0]);
    store(x + 2 * pair + P, pairs[1]);
  }
}

template <int P, typename T>
void launch(cudaStream_t stream, const RopeArgs& a) {
  const int64_t across = std::min(a.table.width / 2 / P, kThreads);
  const int64_t heads = std::min(kThreads / across, a.heads);
  const unsigned parts = blocks_for(a.heads, heads);
  const dim3 threads(static_cast<unsigned>(across), static_cast<unsigned>(heads));
  launch_early(rope_kernel<P, T>, blocks_for(a.x.count * parts, 1), threads, 0, stream, a, parts);
}

template <typename T>
void launch(cudaStream_t stream, const RopeArgs& a) {
  constexpr int kPairs = 4;
  const bool packs =
      in_packs(a.x, kPairs) && in_packs(a.table, 2 * kPairs) && a.x.width / a.heads % kPairs == 0;
  packs ? launch<kPairs, T>(stream, a) : launch<1, T>(stream, a);
}

}  // namespace

void rope_table(Launch& l, const RopeTableArgs& a) {
  const int64_t n = a.table.count * (a.table.width / 2);
  if (n > 0) rope_table_kernel<<<blocks_for(n, kThreads), kThreads, 0, l.stream>>>(a);
}

void rope(Launch& l, const RopeArgs& a) {
  if (a.x.count == 0 || a.table.width < 2) return;
  a.x.element == Element::kBf16 ? launch<uint16_t>(l.stream, a) : launch<float>(l.stream, a);
}

}  // namespace tidemill::cuda
