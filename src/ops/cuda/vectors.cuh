// Several values of a row in one access, and sums of rows in shared memory that keep the order of
// canonical.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"

namespace tidemill::cuda {

// N neighbouring values, in memory at a multiple of their bytes.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};
template <int N, typename T>
__device__ Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <typename T, int N>
__device__ void store(T* to, const Pack<T, N>& values) {
  *reinterpret_cast<Pack<T, N>*>(to) = values;
}
__device__ inline bool is_aligned(const void* p, int bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

// An element of rows of either kind; what is put into rows of bf16 has been rounded.
__device__ inline float element_of(const Rows& r, int64_t row, int64_t k) {
  return r.element == Element::kBf16 ? bf16_to_float(r.bf16(row)[k]) : r.f32(row)[k];
}
__device__ inline void put_element(const Rows& r, int64_t row, int64_t k, float value) {
  if (r.element == Element::kBf16) {
    r.bf16(row)[k] = static_cast<uint16_t>(__float_as_uint(value) >> 16);
  } else {
    r.f32(row)[k] = value;
  }
}

// Whether every row may be taken in packs of n.
inline bool in_packs(const void* data, int64_t width, int64_t stride, int64_t element, int n) {
  return width % n == 0 && stride % n == 0 &&
         reinterpret_cast<uintptr_t>(data) % static_cast<size_t>(element * n) == 0;
}
inline bool in_packs(const Rows& r, int n) {
  return in_packs(r.data, r.width, r.stride, bytes_of(r.element), n);
}
inline bool in_packs(const Bf16Vector& v, int n) {
  return in_packs(v.data, v.size, 0, sizeof(uint16_t), n);
}
inline bool in_packs(const Matrix& m, int64_t element, int n) {
  return in_packs(m.data, m.cols, 0, element, n);
}

// Kernels that take rows apart: `parts` blocks share a row, a thread has N neighbouring elements.
struct Parts {
  unsigned blocks;  // of all rows
  unsigned threads;
  unsigned parts;
  Parts(int64_t rows, int64_t width, int n) {
    threads = width < 128 * n ? (blocks_for(width, n) + 31) / 32 * 32 : 128;
    parts = blocks_for(width, int64_t{threads} * n);
    blocks = blocks_for(rows * parts, 1);
  }
};
template <int N>
struct Place {
  int64_t row;
  int64_t k;
  __device__ explicit Place(unsigned parts)
      : row(blockIdx.x / parts), k((blockIdx.x % parts * blockDim.x + threadIdx.x) * int64_t{N}) {}
};

// Shared memory beyond 48 KiB must be asked for, once for each kernel; a refusal shows at launch.
template <auto kernel>
void allow_shared(int bytes) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  static_cast<void>(allowed);
}

// Rows in shared memory that sums run over end with zeros, up to a multiple of this.
constexpr int kSumStep = 32 * kLanes;
TIDEMILL_BOTH_SIDES constexpr int padded(int64_t n) {
  return static_cast<int>((n + kSumStep - 1) / kSumStep * kSumStep);
}
// By all threads of the block, before the barrier.
__device__ inline void pad(float* row, int n) {
  for (int k = n + static_cast<int>(threadIdx.x); k < padded(n); k += blockDim.x) row[k] = 0;
}

// Shared memory for a row and a norm's weights.
inline int norm_bytes(int64_t width) {
  return padded(width) * int{sizeof(float)} + static_cast<int>(width) * int{sizeof(uint16_t)};
}
// Threads of a block that takes n packs: one each, or of the 1,280 of a released row two.
constexpr unsigned kMostRowThreads = 640;
inline unsigned row_threads(unsigned n) {
  return n < kMostRowThreads ? (n + 31) / 32 * 32 : kMostRowThreads;
}

// The sum of at(k) over a padded row by half a warp, in the order of canonical.h: the zeros change
// nothing, as no sum is -0 (they begin at +0). An addition takes four cycles, a load thirty: loads
// run ahead of the additions of a step, and are waited for once a step.
template <typename At>
__device__ float shared_sum(int n, const At& at) {
  constexpr int kAdditions = kSumStep / kLanes;
  float sum = 0;
#pragma unroll 1
  for (int begin = 0; begin < n; begin += kSumStep) {
    float values[kAdditions];
#pragma unroll
    for (int i = 0; i < kAdditions; ++i) values[i] = at(begin + i * kLanes + lane());
#pragma unroll
    for (int i = 0; i < kAdditions; ++i) sum = add(sum, values[i]);
  }
  return add_lanes(sum);
}
__device__ inline float shared_dot(const float* a, const float* b, int n) {
  return shared_sum(n, [&](int k) { return mul(a[k], b[k]); });
}
__device__ inline float shared_inverse_rms(const float* x, int n, float eps) {
  const float squares = shared_sum(n, [&](int k) {
    const float value = x[k];
    return mul(value, value);
  });
  return __fdiv_rn(1.0f, __fsqrt_rn(add(__fdiv_rn(squares, static_cast<float>(n)), eps)));
}

// The RMS norm of a padded row in shared memory, by all threads of the block, behind a barrier.
template <int V>
__device__ __forceinline__ void store_normed(const float* x, const uint16_t* weights, int width,
                                             float eps, float* out) {
  __shared__ float r;
  if (threadIdx.x < kLanes) {
    const float value = shared_inverse_rms(x, width, eps);
    if (threadIdx.x == 0) r = value;
  }
  __syncthreads();
  const int step = V * static_cast<int>(blockDim.x);
  for (int k = V * static_cast<int>(threadIdx.x); k < width; k += step) {
    const auto value = load<V>(x + k);
    const auto weight = load<V>(weights + k);
    Pack<float, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      y.at[i] = round_bf16(mul(bf16_to_float(weight.at[i]), mul(value.at[i], r)));
    }
    store(out + k, y);
  }
}

}  // namespace tidemill::cuda
