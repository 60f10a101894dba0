#include "ops/reference.h"

#include <cstring>

namespace tidemill::reference {

void gather(const Context& context, const GatherArgs& a) {
  const int64_t cols = a.table->cols;
  context.team.parallel_for(a.out.count, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* out = a.out.f32(t);
      for (int64_t j = 0; j < a.per_row; ++j) {
        widen_row(*a.table, a.rows[t * a.per_row + j], out + j * cols);
      }
      const int64_t width = a.per_row * cols;
      for (int64_t copy = 1; copy < a.copies; ++copy) {
        std::memcpy(out + copy * width, out, static_cast<size_t>(width) * sizeof(float));
      }
    }
  });
}

}  // namespace tidemill::reference
