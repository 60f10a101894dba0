// Matrix products of the cpu backend: what a thread does with its share of the rows.
#pragma once

#include <cstdint>

#include "model/weights.h"

namespace tidemill {

// Activation rows of float32, possibly a selection of them.
struct TokenRows {
  const float* data = nullptr;
  int64_t stride = 0;
  int64_t count = 0;
  const int32_t* index = nullptr;  // row of token i is index[i]; null: i

  const float* row(int64_t i) const { return data + (index != nullptr ? index[i] : i) * stride; }
};

enum class Store : uint8_t {
  kFloat,  // y = sum
  kAdd,    // y += sum
  kBf16,   // y = bf16(bf16(sum) * scale)
};

// y[t][n - row_begin] = W[n] . x[t] for the rows row_begin <= n < row_end. w.cols is a multiple of
// 32; w.format is not kFp8Row.
struct MatmulArgs {
  const Matrix* w = nullptr;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  TokenRows x = {};
  // Every x is a bf16 value, 0 or between 2^-50 and 2^50 in magnitude: then its products with
  // ordinary FP8 and FP4 weights are exact and may be fused.
  bool ordinary_x = false;
  float* y = nullptr;
  int64_t y_stride = 0;
  Store store = Store::kBf16;
  float scale = 1;
};

// Columns [begin, end) of one row, widened by the reference: for rows with codes or scales that the
// kernels do not widen (NaN, extreme powers of two).
void widen_columns(const Matrix& w, int64_t row, int64_t begin, int64_t end, float* out);

}  // namespace tidemill
