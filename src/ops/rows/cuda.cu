#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/early_launch.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kValues = 4;  // of a row, by one thread

__device__ Pack<float, kValues> values_at(const float* x) {
  if (is_aligned(x, sizeof(float) * kValues)) return load<kValues>(x);
  return {{x[0], x[1], x[2], x[3]}};
}
template <typename T>
__device__ void store_unaligned(uint8_t* to, T value) {
  if (is_aligned(to, sizeof(T))) {
    *reinterpret_cast<T*>(to) = value;
    return;
  }
  for (int i = 0; i < static_cast<int>(sizeof(T)); ++i)
    to[i] = static_cast<uint8_t>(value >> 8 * i);
}

// The scale of the block that this thread's values belong to. All threads of a warp call.
struct Scale {
  uint8_t byte;
  float value;
};
__device__ int scale_block(RowKind kind) {
  return kind == RowKind::kQ4Entry ? kEntryBlock : kScaleBlock;
}
__device__ Scale scale_of(RowKind kind, const Pack<float, kValues>& x) {
  float largest = absolute_max(x.at, kValues);
  for (int distance = scale_block(kind) / kValues / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, distance));
  }
  if (kind == RowKind::kQ4Entry) {
    const uint8_t byte = q4_entry_scale_of(largest);
    return {byte, e4m3_to_float(byte)};
  }
  const uint8_t byte = kind == RowKind::kQ8 ? q8_scale_of(largest) : q4_index_scale_of(largest);
  return {byte, e8m0_to_float(byte)};
}
__device__ uint32_t code(RowKind kind, float value, float scale) {
  return kind == RowKind::kQ8 ? q8_code(value, scale) : q4_code(value, scale);
}

__global__ void store_rows_kernel(StoreRowsArgs a, unsigned parts) {
  allow_next();
  await_previous();
  const Place<kValues> at(parts);
  const bool inside = at.k < a.x.width;
  const int64_t offset = a.offset[at.row];
  const RowKind kind = a.format.kind;
  const auto x = inside ? values_at(a.x.f32(at.row) + at.k) : Pack<float, kValues>{};
  const Scale scale = scale_of(kind, x);
  if (!inside || offset < 0) return;
  auto* const row = reinterpret_cast<uint8_t*>(a.base + a.add + offset);
  uint32_t codes = 0;
  const int bits = kind == RowKind::kQ8 ? 8 : 4;
#pragma unroll
  for (int i = 0; i < kValues; ++i) codes |= code(kind, x.at[i], scale.value) << bits * i;
  if (kind == RowKind::kQ8) {
    store_unaligned(row + at.k, codes);
  } else {
    store_unaligned(row + at.k / 2, static_cast<uint16_t>(codes));
  }
  if (at.k % scale_block(kind) == 0) {
    row[a.format.width * bits / 8 + at.k / scale_block(kind)] = scale.byte;
  }
}

__global__ void store_floats_kernel(StoreRowsArgs a) {
  const int64_t t = blockIdx.x;
  if (a.offset[t] < 0) return;
  auto* const row = reinterpret_cast<float*>(a.base + a.add + a.offset[t]);
  for (int64_t k = threadIdx.x; k < a.x.width; k += blockDim.x) row[k] = a.x.f32(t)[k];
}

__global__ void round_rows_kernel(RoundRowsArgs a, unsigned parts) {
  allow_next();
  await_previous();
  const Place<kValues> at(parts);
  const bool inside = at.k < a.x.width;
  float* const to = a.x.f32(at.row) + at.k;
  auto x = inside ? values_at(to) : Pack<float, kValues>{};
  const float scale = scale_of(a.kind, x).value;
  if (!inside) return;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const uint32_t rounded = code(a.kind, x.at[i], scale);
    x.at[i] = mul(a.kind == RowKind::kQ8 ? e4m3_to_float(rounded) : e2m1_to_float(rounded), scale);
  }
  if (is_aligned(to, sizeof(float) * kValues)) {
    store(to, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) to[i] = x.at[i];
}

template <typename T>
__device__ void copy_row(const std::byte* from, std::byte* to, int64_t bytes) {
  for (int64_t i = threadIdx.x; i < bytes / static_cast<int64_t>(sizeof(T)); i += blockDim.x) {
    reinterpret_cast<T*>(to)[i] = reinterpret_cast<const T*>(from)[i];
  }
}

__global__ void __launch_bounds__(kThreads) scatter_rows_kernel(ScatterRowsArgs a) {
  allow_next();
  await_previous();
  const int64_t t = blockIdx.x;
  if (a.offset[t] < 0) return;
  const std::byte* const from = a.rows + t * a.row_bytes;
  std::byte* const to = a.base + a.add + a.offset[t];
  const auto in_units = [&](int bytes) {
    return is_aligned(from, bytes) && is_aligned(to, bytes) && a.row_bytes % bytes == 0;
  };
  if (in_units(16)) {
    copy_row<uint4>(from, to, a.row_bytes);
  } else if (in_units(4)) {
    copy_row<uint32_t>(from, to, a.row_bytes);
  } else {
    copy_row<uint8_t>(from, to, a.row_bytes);
  }
}

template <int V>
__global__ void select_rows_kernel(Rows in, const int64_t* row, Rows out, unsigned parts) {
  const Place<V> at(parts);
  if (at.k >= out.width) return;
  store(out.f32(at.row) + at.k, load<V>(in.f32(row != nullptr ? row[at.row] : 0) + at.k));
}

template <int V>
void launch_select(cudaStream_t stream, const Rows& in, const int64_t* row, const Rows& out) {
  const Parts p(out.count, out.width, V);
  select_rows_kernel<V><<<p.blocks, p.threads, 0, stream>>>(in, row, out, p.parts);
}

// Row 0 where there are no numbers.
void select(cudaStream_t stream, const Rows& in, const int64_t* row, const Rows& out) {
  if (out.count == 0) return;
  const bool packs = in_packs(in, 4) && in_packs(out, 4);
  packs ? launch_select<4>(stream, in, row, out) : launch_select<1>(stream, in, row, out);
}

}  // namespace

void store_rows(Launch& l, const StoreRowsArgs& a) {
  if (a.x.count == 0) return;
  if (a.format.kind == RowKind::kF32) {
    store_floats_kernel<<<blocks_for(a.x.count, 1), kThreads, 0, l.stream>>>(a);
    return;
  }
  const Parts p(a.x.count, a.x.width, kValues);
  launch_early(store_rows_kernel, p.blocks, p.threads, 0, l.stream, a, p.parts);
}

void scatter_rows(Launch& l, const ScatterRowsArgs& a) {
  if (a.count == 0) return;
  launch_early(scatter_rows_kernel, blocks_for(a.count, 1), kThreads, 0, l.stream, a);
}

void round_rows(Launch& l, const RoundRowsArgs& a) {
  if (a.kind == RowKind::kF32 || a.x.count == 0) return;
  const Parts p(a.x.count, a.x.width, kValues);
  launch_early(round_rows_kernel, p.blocks, p.threads, 0, l.stream, a, p.parts);
}

void select_rows(Launch& l, const SelectRowsArgs& a) { select(l.stream, a.in, a.row, a.out); }

void repeat_row(Launch& l, const RepeatRowArgs& a) { select(l.stream, a.row, nullptr, a.out); }

}  // namespace tidemill::cuda
