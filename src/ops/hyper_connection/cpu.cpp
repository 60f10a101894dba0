// Hyper-connections of the cpu backend.
#include "ops/cpu_backend.h"

namespace tidemill {
namespace {

constexpr int64_t kStreams = 4;  // what the kernels are made for

}  // namespace

void CpuBackend::hc_mix(const HcMixArgs& a) {
  if (a.streams != kStreams || a.h.width % 32 != 0) return ReferenceBackend::hc_mix(a);
  const Matrix& fn = a.weights->fn;
  float* m = hidden_.floats(a.h.count * fn.rows);
  linear({.w = &fn, .x = a.h, .y = {m, a.h.count, fn.rows, fn.rows}, .f32_output = true});
  for_each_row(a.h.count, a.h.width * 4,
               [&](int64_t t) { kernels_.hc_coefficients(a, t, m + t * fn.rows); });
}

void CpuBackend::collapse_norm(const CollapseNormArgs& a) {
  const int64_t width = a.norm.size;
  if (width % 16 != 0) return ReferenceBackend::collapse_norm(a);
  for_each_row(a.h.count, width * a.streams, [&](int64_t t) {
    float* x = a.x.f32(t);
    float* u = a.collapsed.data != nullptr ? a.collapsed.f32(t) : x;
    kernels_.collapse(a.h.f32(t), a.streams, a.pre.f32(t), width, u);
    kernels_.rms_norm(u, a.norm.data, width, a.eps, x);
  });
}

void CpuBackend::expand(const ExpandArgs& a) {
  const int64_t width = a.y.width;
  if (a.streams != kStreams || width % 16 != 0) return ReferenceBackend::expand(a);
  for_each_row(a.h.count, width * 8, [&](int64_t t) {
    kernels_.expand(a.h.f32(t), a.y.f32(t), a.post.f32(t), a.comb.f32(t), width);
  });
}

}  // namespace tidemill
