#include "ops/reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/canonical.h"

namespace tidemill::reference {

void engram_gate(const Context& context, const EngramGateArgs& a) {
  const int64_t width = a.q_weight->cols;
  // float32(q) * float32(k), once for all tokens
  std::vector<float> w(static_cast<size_t>(a.streams * width));
  std::vector<float> k(static_cast<size_t>(width));
  for (int64_t s = 0; s < a.streams; ++s) {
    float* row = w.data() + s * width;
    widen_row(*a.q_weight, s, row);
    widen_row(*a.k_weight, s, k.data());
    for (int64_t d = 0; d < width; ++d) row[d] *= k[static_cast<size_t>(d)];
  }
  const float root = 1.0f / std::sqrt(static_cast<float>(width));
  context.team.parallel_for(a.h.count, 4, [&](int64_t begin, int64_t end) {
    std::vector<float> weighted(static_cast<size_t>(width));
    for (int64_t t = begin; t < end; ++t) {
      const float* value = a.kvv.f32(t) + a.streams * width;
      for (int64_t s = 0; s < a.streams; ++s) {
        float* h = a.h.f32(t) + s * width;
        const float* key = a.kvv.f32(t) + s * width;
        for (int64_t d = 0; d < width; ++d)
          weighted[static_cast<size_t>(d)] = h[d] * w[static_cast<size_t>(s * width + d)];
        const float rs = inverse_rms(h, width, a.eps) * inverse_rms(key, width, a.eps);
        const float d0 = dot(weighted.data(), key, width) * rs * root;
        float gate =
            canonical_sigmoid(std::copysign(std::sqrt(std::max(std::fabs(d0), 1e-6f)), d0));
        if (a.image != nullptr && a.image[t] != 0) gate = 0;
        a.gate.f32(t)[s] = gate;
        for (int64_t d = 0; d < width; ++d) h[d] = context.bf16(h[d] + gate * value[d]);
      }
    }
  });
}

}  // namespace tidemill::reference
