// For tests: the kernels of AMX without its registers.
#pragma once

#include "ops/cpu_kernels.h"

namespace tidemill {

// Where cpu_supports(CpuIsa::kAvx512Bf16).
const CpuKernels& emulated_amx_kernels();

}  // namespace tidemill
