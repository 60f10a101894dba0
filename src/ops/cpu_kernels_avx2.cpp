// All kernels for one instruction set; compiled with its flags (cmake/room.cmake). Nothing but this
// table may leave the file: see ops/simd/avx512.h.
#include "ops/cpu_kernels.h"
#include "ops/linear/cpu_matmul_kernel.h"
#include "ops/linear/cpu_prepare_kernel.h"
#include "ops/moe/cpu_swiglu_kernel.h"
#include "ops/simd/avx2.h"

namespace tidemill {

const CpuKernels& avx2_kernels() {
  static constexpr CpuKernels kKernels = {
      .name = "cpu-avx2",
      .matmul = matmul<Avx2>,
      .prepare = prepare_activations<Avx2>,
      .swiglu = swiglu_block<Avx2>,
      .round = round_row<Avx2>,
  };
  return kKernels;
}

}  // namespace tidemill
