// Ratio-2 compressor: two neighbouring tokens to one latent by a softmax per channel (spec 7.1).
#pragma once

#include "ops/tensor.h"

namespace tidemill {

// Entry n is made of an odd token, row odd_row[n] of this step, and the even token before it: row
// even_row[n], or, if that is negative, the pending row kept from an earlier step.
// latent = bf16(w0 * k_even + w1 * k_odd), (w0, w1) = softmax(g_even, g_odd) per channel.
struct CompressPairsArgs {
  Rows k;  // [T, head_dim] float32
  Rows g;  // [T, head_dim] float32
  const int64_t* odd_row = nullptr;
  const int64_t* even_row = nullptr;
  // Pending rows: k (head_dim float32) then g, at pending_base + pending_add + pending_offset[n].
  const std::byte* pending_base = nullptr;
  int64_t pending_add = 0;
  const int64_t* pending_offset = nullptr;
  Rows latent;  // [entries, head_dim]
};

}  // namespace tidemill
