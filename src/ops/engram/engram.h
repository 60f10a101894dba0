// Engram gate: adds a looked-up value to every residual stream (spec 10.3).
#pragma once

#include "model/weights.h"
#include "ops/tensor.h"

namespace tidemill {

// kvv = keys of the hc streams, then the value. Per stream s:
//   dot  = (sum_d h W key) * rsqrt(mean h^2 + eps) * rsqrt(mean key^2 + eps) * hidden^-0.5
//   gate = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot)), 0 for image tokens
//   h[s] = bf16(h[s] + gate * value)
struct EngramGateArgs {
  Rows h;  // [T, hc * hidden], in place
  int64_t streams = 4;
  Rows kvv;  // [T, (hc + 1) * hidden]
  const Matrix* q_weight = nullptr;
  const Matrix* k_weight = nullptr;
  float eps = 0;
  const uint8_t* image = nullptr;  // [T] or null
  Rows gate;                       // [T, hc] float32: the gates, for observers
};

}  // namespace tidemill
