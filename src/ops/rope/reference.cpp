#include "ops/reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/config.h"

namespace tidemill {

std::vector<float> rope_frequencies(const Config& config, bool compressed) {
  const int64_t n = config.qk_rope_head_dim;
  const float base =
      static_cast<float>(compressed ? config.compress_rope_theta : config.rope_theta);
  std::vector<float> f(static_cast<size_t>(n / 2));
  for (size_t i = 0; i < f.size(); ++i) {
    f[i] = 1.0f / std::pow(base, static_cast<float>(2 * i) / static_cast<float>(n));
  }
  if (!compressed) return f;

  const RopeScaling& scaling = config.rope_scaling;
  const auto correction = [&](double rotations) {
    const double original = static_cast<double>(scaling.original_max_position_embeddings);
    return static_cast<double>(n) * std::log(original / (2 * std::numbers::pi * rotations)) /
           (2 * std::log(config.compress_rope_theta));
  };
  const double low = std::max(std::floor(correction(scaling.beta_fast)), 0.0);
  const double high =
      std::min(std::ceil(correction(scaling.beta_slow)), static_cast<double>(n - 1));
  for (size_t i = 0; i < f.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - static_cast<float>(low)) /
                                      static_cast<float>(std::max(high - low, 1e-3)),
                                  0.0f, 1.0f);
    f[i] = f[i] / static_cast<float>(scaling.factor) * ramp + f[i] * (1.0f - ramp);
  }
  return f;
}

}  // namespace tidemill

namespace tidemill::reference {

void rope_table(const Context& context, const RopeTableArgs& a) {
  const int64_t half = a.table.width / 2;
  context.team.parallel_for(a.table.count, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* row = a.table.f32(t);
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(a.position[t]) * a.frequencies[i];
        row[i] = std::cos(angle);
        row[half + i] = std::sin(angle);
      }
    }
  });
}

void rope(const Context& context, const RopeArgs& a) {
  const int64_t half = a.table.width / 2;
  const int64_t head_dim = a.x.width / a.heads;
  context.team.parallel_for(a.x.count, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* cosine = a.table.f32(t);
      const float* sine = cosine + half;
      for (int64_t head = 0; head < a.heads; ++head) {
        float* x = a.x.f32(t) + (head + 1) * head_dim - 2 * half;
        for (int64_t i = 0; i < half; ++i) {
          const float c = cosine[i];
          const float s = a.inverse ? -sine[i] : sine[i];
          const float x0 = x[2 * i];
          const float x1 = x[2 * i + 1];
          x[2 * i] = context.bf16(x0 * c - x1 * s);
          x[2 * i + 1] = context.bf16(x0 * s + x1 * c);
        }
      }
    }
  });
}

}  // namespace tidemill::reference
