// RMS normalisation: y = bf16(w * (x * rsqrt(mean(x^2) + eps))), plain weight, one rounding.
#pragma once

#include "model/weights.h"
#include "ops/tensor.h"

namespace tidemill {

struct RmsNormArgs {
  Rows x;
  Bf16Vector weight;
  float eps = 0;
  Rows y;  // may be x
};

}  // namespace tidemill
