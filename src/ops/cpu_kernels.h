// The kernels of the cpu backend: one table per instruction set. Those of one product
// order are equal bit for bit.
#pragma once

#include <cstdint>

#include "ops/attend/cpu_attend.h"
#include "ops/engram/engram.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/index_select/cpu_index.h"
#include "ops/linear/cpu_matmul.h"
#include "ops/linear/linear.h"
#include "ops/rope/rope.h"

namespace tidemill {

// Widths are multiples of 32 (matmul, prepare, swiglu) or 16. A kernel is the work of one thread.
struct CpuKernels {
  const char* name;

  ProductOrder order;  // of matmul
  void (*matmul)(const MatmulArgs&);
  int64_t activation_bytes;  // of an element that prepare writes
  // out = x, or Q8(x), as matmul reads it, or pack before it.
  Activations (*prepare)(const float* x, int64_t n, bool quantise, void* out);
  // Columns [0, n) of at most kTokenTile prepared rows as one tile of matmul (TokenRows); null if
  // matmul reads rows. out does not overlap them.
  void (*pack)(const TokenRows& rows, int64_t n, std::byte* out);
  // 32 channels, as prepare writes them: out = Q8(bf16(weight * silu(g) * u)), clamped. Returns
  // whether they are ordinary.
  bool (*swiglu)(const float* g, const float* u, float limit, float weight, void* out);
  void (*round)(float* x, int64_t n);  // to bf16

  void (*rms_norm)(const float* x, const uint16_t* weight, int64_t n, float eps, float* y);
  // Token t of four streams from m = fn . h[t].
  void (*hc_coefficients)(const HcMixArgs&, int64_t t, const float* m);
  void (*collapse)(const float* h, int64_t streams, const float* pre, int64_t width, float* u);
  void (*expand)(float* h, const float* y, const float* post, const float* comb, int64_t width);
  void (*engram_gate)(const EngramGateArgs&, int64_t t);
  void (*rope)(const RopeArgs&, int64_t t);
  void (*attend)(const AttendHeadsArgs&);
  void (*index_scores)(const IndexScoresArgs&);
};

const CpuKernels& avx2_kernels();
const CpuKernels& avx512_kernels();
const CpuKernels& avx512bf16_kernels();
const CpuKernels& amx_kernels();

}  // namespace tidemill
