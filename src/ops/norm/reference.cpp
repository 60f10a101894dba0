#include "ops/reference.h"

#include <cstring>

#include "base/formats.h"
#include "ops/canonical.h"

namespace tidemill::reference {

float bf16_at(const Bf16Vector& v, int64_t i) {
  uint16_t bits;
  std::memcpy(&bits, reinterpret_cast<const std::byte*>(v.data) + i * 2, 2);
  return bf16_to_float(bits);
}

void normalise_row(const Context& context, const float* x, const Bf16Vector& weight, float eps,
                   float* out) {
  const float r = inverse_rms(x, weight.size, eps);
  for (int64_t k = 0; k < weight.size; ++k) {
    out[k] = context.bf16(bf16_at(weight, k) * (x[k] * r));
  }
}

void rms_norm(const Context& context, const RmsNormArgs& a) {
  context.team.parallel_for(a.x.count, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      normalise_row(context, a.x.f32(t), a.weight, a.eps, a.y.f32(t));
    }
  });
}

}  // namespace tidemill::reference
