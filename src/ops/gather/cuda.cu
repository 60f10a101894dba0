#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda {
namespace {

// V neighbouring elements of a row of the table; more than one: of the formats that tables have.
template <int V>
__device__ Pack<float, V> elements(const Matrix& table, int64_t row, int64_t k) {
  Pack<float, V> out;
  if constexpr (V == 1) {
    out.at[0] = weight(table, row, k);
  } else if (table.format == WeightFormat::kBf16) {
    const auto codes = load<V>(static_cast<const uint16_t*>(table.data) + row * table.cols + k);
#pragma unroll
    for (int i = 0; i < V; ++i) out.at[i] = bf16_to_float(codes.at[i]);
  } else {
    const auto codes = load<V>(static_cast<const uint8_t*>(table.data) + row * table.cols + k);
    const int64_t columns = (table.cols + kScaleBlock - 1) / kScaleBlock;
    const float scale = e8m0_to_float(table.scales[row * columns + k / kScaleBlock]);
#pragma unroll
    for (int i = 0; i < V; ++i) out.at[i] = mul(e4m3_to_float(codes.at[i]), scale);
  }
  return out;
}

template <int V>
__global__ void gather_kernel(Matrix table, const int64_t* rows, int64_t per_row, int64_t copies,
                              Rows out, unsigned parts) {
  const Place<V> at(parts);
  const auto width = static_cast<unsigned>(per_row * table.cols);
  const auto k = static_cast<unsigned>(at.k);
  if (k >= width) return;
  const auto cols = static_cast<unsigned>(table.cols);
  const auto values = elements<V>(table, rows[at.row * per_row + k / cols], k % cols);
  float* to = out.f32(at.row) + k;
  for (int64_t copy = 0; copy < copies; ++copy) store(to + copy * width, values);
}

template <int V>
void launch(cudaStream_t stream, const GatherArgs& a) {
  const Parts p(a.out.count, a.per_row * a.table->cols, V);
  gather_kernel<V>
      <<<p.blocks, p.threads, 0, stream>>>(*a.table, a.rows, a.per_row, a.copies, a.out, p.parts);
}

}  // namespace

void gather(Launch& l, const GatherArgs& a) {
  if (a.out.count == 0) return;
  const bool bf16 = a.table->format == WeightFormat::kBf16;
  const bool packs = (bf16 || a.table->format == WeightFormat::kFp8Row) && in_packs(a.out, 4) &&
                     in_packs(*a.table, bf16 ? 2 : 1, 4);
  packs ? launch<4>(l.stream, a) : launch<1>(l.stream, a);
}

}  // namespace tidemill::cuda
