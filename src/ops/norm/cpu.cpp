#include "ops/cpu_backend.h"

namespace tidemill {

void CpuBackend::rms_norm(const RmsNormArgs& a) {
  if (a.weight.size % 16 != 0) return ReferenceBackend::rms_norm(a);
  for_each_row(a.x.count, a.weight.size * 2, [&](int64_t t) {
    kernels_.rms_norm(a.x.f32(t), a.weight.data, a.weight.size, a.eps, a.y.f32(t));
  });
}

}  // namespace tidemill
