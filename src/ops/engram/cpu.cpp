#include "ops/cpu_backend.h"

namespace tidemill {

void CpuBackend::engram_gate(const EngramGateArgs& a) {
  const bool bf16 =
      a.q_weight->format == WeightFormat::kBf16 && a.k_weight->format == WeightFormat::kBf16;
  if (!bf16 || a.q_weight->cols % 16 != 0) return ReferenceBackend::engram_gate(a);
  for_each_row(a.h.count, a.h.width * 4, [&](int64_t t) { kernels_.engram_gate(a, t); });
}

}  // namespace tidemill
