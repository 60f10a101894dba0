#include "ops/reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/canonical.h"

namespace tidemill::reference {

void sinkhorn(float* c, int64_t n, int64_t iterations, float eps) {
  const auto divide_columns = [&] {
    for (int64_t j = 0; j < n; ++j) {
      float total = 0;
      for (int64_t i = 0; i < n; ++i) total += c[i * n + j];
      for (int64_t i = 0; i < n; ++i) c[i * n + j] /= total + eps;
    }
  };
  for (int64_t i = 0; i < n; ++i) {  // first row step: a softmax, eps added after dividing
    float* row = c + i * n;
    const float largest = *std::max_element(row, row + n);
    float total = 0;
    for (int64_t j = 0; j < n; ++j) total += row[j] = canonical_exp(row[j] - largest);
    for (int64_t j = 0; j < n; ++j) row[j] = row[j] / total + eps;
  }
  divide_columns();
  for (int64_t iteration = 1; iteration < iterations; ++iteration) {
    for (int64_t i = 0; i < n; ++i) {
      float* row = c + i * n;
      float total = 0;
      for (int64_t j = 0; j < n; ++j) total += row[j];
      for (int64_t j = 0; j < n; ++j) row[j] /= total + eps;
    }
    divide_columns();
  }
}

void hc_mix(const Context& context, const HcMixArgs& a) {
  const int64_t hc = a.streams;
  const HcWeights& w = *a.weights;
  context.team.parallel_for(a.h.count, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> weights(static_cast<size_t>(w.fn.cols));
    std::vector<float> m(static_cast<size_t>(w.fn.rows));
    for (int64_t t = begin; t < end; ++t) {
      const float* h = a.h.f32(t);
      const float r = inverse_rms(h, a.h.width, a.norm_eps);
      for (int64_t j = 0; j < w.fn.rows; ++j) {
        widen_row(w.fn, j, weights.data());
        m[static_cast<size_t>(j)] = dot(weights.data(), h, w.fn.cols) * r;
      }
      const auto mixed = [&](int64_t j, int64_t kind) {
        return m[static_cast<size_t>(j)] * w.scale.data[kind] + w.base.data[j];
      };
      for (int64_t s = 0; s < hc; ++s) {
        a.pre.f32(t)[s] = canonical_sigmoid(mixed(s, 0)) + a.hc_eps;
        a.post.f32(t)[s] = 2.0f * canonical_sigmoid(mixed(hc + s, 1));
      }
      float* comb = a.comb.f32(t);
      for (int64_t i = 0; i < hc * hc; ++i) comb[i] = mixed(2 * hc + i, 2);
      sinkhorn(comb, hc, a.sinkhorn_iterations, a.hc_eps);
    }
  });
}

void collapse_norm(const Context& context, const CollapseNormArgs& a) {
  const int64_t width = a.norm.size;
  context.team.parallel_for(a.h.count, 8, [&](int64_t begin, int64_t end) {
    std::vector<float> collapsed(static_cast<size_t>(width));
    for (int64_t t = begin; t < end; ++t) {
      const float* h = a.h.f32(t);
      const float* pre = a.pre.f32(t);
      float* u = a.collapsed.data != nullptr ? a.collapsed.f32(t) : collapsed.data();
      for (int64_t d = 0; d < width; ++d) {
        float total = 0;
        for (int64_t s = 0; s < a.streams; ++s) total += pre[s] * h[s * width + d];
        u[d] = context.bf16(total);
      }
      normalise_row(context, u, a.norm, a.eps, a.x.f32(t));
    }
  });
}

void expand(const Context& context, const ExpandArgs& a) {
  const int64_t hc = a.streams;
  const int64_t width = a.y.width;
  context.team.parallel_for(a.h.count, 8, [&](int64_t begin, int64_t end) {
    std::vector<float> streams(static_cast<size_t>(hc));
    for (int64_t t = begin; t < end; ++t) {
      float* h = a.h.f32(t);
      const float* y = a.y.f32(t);
      const float* post = a.post.f32(t);
      const float* comb = a.comb.f32(t);
      for (int64_t d = 0; d < width; ++d) {
        for (int64_t i = 0; i < hc; ++i) streams[static_cast<size_t>(i)] = h[i * width + d];
        for (int64_t j = 0; j < hc; ++j) {
          float mixed = 0;
          for (int64_t i = 0; i < hc; ++i)
            mixed += comb[i * hc + j] * streams[static_cast<size_t>(i)];
          h[j * width + d] = context.bf16(post[j] * y[d] + mixed);
        }
      }
    }
  });
}

void stream_mean(const Context& context, const StreamMeanArgs& a) {
  const int64_t width = a.out.width;
  context.team.parallel_for(a.h.count, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* h = a.h.f32(t);
      for (int64_t d = 0; d < width; ++d) {
        float total = 0;
        for (int64_t s = 0; s < a.streams; ++s) total += h[s * width + d];
        a.out.f32(t)[d] = context.bf16(total / static_cast<float>(a.streams));
      }
    }
  });
}

}  // namespace tidemill::reference
