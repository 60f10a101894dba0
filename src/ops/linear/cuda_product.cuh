// A product on tensor cores: kernels for few tokens (cuda_few.cu), for several (cuda_several.cu)
// and for many (cuda_many.cu), which give a token the same bits. All for FP8 and bf16; a.x.count >
// 0, has_fragments(*a.w). A group's rows make whole tiles of kFewRows, kSeveralRows or kManyRows,
// unless it is the only one.
#pragma once

#include "ops/cuda/activations.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda {

struct Product {
  Matrix w;
  Rows in;
  bool quantise;
  const uint16_t* x;  // `in` as the kernel reads it, [tokens, width]
  int64_t width;      // groups * w.cols
  int64_t group_rows;
  int64_t tokens;
  int segments;
  Rows y;
  bool f32_output;
  bool accumulate;
  float scale;

  // Whether results are float32: never in rows of bf16.
  __device__ bool wide() const { return f32_output || accumulate; }
  __device__ float rounded(float sum) const { return round_bf16(mul(round_bf16(sum), scale)); }
  __device__ void put(int64_t t, int64_t row, float sum) const {
    put_element(y, t, row, accumulate ? add(y.f32(t)[row], sum) : f32_output ? sum : rounded(sum));
  }
  // Of two rows, the first even; y is aligned to them.
  __device__ void put_two_wide(float* to, float first, float second) const {
    auto& out = *reinterpret_cast<float2*>(to);
    out = accumulate ? float2{add(out.x, first), add(out.y, second)} : float2{first, second};
  }
  // Of two rows, the first even, and tokens from `first` on: put_all(put) calls
  // put(token - first, one, other) for each.
  template <typename PutAll>
  __device__ void put_pairs(int64_t first, int64_t row, const PutAll& put_all) const {
    if (wide()) {
      float* to = y.f32(first) + row;
      put_all(
          [&](int64_t t, float one, float other) { put_two_wide(to + t * y.stride, one, other); });
    } else if (y.element == Element::kBf16) {
      uint16_t* to = y.bf16(first) + row;
      put_all([&](int64_t t, float one, float other) {
        *reinterpret_cast<uint32_t*>(to + t * y.stride) =
            __byte_perm(__float_as_uint(rounded(one)), __float_as_uint(rounded(other)), 0x7632);
      });
    } else {
      float* to = y.f32(first) + row;
      put_all([&](int64_t t, float one, float other) {
        *reinterpret_cast<float2*>(to + t * y.stride) = {rounded(one), rounded(other)};
      });
    }
  }
  __device__ void put_two(int64_t t, int64_t row, float one, float other) const {
    put_pairs(t, row, [&](const auto& put) { put(0, one, other); });
  }
};

constexpr int kSeveralRows = 64;
constexpr int kManyRows = 256;

template <WeightFormat kFormat>
void linear_few(Launch& l, const LinearArgs& a);
template <WeightFormat kFormat>
void linear_several(Launch& l, const LinearArgs& a);
template <WeightFormat kFormat>
void linear_many(Launch& l, const LinearArgs& a);

// Activations as a kernel reads them, so many rows of them; null: no memory.
template <WeightFormat kFormat, Layout kLayout>
uint16_t* store_activations(Launch& l, const LinearArgs& a, int64_t rows) {
  const int64_t bytes = rows * a.x.width * int64_t{sizeof(uint16_t)};
  auto* x = static_cast<uint16_t*>(l.quantised.take(bytes, l.stream));
  if (x == nullptr) return nullptr;
  const int64_t eights = a.x.count * (a.x.width / 8);
  launch_early(store_activations_kernel<kFormat, kLayout>, blocks_for(eights, 256), 256, 0,
               l.stream, a.x, a.quantise_input, x);
  return x;
}

inline Product product_of(const LinearArgs& a, const uint16_t* x) {
  return {.w = *a.w,
          .in = a.x,
          .quantise = a.quantise_input,
          .x = x,
          .width = a.x.width,
          .group_rows = a.w->rows / a.groups,
          .tokens = a.x.count,
          .segments = segments_of(a.w->rows),
          .y = a.y,
          .f32_output = a.f32_output,
          .accumulate = a.accumulate,
          .scale = a.scale};
}

}  // namespace tidemill::cuda
