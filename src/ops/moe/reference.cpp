#include "ops/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/canonical.h"

namespace tidemill::reference {

float sqrt_softplus(float logit) {
  const float softplus = logit > 20.0f ? logit : std::log1p(std::exp(logit));
  return std::sqrt(softplus);
}

float swiglu(const Context& context, float g, float u, float limit, float weight) {
  g = std::min(g, limit);  // the gate has no lower clamp
  u = std::clamp(u, -limit, limit);
  const float silu = g * canonical_sigmoid(g);
  return context.bf16(weight * (silu * u));  // routing weight before w2
}

void route(const Context& context, const RouteArgs& a) {
  const int64_t experts = a.gate->rows;
  std::vector<float> logits(static_cast<size_t>(a.x.count * experts));
  linear(context, {.w = a.gate,
                   .x = a.x,
                   .y = {logits.data(), a.x.count, experts, experts},
                   .f32_output = true});
  std::vector<float> score(static_cast<size_t>(experts));
  std::vector<float> biased(static_cast<size_t>(experts));
  std::vector<int32_t> order(static_cast<size_t>(experts));
  for (int64_t t = 0; t < a.x.count; ++t) {
    const bool image = a.image != nullptr && a.image[t] != 0 && a.bias_vl.data != nullptr;
    const F32Vector& bias = image ? a.bias_vl : a.bias;
    for (int64_t e = 0; e < experts; ++e) {
      const auto i = static_cast<size_t>(e);
      score[i] = sqrt_softplus(logits[static_cast<size_t>(t * experts + e)]);
      biased[i] = score[i] + bias.data[e];
    }
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + a.topk, order.end(),
                      [&](int32_t x, int32_t y) {
                        const float p = biased[static_cast<size_t>(x)];
                        const float q = biased[static_cast<size_t>(y)];
                        return p > q || (p == q && x < y);
                      });
    float total = 0;
    for (int64_t i = 0; i < a.topk; ++i)
      total += score[static_cast<size_t>(order[static_cast<size_t>(i)])];
    for (int64_t i = 0; i < a.topk; ++i) {
      const int32_t e = order[static_cast<size_t>(i)];
      a.ids[t * a.topk + i] = e;
      a.weights[t * a.topk + i] = score[static_cast<size_t>(e)] / (total + 1e-20f) * a.scale;
    }
  }
}

namespace {

// One expert on one token: y = w2 swiglu(w1 x, w3 x).
void run_expert(const Context& context, const ExpertWeights& w, const Rows& x, float limit,
                float weight, const Rows& y) {
  const int64_t inter = w.w1.rows;
  std::vector<float> g(static_cast<size_t>(inter));
  std::vector<float> u(static_cast<size_t>(inter));
  const Rows gate{g.data(), 1, inter, inter};
  const Rows up{u.data(), 1, inter, inter};
  linear(context, {.w = &w.w1, .x = x, .y = gate, .quantise_input = true});
  linear(context, {.w = &w.w3, .x = x, .y = up, .quantise_input = true});
  for (int64_t i = 0; i < inter; ++i) {
    const auto k = static_cast<size_t>(i);
    g[k] = swiglu(context, g[k], u[k], limit, weight);
  }
  linear(context, {.w = &w.w2, .x = gate, .y = y, .quantise_input = true});
}

}  // namespace

void experts(const Context& context, const ExpertsArgs& a) {
  const int64_t width = a.y.width;
  std::vector<float> y(static_cast<size_t>(width));
  std::vector<float> total(static_cast<size_t>(width));
  std::vector<int64_t> slot(static_cast<size_t>(a.topk));
  const Rows out{y.data(), 1, width, width};
  for (int64_t t = 0; t < a.x.count; ++t) {
    const int32_t* ids = a.ids + t * a.topk;
    std::iota(slot.begin(), slot.end(), 0);
    std::sort(slot.begin(), slot.end(), [&](int64_t p, int64_t q) { return ids[p] < ids[q]; });
    std::fill(total.begin(), total.end(), 0.0f);
    const Rows x{a.x.f32(t), 1, a.x.width, a.x.stride};
    const auto add = [&](const ExpertWeights& w, float weight) {
      run_expert(context, w, x, a.swiglu_limit, weight, out);
      for (size_t d = 0; d < total.size(); ++d) total[d] += y[d];
    };
    for (const int64_t i : slot) {
      add(a.experts[static_cast<size_t>(ids[i])], a.weights[t * a.topk + i]);
    }
    add(*a.shared, 1.0f);
    for (int64_t d = 0; d < width; ++d) a.y.f32(t)[d] = context.bf16(total[static_cast<size_t>(d)]);
  }
}

}  // namespace tidemill::reference
