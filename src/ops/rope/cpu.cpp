#include "ops/cpu_backend.h"

namespace tidemill {

void CpuBackend::rope(const RopeArgs& a) {
  if (a.table.width % 16 != 0) return ReferenceBackend::rope(a);
  for_each_row(a.x.count, a.heads * a.table.width * 4, [&](int64_t t) { kernels_.rope(a, t); });
}

}  // namespace tidemill
