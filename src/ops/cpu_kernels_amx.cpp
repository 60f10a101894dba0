// The kernels of AMX with BF16: those of AVX-512 with BF16 but for the matrix products. Compiled
// with its flags (cmake/room.cmake); nothing but this table may leave the file: see
// ops/simd/avx512.h.
#include "ops/cpu_kernels.h"
#include "ops/linear/cpu_amx_kernel.h"
#include "ops/simd/amx.h"

namespace tidemill {

const CpuKernels& amx_kernels() {
  static const CpuKernels kKernels = [] {
    CpuKernels kernels = avx512bf16_kernels();
    kernels.name = "cpu-amx";
    kernels.order = ProductOrder::kTiles;
    kernels.matmul = matmul_tiles<Amx>;
    kernels.pack = pack_tokens;
    return kernels;
  }();
  return kKernels;
}

}  // namespace tidemill
