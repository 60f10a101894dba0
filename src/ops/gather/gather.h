// Rows of a weight table (embedding, Engram, Markov) to activations.
#pragma once

#include "model/weights.h"
#include "ops/tensor.h"

namespace tidemill {

// out[t] = table[rows[t * per_row]], table[rows[t * per_row + 1]], ... side by side; the whole
// repeated `copies` times. out.width = table.cols * per_row * copies. Values are exact.
struct GatherArgs {
  const Matrix* table = nullptr;
  const int64_t* rows = nullptr;  // [out.count, per_row], inside the table
  int64_t per_row = 1;
  int64_t copies = 1;
  Rows out;
};

}  // namespace tidemill
