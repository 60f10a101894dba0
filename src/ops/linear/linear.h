// y = W x for every weight format.
#pragma once

#include "model/weights.h"
#include "ops/tensor.h"

namespace tidemill {

// In which order products with bf16, FP8 and FP4 weights are added (canonical.h). Backends of one
// order agree bit for bit.
enum class ProductOrder : uint8_t { kPairLanes, kTiles };

// Sums in float32 (canonical.h). With groups > 1 the matrix holds `groups` blocks of
// w.rows / groups rows; block g reads columns [g * w.cols, (g + 1) * w.cols) of x.
struct LinearArgs {
  const Matrix* w = nullptr;
  Rows x;  // width = groups * w.cols
  Rows y;  // width = w.rows
  int64_t groups = 1;
  bool quantise_input = false;  // Q8 per 32 elements first (FP8 and FP4 linears, spec 3.4)
  bool f32_output = false;      // otherwise rounded to bf16; then only may y be rows of bf16
  float scale = 1;              // a bf16 result times scale, rounded again
  bool accumulate = false;      // y += W x; float32 outputs only
};

}  // namespace tidemill
