#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda::plain {
namespace {

constexpr int kThreads = 128;
constexpr int kGroups = kThreads / kLanes;  // rows of a block
constexpr int kTokens = 8;                  // that a thread multiplies with each weight it widens

__global__ void prepare_kernel(Rows x, bool quantise, float* out) {
  const int64_t blocks = (x.width + kScaleBlock - 1) / kScaleBlock;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= x.count * blocks) return;
  const int64_t begin = i % blocks * kScaleBlock;
  const auto columns = static_cast<int>(min(int64_t{kScaleBlock}, x.width - begin));
  float values[kScaleBlock];
  for (int k = 0; k < columns; ++k) values[k] = element_of(x, i / blocks, begin + k);
  float* to = out + i / blocks * x.width + begin;
  const float scale = quantise ? e8m0_to_float(q8_scale(values)) : 1.0f;
  for (int k = 0; k < columns; ++k) {
    to[k] = quantise ? mul(e4m3_to_float(q8_code(values[k], scale)), scale) : values[k];
  }
}

struct Product {
  Matrix w;
  const float* x;  // [tokens, groups * w.cols]
  int64_t x_width;
  Rows y;
  int64_t groups;
  bool f32_output;
  bool accumulate;
  float scale;
};

__device__ void store(const Product& a, int64_t t, int64_t row, float y) {
  put_element(a.y, t, row,
              a.accumulate   ? add(a.y.f32(t)[row], y)
              : a.f32_output ? y
                             : round_bf16(mul(round_bf16(y), a.scale)));
}

__global__ void product_kernel(Product a) {
  const int64_t row = int64_t{blockIdx.x} * kGroups + lane_group();
  if (row >= a.w.rows) return;
  const int64_t first = int64_t{blockIdx.y} * kTokens;
  const int64_t tokens = min(int64_t{kTokens}, a.y.count - first);
  const float* x = a.x + first * a.x_width + row / (a.w.rows / a.groups) * a.w.cols;
  if (a.w.format == WeightFormat::kF32) {
    for (int64_t t = 0; t < tokens; ++t) {
      const float y = product(a.w, row, x + t * a.x_width);
      if (lane() == 0) store(a, first + t, row, y);
    }
    return;
  }
  float sum[kTokens] = {};
  for (int64_t k = 2 * lane(); k < a.w.cols; k += 2 * kLanes) {
    const float2 pair = weight_pair(a.w, row, k);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t >= tokens) break;
      const float* at = x + t * a.x_width + k;
      if (k + 1 < a.w.cols) sum[t] = add(sum[t], mul(at[1], pair.y));
      sum[t] = add(sum[t], mul(at[0], pair.x));
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float y = add_lanes(sum[t]);
    if (t < tokens && lane() == 0) store(a, first + t, row, y);
  }
}

}  // namespace

const float* prepared(Launch& l, const Rows& x, bool quantise) {
  if (!quantise && x.stride == x.width && x.element == Element::kF32) return x.f32(0);
  auto* out =
      static_cast<float*>(l.quantised.take(x.count * x.width * int64_t{sizeof(float)}, l.stream));
  if (out == nullptr || x.count == 0) return nullptr;
  const int64_t blocks = x.count * blocks_for(x.width, kScaleBlock);
  prepare_kernel<<<blocks_for(blocks, 128), 128, 0, l.stream>>>(x, quantise, out);
  return out;
}

void linear(Launch& l, const LinearArgs& a) {
  if (a.x.count == 0) return;
  const float* x = prepared(l, a.x, a.quantise_input);
  if (x == nullptr) return;
  const dim3 grid(blocks_for(a.w->rows, kGroups), blocks_for(a.x.count, kTokens));
  product_kernel<<<grid, kThreads, 0, l.stream>>>({.w = *a.w,
                                                   .x = x,
                                                   .x_width = a.x.width,
                                                   .y = a.y,
                                                   .groups = a.groups,
                                                   .f32_output = a.f32_output,
                                                   .accumulate = a.accumulate,
                                                   .scale = a.scale});
}

}  // namespace tidemill::cuda::plain
