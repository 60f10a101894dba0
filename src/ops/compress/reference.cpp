#include "ops/reference.h"

#include <algorithm>

#include "ops/canonical.h"

namespace tidemill::reference {

void compress_pairs(const Context& context, const CompressPairsArgs& a) {
  const int64_t width = a.latent.width;
  context.team.parallel_for(a.latent.count, 8, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float* k1 = a.k.f32(a.odd_row[n]);
      const float* g1 = a.g.f32(a.odd_row[n]);
      const float* k0;
      const float* g0;
      if (a.even_row[n] >= 0) {
        k0 = a.k.f32(a.even_row[n]);
        g0 = a.g.f32(a.even_row[n]);
      } else {
        k0 = reinterpret_cast<const float*>(a.pending_base + a.pending_add + a.pending_offset[n]);
        g0 = k0 + width;
      }
      for (int64_t c = 0; c < width; ++c) {
        const float largest = std::max(g0[c], g1[c]);
        const float e0 = canonical_exp(g0[c] - largest);
        const float e1 = canonical_exp(g1[c] - largest);
        const float total = e0 + e1;
        a.latent.f32(n)[c] = context.bf16(e0 / total * k0[c] + e1 / total * k1[c]);
      }
    }
  });
}

}  // namespace tidemill::reference
