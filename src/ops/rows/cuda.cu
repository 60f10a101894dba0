#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"

namespace tidemill::cuda {
namespace {

int64_t scale_block(RowKind kind) { return kind == RowKind::kQ4Entry ? kEntryBlock : kScaleBlock; }

// One scale and its values: block `b` of a row.
__device__ void pack_block(const RowFormat& format, const float* x, int64_t b, std::byte* row) {
  auto* out = reinterpret_cast<uint8_t*>(row);
  const int n = format.kind == RowKind::kQ4Entry ? kEntryBlock : kScaleBlock;
  const float* from = x + b * n;
  if (format.kind == RowKind::kF32) {
    for (int k = 0; k < n; ++k) reinterpret_cast<float*>(row)[b * n + k] = from[k];
  } else if (format.kind == RowKind::kQ8) {
    const uint8_t byte = q8_scale(from);
    out[format.width + b] = byte;
    const float scale = e8m0_to_float(byte);
    for (int k = 0; k < n; ++k) out[b * n + k] = q8_code(from[k], scale);
  } else {
    const bool entry = format.kind == RowKind::kQ4Entry;
    const uint8_t byte = entry ? q4_entry_scale(from) : q4_index_scale(from);
    out[format.width / 2 + b] = byte;
    const float scale = entry ? e4m3_to_float(byte) : e8m0_to_float(byte);
    for (int k = 0; k < n; k += 2) {
      out[(b * n + k) / 2] =
          static_cast<uint8_t>(q4_code(from[k], scale) | q4_code(from[k + 1], scale) << 4);
    }
  }
}

__global__ void store_rows_kernel(StoreRowsArgs a, int64_t block) {
  const int64_t blocks = a.format.width / block;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= a.x.count * blocks) return;
  const int64_t t = i / blocks;
  if (a.offset[t] < 0) return;
  pack_block(a.format, a.x.f32(t), i % blocks, a.base + a.add + a.offset[t]);
}

__global__ void scatter_rows_kernel(ScatterRowsArgs a) {
  const int64_t t = blockIdx.x;
  if (a.offset[t] < 0) return;
  const std::byte* from = a.rows + t * a.row_bytes;
  std::byte* to = a.base + a.add + a.offset[t];
  for (int64_t i = threadIdx.x; i < a.row_bytes; i += blockDim.x) to[i] = from[i];
}

// Values as a row of `block` elements would hold them.
__global__ void round_rows_kernel(RoundRowsArgs a, int64_t block) {
  const int64_t blocks = a.x.width / block;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= a.x.count * blocks) return;
  float* x = a.x.f32(i / blocks) + i % blocks * block;
  const float scale = a.kind == RowKind::kQ8        ? e8m0_to_float(q8_scale(x))
                      : a.kind == RowKind::kQ4Entry ? e4m3_to_float(q4_entry_scale(x))
                                                    : e8m0_to_float(q4_index_scale(x));
  for (int64_t k = 0; k < block; ++k) {
    x[k] = mul(a.kind == RowKind::kQ8 ? e4m3_to_float(q8_code(x[k], scale))
                                      : e2m1_to_float(q4_code(x[k], scale)),
               scale);
  }
}

__global__ void select_rows_kernel(Rows in, const int64_t* row, Rows out) {
  const int64_t t = blockIdx.x;
  const float* from = in.f32(row != nullptr ? row[t] : 0);
  for (int64_t k = threadIdx.x; k < out.width; k += blockDim.x) out.f32(t)[k] = from[k];
}

}  // namespace

void store_rows(Launch& l, const StoreRowsArgs& a) {
  const int64_t block = scale_block(a.format.kind);
  const int64_t n = a.x.count * (a.format.width / block);
  if (n > 0) store_rows_kernel<<<blocks_for(n, 128), 128, 0, l.stream>>>(a, block);
}

void scatter_rows(Launch& l, const ScatterRowsArgs& a) {
  if (a.count == 0) return;
  scatter_rows_kernel<<<blocks_for(a.count, 1), 128, 0, l.stream>>>(a);
}

void round_rows(Launch& l, const RoundRowsArgs& a) {
  if (a.kind == RowKind::kF32) return;
  const int64_t block = scale_block(a.kind);
  const int64_t n = a.x.count * (a.x.width / block);
  if (n > 0) round_rows_kernel<<<blocks_for(n, 128), 128, 0, l.stream>>>(a, block);
}

void select_rows(Launch& l, const SelectRowsArgs& a) {
  if (a.out.count == 0) return;
  select_rows_kernel<<<blocks_for(a.out.count, 1), 256, 0, l.stream>>>(a.in, a.row, a.out);
}

void repeat_row(Launch& l, const RepeatRowArgs& a) {
  if (a.out.count == 0) return;
  select_rows_kernel<<<blocks_for(a.out.count, 1), 256, 0, l.stream>>>(a.row, nullptr, a.out);
}

}  // namespace tidemill::cuda
