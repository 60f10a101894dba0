// The kernels of the cpu backend: one table per instruction set, equal bit for bit.
#pragma once

#include <cstdint>

#include "ops/linear/cpu_matmul.h"

namespace tidemill {

// Widths are multiples of 32 (matmul, prepare, swiglu) or 16. A kernel is the work of one thread.
struct CpuKernels {
  const char* name;

  void (*matmul)(const MatmulArgs&);
  // out = Q8(x) if quantise, otherwise x is only looked at; returns MatmulArgs::ordinary_x.
  bool (*prepare)(const float* x, int64_t n, bool quantise, float* out);
  // 32 channels: out = Q8(bf16(weight * silu(g) * u)), clamped; returns ordinary_x.
  bool (*swiglu)(const float* g, const float* u, float limit, float weight, float* out);
  void (*round)(float* x, int64_t n);  // to bf16
};

const CpuKernels& avx2_kernels();
const CpuKernels& avx512_kernels();

}  // namespace tidemill
