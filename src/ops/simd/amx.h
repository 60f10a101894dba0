// The eight tile registers of AMX: 16 rows of up to 64 bytes each. TDPBF16PS adds to tile C, for
// every row m of A and column n of B, the products of 32 elements in tile order (canonical.h). It
// takes subnormal numbers for zero, so only ordinary values may reach it (cpu_matmul.h).
//
// What this policy does is all that linear/cpu_amx_kernel.h knows of tiles; tests have another one
// that needs no such CPU. The instructions are written out because the compilers' own functions
// take register numbers as text and do not tell that they read memory.
//
// Included only by cpu_kernels_amx.cpp; see simd/avx512.h.
#pragma once

#include "ops/linear/cpu_amx_shape.h"

namespace tidemill {
namespace {

struct Amx {
  static void configure(const TileShape& shape) { asm volatile("ldtilecfg %0" : : "m"(shape)); }
  static void release() { asm volatile("tilerelease" : : : "memory"); }

  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  static void load(const void* p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(void* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
  }
  // c += a . b
  template <int kC, int kA, int kB>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace
}  // namespace tidemill
