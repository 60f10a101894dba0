// The kernels of AVX-512 with BF16: those of AVX-512 but for the matrix products. Compiled with its
// flags (cmake/room.cmake); nothing but this table may leave the file: see ops/simd/avx512.h.
#include "ops/cpu_kernels.h"
#include "ops/linear/cpu_matmul_kernel.h"
#include "ops/linear/cpu_prepare_kernel.h"
#include "ops/moe/cpu_swiglu_kernel.h"
#include "ops/simd/avx512bf16.h"

namespace tidemill {

const CpuKernels& avx512bf16_kernels() {
  static const CpuKernels kKernels = [] {
    CpuKernels kernels = avx512_kernels();
    kernels.name = "cpu-avx512bf16";
    kernels.matmul = matmul<Avx512Bf16>;
    kernels.activation_bytes = sizeof(uint16_t);
    kernels.prepare = prepare_activations<Avx512Bf16>;
    kernels.swiglu = swiglu_block<Avx512Bf16>;
    return kernels;
  }();
  return kKernels;
}

}  // namespace tidemill
