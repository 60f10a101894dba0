#include "ops/cuda/arithmetic.cuh"
#include "ops/cuda/launch.h"

namespace tidemill::cuda {
namespace {

__global__ void gather_kernel(Matrix table, const int64_t* rows, int64_t per_row, int64_t copies,
                              Rows out) {
  const int64_t t = blockIdx.x;
  const int64_t width = per_row * table.cols;
  for (int64_t k = threadIdx.x; k < width; k += blockDim.x) {
    const float value = weight(table, rows[t * per_row + k / table.cols], k % table.cols);
    for (int64_t copy = 0; copy < copies; ++copy) out.f32(t)[copy * width + k] = value;
  }
}

}  // namespace

void gather(Launch& l, const GatherArgs& a) {
  if (a.out.count == 0) return;
  gather_kernel<<<blocks_for(a.out.count, 1), 256, 0, l.stream>>>(*a.table, a.rows, a.per_row,
                                                                  a.copies, a.out);
}

}  // namespace tidemill::cuda
