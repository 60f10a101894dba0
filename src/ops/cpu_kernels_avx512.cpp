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
#include "ops/simd/avx512.h"

namespace tidemill {

const CpuKernels& avx512_kernels() {
  static constexpr CpuKernels kKernels = {
      .name = "cpu-avx512",
      .order = ProductOrder::kPairLanes,
      .matmul = matmul<Planes<Avx512>>,
      .activation_bytes = sizeof(float),
      .prepare = prepare_activations<Planes<Avx512>>,
      .pack = nullptr,
      .swiglu = swiglu_block<Planes<Avx512>>,
      .round = round_row<Avx512>,
      .rms_norm = rms_norm<Avx512>,
      .hc_coefficients = hc_coefficients<Avx512>,
      .collapse = collapse<Avx512>,
      .expand = expand<Avx512>,
      .engram_gate = engram_gate<Avx512>,
      .rope = rope<Avx512>,
      .attend = attend_heads<Avx512>,
      .index_scores = index_scores<Avx512>,
  };
  return kKernels;
}

}  // namespace tidemill
