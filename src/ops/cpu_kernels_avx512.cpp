// All kernels for one instruction set; compiled with its flags (cmake/room.cmake). Nothing but this
// table may leave the file: see ops/simd/avx512.h.
#include "ops/cpu_kernels.h"
#include "ops/linear/cpu_matmul_kernel.h"
#include "ops/linear/cpu_prepare_kernel.h"
#include "ops/moe/cpu_swiglu_kernel.h"
#include "ops/simd/avx512.h"

namespace tidemill {

const CpuKernels& avx512_kernels() {
  static constexpr CpuKernels kKernels = {
      .name = "cpu-avx512",
      .matmul = matmul<Avx512>,
      .prepare = prepare_activations<Avx512>,
      .swiglu = swiglu_block<Avx512>,
      .round = round_row<Avx512>,
  };
  return kKernels;
}

}  // namespace tidemill
