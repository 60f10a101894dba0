// All kernels for one instruction set; compiled with its flags (cmake/room.cmake). Nothing but this
// table may leave the file: see ops/simd/avx512.h.
#include "ops/attend/cpu_attend_kernel.h"
#include "ops/cpu_kernels.h"
#include "ops/engram/cpu_engram_kernel.h"
#include "ops/hyper_connection/cpu_hc_kernel.h"
#include "ops/index_select/cpu_index_kernel.h"
#include "ops/linear/cpu_matmul_kernel.h"
#include "ops/linear/cpu_prepare_kernel.h"
#include "ops/moe/cpu_swiglu_kernel.h"
#include "ops/rope/cpu_rope_kernel.h"
#include "ops/simd/avx2.h"

namespace tidemill {

const CpuKernels& avx2_kernels() {
  static constexpr CpuKernels kKernels = {
      .name = "cpu-avx2",
      .order = ProductOrder::kPairLanes,
      .matmul = matmul<Planes<Avx2>>,
      .activation_bytes = sizeof(float),
      .prepare = prepare_activations<Planes<Avx2>>,
      .pack = nullptr,
      .swiglu = swiglu_block<Planes<Avx2>>,
      .round = round_row<Avx2>,
      .rms_norm = rms_norm<Avx2>,
      .hc_coefficients = hc_coefficients<Avx2>,
      .collapse = collapse<Avx2>,
      .expand = expand<Avx2>,
      .engram_gate = engram_gate<Avx2>,
      .rope = rope<Avx2>,
      .attend = attend_heads<Avx2>,
      .index_scores = index_scores<Avx2>,
  };
  return kKernels;
}

}  // namespace tidemill
