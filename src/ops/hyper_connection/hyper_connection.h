// Single-pass manifold-constrained hyper-connections over `hc` residual streams (spec 5).
// Streams are stored stream-major: h[t] = hc x hidden.
#pragma once

#include "model/weights.h"
#include "ops/tensor.h"

namespace tidemill {

// Coefficients of one sublayer from the streams before it; float32 throughout.
struct HcMixArgs {
  const HcWeights* weights = nullptr;
  Rows h;  // bf16 values, as everywhere between sublayers
  int64_t streams = 4;
  int64_t sinkhorn_iterations = 20;
  float norm_eps = 0;
  float hc_eps = 0;
  Rows pre;   // [T, hc]
  Rows post;  // [T, hc]
  Rows comb;  // [T, hc * hc], comb[i][j] carries stream i into stream j
};

// collapsed = bf16(sum_s pre[s] * h[s]); x = rms_norm(collapsed).
struct CollapseNormArgs {
  Rows h;
  int64_t streams = 4;
  Rows pre;
  Bf16Vector norm;
  float eps = 0;
  Rows collapsed;  // optional output (data null: not wanted)
  Rows x;
};

// h[j] = bf16(post[j] * y + sum_i comb[i][j] * h[i]), in place.
struct ExpandArgs {
  Rows h;
  int64_t streams = 4;
  Rows y;
  Rows post;
  Rows comb;
};

// out = bf16(mean over the streams): what the drafter taps.
struct StreamMeanArgs {
  Rows h;
  int64_t streams = 4;
  Rows out;
};

}  // namespace tidemill
